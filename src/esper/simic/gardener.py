"""The Gardener: growth in a user's own training loop. Once per epoch it looks, decides and acts; the loop stays as it was."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.kasmina.attach.running import call, evaluating
from esper.kasmina.attach.variation import Example
from esper.kasmina.growable import growable_in
from esper.kasmina.norms import check_loader
from esper.kasmina.optimizer_groups import innermost
from esper.leyline.actions import Decision, Op
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.config import load
from esper.leyline.errors import ConfigError, StateError
from esper.leyline.events import Event, HostStarted, RoundFinished, RunFinished
from esper.leyline.reports import EpochReport
from esper.leyline.score import MOST_RENT, USUAL_RENT
from esper.leyline.stages import Stage
from esper.nissa import BEGINNING, Hub, JsonlSink, QueuedSink, Sink, find_sink, make_sink
from esper.simic.evaluation import Evaluation, Scoring
from esper.simic.growth.deciding import controller_for
from esper.simic.growth.episode import Episode, decided, epoch_events, hosts_trained, observed
from esper.simic.runs.work import run_started, versions
from esper.tamiyo import Controller, Rules
from esper.tamiyo.policy.policy_controller import PolicyController
from esper.tolaria.storage.runs import RunFolder
from esper.tolaria.training.validation import Score, measured, wanted_of

LOG = logging.getLogger(__name__)

T = TypeVar("T")

OPEN_END = 100
"""Epochs that are assumed to lie ahead when the length of training is not given."""


FRACTIONS = 3
"""Epochs with an accuracy of at most 1.0 after which it looks like a fraction instead of points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a gardener's history: what it saw, what it did and why."""

    epoch: int
    accuracy: float
    """Of the network as it was trained, on validation data, in points."""
    score: str
    """The same as it was given, with its unit."""
    parameters: int
    """Of host and seeds, when it looked."""
    decision: Decision
    refused: str
    """Why the decision was not carried out; empty when it was."""
    stages: dict[str, str]
    """The stage of each slot afterwards."""

    def __str__(self) -> str:
        outcome = f" (refused: {self.refused})" if self.refused else ""
        reason = f": {self.decision.reason}" if self.decision.reason else ""
        return f"epoch {self.epoch}: {self.score}, {self.parameters:,} parameters; {self.decision}{reason}{outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerConfig:
    """What a gardener was told, as its run folder keeps it."""

    kind: Literal["gardener"] = "gardener"
    policy: str
    slots: tuple[str, ...]
    epochs: int | None = None
    max_seeds: int | None = None
    rent: float = USUAL_RENT
    classes: int = 10
    seed: int = 0


