"""The Gardener: growth in a user's own training loop. Once per epoch it looks, decides and acts; the loop stays as it was."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, optim

from esper.kasmina import Growable
from esper.kasmina.probe import evaluating
from esper.leyline.actions import Decision
from esper.leyline.errors import ConfigError, StateError
from esper.leyline.events import Event
from esper.leyline.reports import EpochReport
from esper.leyline.stages import BLENDED, LIVE, Stage
from esper.simic.episode import Episode
from esper.tamiyo import Controller, Rules
from esper.tamiyo import make as make_controller
from esper.tolaria.attribution import configurations, interactions

OPEN_END = 100
"""Epochs that are assumed to lie ahead when the length of training is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluate function may return: validation loss, and accuracy in points (0 to 100)."""

    accuracy: float
    loss: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a gardener's history: what it saw, what it did and why."""

    epoch: int
    accuracy: float
    parameters: int
    decision: Decision
    refused: str
    stages: dict[str, str]

    def __str__(self) -> str:
        outcome = f" (refused: {self.refused})" if self.refused else ""
        reason = f": {self.decision.reason}" if self.decision.reason else ""
        return f"epoch {self.epoch}: {self.accuracy:.2f} points, {self.parameters:,} parameters; {self.decision}{reason}{outcome}"


class Gardener:
    """Grows a model inside a training loop that it does not own.

    model: a Growable. optimizer: the loop's optimiser; it follows the growth from here on. policy: a controller's name
    (wait, random, fixed, heuristic) or a Controller. evaluate: called with the model, in eval mode and without gradients; returns
    validation accuracy in points, or an Evaluation with the loss as well. It is called several times per epoch: once as the
    network is, and once for each seed switched off or tried out.
    epochs: how long training will go on, if known; a controller plans by it. classes: of the problem, for the scale of the loss.
    """

    def __init__(
        self,
        model: Growable,
        optimizer: optim.Optimizer,
        *,
        policy: str | Controller = "heuristic",
        evaluate: Callable[[Growable], float | Evaluation],
        epochs: int | None = None,
        max_seeds: int | None = None,
        classes: int = 10,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, Growable):
            raise ConfigError(f"a Gardener tends an esper.Growable, found {type(model).__name__}; wrap the model first")
        if not callable(evaluate):
            raise ConfigError(f"evaluate is a function of the model that returns its accuracy in points, found {evaluate!r}")
        if epochs is not None and epochs < 1:
            raise ConfigError(f"epochs is a positive number, or None when it is not known, found {epochs}")
        controller = make_controller(policy) if isinstance(policy, str) else policy
        model.follow(optimizer)
        self.model, self.optimizer, self.evaluate = model, optimizer, evaluate
        self.epochs, self.classes, self.seed = epochs, classes, seed
        self.history: list[Entry] = []
        self.epoch = self.germinated = self.steps = 0
        self._initial_rate = optimizer.param_groups[0]["lr"]
        self._start_parameters = sum(p.numel() for p in model.host.parameters())
        optimizer.register_step_post_hook(lambda *_: self._count_step())
        self.episode = Episode(self, controller, Rules(max_seeds=max_seeds), seed=seed)

    def step(self, *, train_loss: float = float("nan"), train_accuracy: float = float("nan")) -> Entry:
        """After an epoch of training: measure, decide, act. The train figures are optional; a policy that sees them knows more."""
        self.epoch += 1
        report = self._report(train_loss, train_accuracy)
        step = self.episode.step(report)
        entry = Entry(
            epoch=self.epoch,
            accuracy=report.val_accuracy,
            parameters=report.parameters,
            decision=step.decision,
            refused=step.refused,
            stages={seed.slot: seed.stage.name for seed in self.model.reports()},
        )
        self.history.append(entry)
        self._check_scale()
        return entry

    def shadow(self, batch: tuple[Any, Any], loss_fn: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Train isolated seeds with a loss that feels them; call it after backward and before the optimiser's step.

        For a Growable made with isolation="shadow". batch: inputs and targets; loss_fn(outputs, targets) gives the loss.
        """
        inputs, targets = batch
        return self.model.shadow_backward(lambda: loss_fn(self.model(inputs), targets))

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

    def _report(self, train_loss: float, train_accuracy: float) -> EpochReport:
        started = time.perf_counter()
        model = self.model
        stages = {report.slot: report.stage for report in model.reports()}
        blended = [slot for slot, stage in stages.items() if stage in BLENDED]
        fossils = [slot for slot, stage in stages.items() if stage is Stage.FOSSILIZED]
        trials = [slot for slot, stage in stages.items() if stage is Stage.TRAINING]
        wanted = configurations(blended, fossils, trials, "loo", self.seed)
        found = {on: self._evaluate(on, blended) for on in wanted}
        base = found[wanted[0]]
        accuracy = {on: evaluation.accuracy for on, evaluation in found.items()}
        for slot in blended:
            model.record(slot, contribution=base.accuracy - accuracy[wanted[0] - {slot}])
        for slot in trials:
            model.record(slot, trial_contribution=accuracy[wanted[0] | {slot}] - base.accuracy)
        seeds = model.reports()
        harvested = found[frozenset(fossils)]
        return EpochReport(
            epoch=self.epoch,
            budget=self.epochs or max(OPEN_END, 2 * self.epoch),
            steps=self.steps,
            classes=self.classes,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            val_loss=base.loss,
            val_accuracy=base.accuracy,
            per_class=(),
            bare_accuracy=accuracy[frozenset()] if blended else None,
            harvest_accuracy=harvested.accuracy,
            harvest_loss=harvested.loss,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            initial_learning_rate=self._initial_rate,
            start_parameters=self._start_parameters,
            parameters=self._start_parameters + sum(seed.parameters for seed in seeds),
            gradients=model.host_meter.read(),
            seeds=seeds,
            verdicts=tuple(model.verdict(seed.slot) if seed.stage in LIVE else None for seed in seeds),
            interactions=interactions(blended, accuracy),
            shapley={},
            flops={},
            seconds={"validate": time.perf_counter() - started},
            germinated=self.germinated,
            rollbacks=0,
        )

    def _evaluate(self, on: frozenset[str], blended: list[str]) -> Evaluation:
        """The user's evaluation of one configuration."""
        model = self.model
        with evaluating(model), model.without(*(set(blended) - on)), model.trial(*(on - set(blended))):
            result = self.evaluate(model)
        return _evaluation(result)

    def _check_scale(self) -> None:
        if len(self.history) == 3 and all(0.0 <= entry.accuracy <= 1.0 for entry in self.history):
            warnings.warn("every accuracy so far is at most 1.0; evaluate should return points (0 to 100)", stacklevel=3)

    def _count_step(self) -> None:
        self.steps += 1

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """The gardener's own memory, in plain containers; model and optimiser are saved by their own state dicts."""
        return {
            "epoch": self.epoch,
            "steps": self.steps,
            "germinated": self.germinated,
            "initial_rate": self._initial_rate,
            "controller": self.episode.controller.name,
            "episode": self.episode.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory. Load the model first, then the optimiser, then this."""
        known = set(self.state_dict())
        if set(state) != known:
            raise StateError(f"a gardener's state has the keys {', '.join(sorted(known))}; found {', '.join(sorted(state))}")
        if state["controller"] != self.episode.controller.name:
            here = self.episode.controller.name
            raise StateError(f"the state is that of the controller {state['controller']!r}; this gardener has {here!r}")
        self.epoch, self.steps, self.germinated = state["epoch"], state["steps"], state["germinated"]
        self._initial_rate = state["initial_rate"]
        self.episode.load_state(state["episode"])


def _evaluation(result: object) -> Evaluation:
    """What an evaluate function returned, in one form."""
    if isinstance(result, Evaluation):
        return result
    if isinstance(result, Tensor) and result.numel() == 1:
        return Evaluation(accuracy=float(result))
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        raise ConfigError(f"evaluate returns accuracy in points or an esper.Evaluation, found {type(result).__name__}")
    return Evaluation(accuracy=float(result))