class Gardener:
    """Grows a model inside a training loop that it does not own.

    model: a Growable, or what it was wrapped in: DistributedDataParallel, what torch.compile or accelerate made of it.
    optimizer: the loop's optimiser, as accelerate prepared it or not; it follows the growth from here on.
    policy: a controller's name (wait, random, fixed, heuristic), a trained policy by the name that it ships under or by its file's path, or
    a Controller.
    evaluate: called with the model, in eval mode and without gradients; returns validation accuracy in points, or an Evaluation
    with the loss as well, or with a score that is no accuracy. It is called several times per epoch: once as the network is, and once for
    each seed switched off or tried out, each time with the same random numbers. Modes and random streams are put back afterwards.
    recalibrate: a loader of training batches, inputs or (inputs, targets), for a model with batch norms: their running statistics lag
    behind a network that grows, so before each evaluation they are made anew from its first batches (about 256 samples), and put back
    afterwards. `model.harvest()` uses it too.
    epochs: how long training will go on, if known; a controller plans by it. max_seeds: most seeds in the network at once.
    rent: what size costs you, in points of accuracy for a network that grows sixteenfold: 0 takes whatever helps, 60 only what helps much.
    classes: of the problem, for the scale of the loss. seed: of a controller that draws at random.
    run: a folder to record everything in, as a run of `esper train` does; `finish()` ends it, and so does leaving a `with` block. A
    folder that was left half-way goes on. sinks: whoever else wants the events, each in a thread of its own, so that none holds up the
    loop; with a run also trackers by their names ("tensorboard", "wandb", "mlflow").

    Where evaluate raises, nothing has happened: the same step can be taken again.

    Under DistributedDataParallel every rank has a Gardener of the same settings, made after the model was wrapped, and takes the same
    steps. evaluate is called on every rank, so it may hold collectives; the figures of rank 0 count, and what rank 0 decides happens on
    all. Rank 0 alone records.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        *,
        policy: str | os.PathLike[str] | Controller = "heuristic",
        evaluate: Callable[[Growable], float | Evaluation],
        recalibrate: Iterable[Any] | None = None,
        epochs: int | None = None,
        max_seeds: int | None = None,
        rent: float = USUAL_RENT,
        classes: int = 10,
        seed: int = 0,
        run: str | os.PathLike[str] | None = None,
        sinks: Sequence[Sink | str] = (),
    ) -> None:
        model = growable_in(model)
        if not isinstance(optimizer, optim.Optimizer):
            raise ConfigError(f"optimizer is the torch.optim.Optimizer that the loop steps, found {type(optimizer).__name__}")
        if not callable(evaluate):
            raise ConfigError(f"evaluate is a function of the model that returns its accuracy in points, found {evaluate!r}")
        if recalibrate is not None:
            check_loader(recalibrate)
        for name in (each for each in sinks if isinstance(each, str)):
            find_sink(name)
            if run is None:
                raise ConfigError(f"the sink {name!r} needs a run folder to work in; give the gardener one with run=")
        if epochs is not None:
            _check_count("epochs", epochs, 1)
        _check_count("classes", classes, 2)
        if not isinstance(rent, int | float) or not 0.0 <= rent <= MOST_RENT:
            raise ConfigError(f"rent is {rent!r}; expected points for a network that grows sixteenfold, from 0 to {MOST_RENT:g}")
        optimizer = innermost(optimizer)
        self.controller, rules = controller_for(policy), Rules(max_seeds=max_seeds)
        model.follow(optimizer)
        self.model, self.optimizer, self.evaluate = model, optimizer, evaluate
        model.reference = recalibrate
        self.epochs, self.rent, self.classes, self.seed = epochs, float(rent), classes, seed
        self.history: list[Entry] = []
        """What was seen, done and why, one entry for each step."""
        self.epoch = self.germinated = self.steps = 0
        self._warned: set[str] = set()
        group = optimizer.param_groups[0]
        # A scheduler that warms up has changed the rate already, and has written down the one it started from.
        self._initial_rate = float(group["initial_lr"] if "initial_lr" in group else group["lr"])
        self._start_parameters = sum(p.numel() for p in model.host.parameters())
        optimizer.register_step_post_hook(self._count_step)
        self.episode = Episode(self, rules)
        self.memory = self.controller.start(seed)
        self.scoring = Scoring()
        self._began = False
        """Whether the record has its beginning."""
        self.config = GardenerConfig(
            policy=self.controller.name,
            slots=model.slot_ids,
            epochs=epochs,
            max_seeds=max_seeds,
            rent=self.rent,
            classes=classes,
            seed=seed,
        )
        self.folder = None if run is None or not self._leads() else _folder(Path(run), self.config)
        journal = None if self.folder is None else JsonlSink(self.folder.events)
        self.hub = Hub(journal, [_queued(each, self.folder) for each in sinks] if self._leads() else [], log=_remark)

    def step(self, *, train_loss: float = float("nan"), train_accuracy: float = float("nan")) -> Entry:
        """After an epoch of training: measure, decide, act. The train figures are optional; a policy that sees them knows more."""
        self.epoch += 1
        try:
            report, shown = self._report(float(train_loss), float(train_accuracy))
        except BaseException:
            self.epoch -= 1
            raise
        observation = self.episode.look(report)
        while_training = self.drain()
        ranks, memory = self.model.ranks, self.memory

        def decide() -> tuple[Decision, Any]:
            return self.controller.decide(observation, memory)

        decision, self.memory = decide() if ranks is None else ranks.from_first("the decision", decide)
        step = self.episode.carry_out(observation, decision)
        if self.hub.on and self._leads():
            self._begin()
            self.hub.emit(hosts_trained({0: report}), epoch=self.epoch)
            seen = [observed(observation)] if self.hub.observes else []
            for event in (*epoch_events(report), *while_training, *seen, decided(decision, observation), *step.events):
                self.hub.emit(event, host=0, epoch=self.epoch)
            self.hub.emit(RoundFinished(round=self.epoch, rounds=self._budget()))
            self.hub.flush()
        if ranks is not None:
            # Known to all, so that each has the same state to save.
            position = ranks.from_first("the record", self.hub.position)
            if not ranks.leads:
                self.hub.restore(position)
        entry = Entry(
            epoch=self.epoch,
            accuracy=report.val_accuracy,
            score=shown,
            parameters=report.parameters,
            decision=step.decision,
            refused=step.refused,
            stages={seed.slot: seed.stage.name for seed in self.model.reports()},
        )
        self.history.append(entry)
        if self._leads():
            LOG.log(logging.DEBUG if entry.decision.op is Op.WAIT else logging.INFO, "%s", entry)
            self._warn(report)
        return entry

    def finish(self) -> None:
        """End the record: the run counts as finished, with the history as its summary. Without a run only the sinks are let go of."""
        if self.folder is None:
            self.close()
            return
        self._begin()
        self.hub.emit(RunFinished(outcome="finished"))
        self.hub.flush(fsync=True)
        self.folder.finish({"command": "esper.Gardener", "versions": versions(), "history": [to_plain(entry) for entry in self.history]})
        self.close()

    def close(self) -> None:
        """Let go of the record. The run stays as it is, and a gardener with the same settings can go on with it."""
        self.hub.close()
        if self.folder is not None:
            self.folder.close()

    def __enter__(self) -> Gardener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def _begin(self) -> None:
        """Begin the record, anew if an earlier one was left and its state was not loaded."""
        if self._began:
            return
        self._began = True
        self.hub.restore(BEGINNING)
        self._announce(0)

    def _announce(self, round: int) -> None:
        """Tell what begins, or goes on after so many epochs."""
        network = type(self.model.host).__name__
        rounds, name = self._budget(), self.controller.name
        self.hub.emit(
            run_started("esper.Gardener", self.config, task=network, hosts=1, rounds=rounds, controller=name, twins=0, round=round)
        )
        self.hub.emit(
            HostStarted(
                task=network,
                seed=self.seed,
                member={},
                epochs=rounds,
                parameters=self._start_parameters,
                slots=self.model.slot_ids,
                controller=name,
            ),
            host=0,
            epoch=0,
        )

    def shadow(self, batch: tuple[Any, Any], loss_fn: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Train isolated seeds with a loss that feels them; call it after backward and before the optimiser's step.

        For a Growable made with isolation="shadow". batch: inputs (a tensor, or a tuple or dict of arguments) and targets;
        loss_fn(outputs, targets) gives the loss. Returns it, or None when no seed is in TRAINING.
        """
        if self._isolation() != "shadow":
            raise ConfigError(f'shadow() is for a Growable made with isolation="shadow"; this one has {self._isolation()!r}')
        inputs, targets = batch
        return self.model.shadow_backward(lambda: loss_fn(call(self.model, inputs), targets))

    # What Episode asks of whatever holds a growing model

    def drain(self) -> list[Event]:
        """What has happened to the seeds since the last call."""
        events = self.model.drain_journal()
        self.germinated += sum(getattr(event, "after", None) is Stage.GERMINATED for event in events)
        return events

    def end_epoch(self) -> list[Event]:
        """The body's tick."""
        self.model.tick()
        return self.drain()

    # Measuring

    def _report(self, train_loss: float, train_accuracy: float) -> tuple[EpochReport, str]:
        """What there is to report of the epoch, and the score of the network as it is in words."""
        model, ranks = self.model, self.model.ranks
        if ranks is not None:
            ranks.verify(model, model.slots, f"after epoch {self.epoch}")
        reference = self._together("recalibrate", self._reference)
        wanted = wanted_of(model)
        evaluated = {on: self._evaluate(on, reference) for on in wanted}
        scores = {on: score for on, (score, _) in evaluated.items()}
        samples = {None if score.hits is None else len(score.hits) for score in scores.values()}
        if len(samples) > 1:
            raise ConfigError(f"an Evaluation's correct has the same samples every time, found {', '.join(map(str, samples))} of them")
        model.cache_figures(None if ranks is None else ranks.first("the figures", lambda: model.figures().tolist()))
        found = measured(model, scores)
        report = EpochReport(
            **found,
            epoch=self.epoch,
            budget=self._budget(),
            steps=self.steps,
            classes=self.classes,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            per_class=(),
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            initial_learning_rate=self._initial_rate,
            start_parameters=self._start_parameters,
            parameters=self._start_parameters + sum(seed.parameters for seed in found["seeds"]),
            flops={},
            germinated=self.germinated,
            rollbacks=0,
            rent=self.rent,
        )
        shown = evaluated[wanted[0]][1]
        return (report, shown) if ranks is None else ranks.first("the report", lambda: (report, shown))

    def _reference(self) -> list[Example]:
        """Inputs that batch norms are made anew from; none where there is nothing to make or to make it from."""
        model = self.model
        return model.reference_inputs(model.reference) if model.reference is not None and model.learning_norms() else []

    def _leads(self) -> bool:
        """Whether this process is the one that records and warns: the only one, or rank 0."""
        return self.model.ranks is None or self.model.ranks.leads

    def _together(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives; where it raises on one rank, all raise."""
        return make() if self.model.ranks is None else self.model.ranks.each(what, make)

    def _budget(self) -> int:
        """Epochs there are in all. Whoever trains for longer than planned is at the end: what pays is kept, nothing new begins."""
        return max(OPEN_END, 2 * self.epoch) if self.epochs is None else max(self.epochs, self.epoch)

    def _evaluate(self, on: frozenset[str], reference: Sequence[Example]) -> tuple[Score, str]:
        """The user's evaluation of one configuration. Everyone gets the same random numbers, and the loop's go on as if none were drawn."""
        model = self.model
        devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})

        def evaluate() -> tuple[tuple[Score, str], float | None]:
            with torch.random.fork_rng(devices=devices), model.showing(on), model.recalibrated(reference), evaluating(model):
                return self.scoring.score(self.evaluate(model)), self.scoring.scale

        ranks = model.ranks
        found, self.scoring.scale = evaluate() if ranks is None else ranks.first("evaluate", evaluate)
        return found

    def _isolation(self) -> str:
        return str(next(iter(self.model.slots.values())).isolation)

    def _count_step(self, *_: object) -> None:
        self.steps += 1

    # Warnings, each once

    def _warn(self, report: EpochReport) -> None:
        if len(self.history) == FRACTIONS and all(entry.accuracy <= 1.0 and entry.score.endswith(" points") for entry in self.history):
            self._warn_once("every accuracy so far is at most 1.0; evaluate returns points (0 to 100), not a fraction")
        if self.germinated and self.model.reference is None and self.model.learning_norms():
            self._warn_once(
                "the model has batch norms, whose running statistics lag behind while it grows, and what evaluate sees is mostly that lag; "
                "give the gardener training batches to make them anew from: recalibrate=train_loader"
            )
        hint = "the loop has to step the optimiser that the gardener was given"
        if self._isolation() == "shadow":
            hint = 'with isolation="shadow" call gardener.shadow(batch, loss_fn) between backward and the optimiser\'s step'
        for seed in report.seeds:
            if seed.stage is Stage.TRAINING and seed.gradients is None:
                self._warn_once(f"the seed at slot {seed.slot!r} was trained for an epoch without a gradient; {hint}")
        unseen = [name for name in ("val_loss", "train_loss", "train_accuracy") if math.isnan(getattr(report, name))]
        if isinstance(self.controller, PolicyController) and unseen:
            hint = "return esper.Evaluation(accuracy=..., loss=...) from evaluate and call step(train_loss=..., train_accuracy=...)"
            self._warn_once(f"the policy has learned to look at figures that it is not given ({', '.join(unseen)}); {hint}")

    def _warn_once(self, message: str) -> None:
        kind = message.partition(";")[2]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=4)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """The gardener's own memory, in plain containers; model and optimiser are saved by their own state dicts."""
        return {
            "epoch": self.epoch,
            "steps": self.steps,
            "germinated": self.germinated,
            "initial_rate": self._initial_rate,
            "controller": self.controller.name,
            "memory": self.memory,
            "signals": self.episode.tracker.state(),
            "scale": self.scoring.scale,
            "record": self.hub.position(),
            "history": [to_plain(entry) for entry in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory. Load the model first, then the optimiser, then this."""
        known = set(self.state_dict())
        if set(state) != known:
            raise StateError(f"a gardener's state has the keys {', '.join(sorted(known))}; found {', '.join(sorted(state))}")
        if state["controller"] != self.controller.name:
            here = self.controller.name
            raise StateError(f"the state is that of the controller {state['controller']!r}; this gardener has {here!r}")
        history = [from_plain(Entry, entry) for entry in state["history"]]
        if state["record"]["seq"]:
            self.hub.restore(state["record"])
            self._began = True
        self.episode.tracker.load_state(state["signals"])
        self.memory, self.scoring.scale = state["memory"], state["scale"]
        self.epoch, self.steps, self.germinated = state["epoch"], state["steps"], state["germinated"]
        self._initial_rate, self.history = state["initial_rate"], history
        if self._began:
            with self.hub.unrecorded():  # the record has it; whoever watches from now on has not
                self._announce(self.epoch)


def _folder(path: Path, config: GardenerConfig) -> RunFolder:
    """A new run folder, or one that was left half-way by a gardener with the same settings."""
    if not (path / "run.json").exists():
        return RunFolder.create(path, name=path.name, config=config, command="esper.Gardener")
    folder = RunFolder.open(path)
    if load(GardenerConfig, folder.config) != config:
        folder.close()
        raise ConfigError(f"the run {path} was recorded by a gardener with other settings; name a new folder")
    return folder


def _remark(text: str) -> None:
    """Tell people about a sink or a disk that fails; a log may lead nowhere."""
    warnings.warn(text, stacklevel=2)


def _queued(sink: Sink | str, folder: RunFolder | None) -> QueuedSink:
    if not isinstance(sink, str):
        return QueuedSink(sink)
    assert folder is not None, "checked before anything was made"
    return QueuedSink(make_sink(sink, folder.path), sink)


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        what = " or None when it is not known," if name == "epochs" else ""
        raise ConfigError(f"{name} is a whole number of at least {least},{what} found {value!r}")
