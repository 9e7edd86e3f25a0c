"""One host in training: its growing model, optimiser, data order, governor and counters, and the epoch that moves them on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Growable
from esper.kasmina.attach.running import modes_kept
from esper.kasmina.counterfactuals import Configuration, forms_showing
from esper.kasmina.norms import HARVEST_SAMPLES
from esper.kasmina.slot import Form
from esper.leyline.actions import Planted, Style
from esper.leyline.errors import DeviceError, unknown
from esper.leyline.events import Event, RolledBack, StageChanged
from esper.leyline.reports import EpochReport
from esper.leyline.stages import BLENDED, DEVELOPING, LIVE, Stage
from esper.tolaria.data import Data, Split, epoch_order, stream_seed
from esper.tolaria.data.streams import draws
from esper.tolaria.tasks import Member, Task
from esper.tolaria.tasks.registry import augment_stream
from esper.tolaria.training.config import Precision, TrainingConfig
from esper.tolaria.training.flops import SAMPLES, Counts, count, per_sample
from esper.tolaria.training.governor import Governor
from esper.tolaria.training.snapshot import Snapshot
from esper.tolaria.training.validation import Array, Evaluated, Score, Scores, evaluate, measured, wanted_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochPlan:
    """One epoch of a host before it is trained: everything that whoever trains it has to follow."""

    epoch: int
    """Epochs done before it, which augmentation and every random stream go by."""
    order: Tensor
    """Positions in the training split, int64, on the CPU."""
    sizes: tuple[int, ...]
    """Of the batches that it is cut into."""
    flops: dict[str, int]
    """Operations that training takes: forward, backward."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """How the network was measured at the end of an epoch, before anything was decided on it."""

    influence: Mapping[str, tuple[float, Style]] = field(default_factory=dict)
    """Alpha and style of each seed that was blended in."""
    scores: Mapping[Configuration, Score] = field(default_factory=dict)
    """On val, with seeds and without."""


class Host:
    """A host and everything that training it needs. All its randomness comes from `seed`, in separate streams."""

    def __init__(self, task: Task, data: Data, member: Member, seed: int, config: TrainingConfig) -> None:
        self.task, self.data, self.member, self.seed, self.config = task, data, member, seed, config
        net, slots, example, self.split, self.architecture = task.prepare(data, member, seed)
        device = data.train.x.device
        self.governor = Governor(config.governor, data.classes)
        self.snapshot = Snapshot.untrained(net, self.governor)  # here, where it still is in CPU memory: no device is waited for
        net.to(device)
        if config.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # The embargo is a cool-down, not the rest of a short life: at most a tenth of the budget.
        embargo = max(1, min(config.lifecycle.embargo_epochs, member.epochs // 10))
        lifecycle = replace(config.lifecycle, embargo_epochs=embargo)
        layout = (self.architecture, tuple(slots.values()), device)
        self.model = Growable(
            net,
            slots,
            example.to(device),
            isolation=config.isolation,
            gates=config.gates,
            lifecycle=lifecycle,
            seed=stream_seed("growth", seed),
            places=task.probed.get(layout),
        )
        task.probed[layout] = {slot.place.path: slot.place for slot in self.model.slots.values()}
        self.optimizer = _optimizer(self.model, member)
        self.model.follow(self.optimizer)
        self.run = _compiled(self.model, config.compile) if config.compile else self.model
        self.stream = stream_seed("host", seed)
        """What the order of the data is drawn from."""
        self.counted = task.counted.setdefault(self.architecture, {})
        self._seeds_counted = task.counted.setdefault("seeds", {}) if self.model.learns_whole else None
        self._counts: dict[str, tuple[Hashable, dict[str, int]]] = {}
        self.start_parameters = self.model.parameter_count()
        self.epoch = self.steps = self.germinated = self.fossilized = self.pruned = self.rollbacks = 0
        self.flops: dict[str, int] = dict.fromkeys(("forward", "backward", "validation", "counterfactual"), 0)
        self.measurement = Measurement()
        """The last one, until what was decided on it has been carried out."""

    @property
    def done(self) -> bool:
        """Whether the budget is spent."""
        return self.epoch >= self.member.epochs

    def plant(self, seeds: Iterable[Planted]) -> None:
        """Before the first epoch: make these seeds part of the network, which then is one that was built so and does not grow."""
        for seed in seeds:
            self.model.plant(seed.slot, seed.blueprint, style=seed.style)
        self.snapshot = self.snapshot.with_new_fossils(self.model, self.optimizer, self.governor)

    # One epoch: planned here, trained and evaluated by an engine, concluded here

    def begin_epoch(self) -> EpochPlan:
        """Begin the next epoch: it counts from here on, and its learning rate is set."""
        rate = self.member.rate_at(self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        order = epoch_order(len(self.split), self.stream, self.epoch)
        sizes = batch_sizes(len(order), self.member.batch)
        plan = EpochPlan(epoch=self.epoch, order=order, sizes=sizes, flops=self._count_training())
        self.epoch += 1
        return plan

    def train(self, plan: EpochPlan) -> Tensor:
        """All batches of the epoch. Returns [loss, targets predicted], summed over the samples, on the device: nobody waits for it here."""
        model, device = self.model, self.split.x.device
        model.train()
        loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]  # nothing grows within an epoch
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _seed(device, self.dropout_stream(plan.epoch))
            for index in plan.order.to(device).split(plan.sizes):
                x, y = self.batch(index, plan.epoch)
                for parameter in parameters:
                    parameter.grad = None
                logits, loss = self._forward(x, y)
                loss.backward()
                if self.config.isolation == "shadow":
                    model.shadow_backward(lambda x=x, y=y: self._forward(x, y)[1])  # type: ignore[misc]
                model.clip_gradients(self.config.clip)
                self.optimizer.step()
                loss_sum += loss.detach() * len(index)
                correct += self.task.correct(logits.detach(), y).sum()
        # Gradients of the last batch would only take up memory until the next epoch.
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack((loss_sum, correct))

    def evaluate(self) -> Evaluated:
        """The network as it is and every configuration that the report needs, on val. Waits for no device."""
        wanted = wanted_of(self.model)
        reference = self.reference()
        with autocast(self.config.precision, self.split.x.device):
            return self._evaluate(self.data.val, wanted, self.run, reference)

    def _evaluate(self, split: Split, wanted: list[Configuration], run: Any, reference: list[Tensor]) -> Evaluated:
        return evaluate(self.model, run, self.task, split, self.config.eval_batch, wanted, reference)

    def conclude(self, plan: EpochPlan, sums: Array, scores: Scores, figures: Sequence[float]) -> EpochReport:
        """The end of an epoch: the governor judges, and the report says how it went.

        sums: what `train` returned. scores: on val. figures: the model's. All have been read from the device, together, by whoever
        trained.
        """
        self.steps += len(plan.sizes)
        train_loss = float(sums[0]) / len(self.split)
        now = next(iter(scores.by.values()))
        flops = {**plan.flops, **self._count_validation(tuple(scores.by))}
        self.model.cache_figures(figures)
        anomaly = self.governor.judge(train_loss, now.loss, now.accuracy, restored=self.snapshot.restored)
        if anomaly:
            self.roll_back(anomaly)
            self.model.cache_figures()
            scores = self.evaluate().read()
            flops.update({part: flops[part] + spent for part, spent in self._count_validation(tuple(scores.by)).items()})
            # Without the seeds that were alive the host may be no better than what was given up.
            now = next(iter(scores.by.values()))
            if not self.governor.ordinary(now.loss, now.accuracy):
                self.governor.begin_anew(now.loss, now.accuracy)
        else:
            self._drop_broken_seeds()
            due = self.snapshot.restored or self.epoch % self.config.governor.snapshot_every == 0
            if self.governor.healthy and due:
                self.snapshot = self._snapshot()
        self.measurement = Measurement(self._influence(), scores.by)
        for part, spent in flops.items():
            self.flops[part] += spent
        found = measured(self.model, scores.by)
        return EpochReport(
            **found,
            epoch=self.epoch,
            budget=self.member.epochs,
            steps=self.steps,
            classes=self.data.classes,
            train_loss=train_loss,
            train_accuracy=100.0 * float(sums[1]) / self.split.y.numel(),
            per_class=scores.per_class,
            learning_rate=self.member.rate_at(plan.epoch),
            initial_learning_rate=self.member.learning_rate,
            start_parameters=self.start_parameters,
            parameters=self.start_parameters + sum(seed.parameters for seed in found["seeds"]),
            flops=flops,
            germinated=self.germinated,
            rollbacks=self.rollbacks,
            rent=self.member.rent,
            anomaly=anomaly,
        )

    def dropout_stream(self, epoch: int) -> int:
        """The seed of what the forward pass draws in an epoch."""
        return stream_seed("dropout", self.seed, epoch)

    def _forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss of a batch, compiled and in the precision that the config asks for."""
        with autocast(self.config.precision, self.split.x.device):
            logits = self.run(x)
            return logits, self.task.loss(logits, y)

    def batch(self, index: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """The samples at these positions of the training split, augmented as that epoch says."""
        x, y = self.split.x[index], self.split.y[index]
        if self.member.augment:
            x = self.task.augment(x, draws(index, *augment_stream(self.seed, epoch)))
        if self.config.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y

    def reference(self, samples: int | None = None) -> list[Tensor]:
        """Training inputs that batch norms are made anew from: the same ones in every epoch, as it augments them.

        samples: at most so many; by default as many as a measurement takes. Empty where there is nothing to make anew.
        """
        if not self._recalibrates():
            return []
        chosen = self.reference_positions(samples or self.config.recalibrate).to(self.split.x.device)
        return [self.batch(index, self.epoch)[0] for index in chosen.split(batch_sizes(len(chosen), self.config.eval_batch))]

    def reference_positions(self, samples: int) -> Tensor:
        """Where these inputs are in the training split, int64, on the CPU: so many, or all that there are."""
        return epoch_order(len(self.split), stream_seed("reference", self.seed), 0)[:samples]

    def _recalibrates(self) -> bool:
        return bool(self.config.recalibrate) and self.model.has_learning_norms()

    @property
    def harvest_samples(self) -> int:
        """Training samples that the statistics of batch norms are made from in what is harvested."""
        return max(HARVEST_SAMPLES, self.config.recalibrate)

    def score(self, split: Split) -> Score:
        """The network as it would be harvested now, host and fossils, on a split. In full precision, as a plain network runs."""
        fossils = frozenset(self.model.at(Stage.FOSSILIZED))
        return self._evaluate(split, [fossils], self.model, self.reference(self.harvest_samples)).read().by[fossils]

    def _harvest_norms(self) -> dict[str, Tensor]:
        """Statistics of the batch norms of what would be harvested now, by name, so that it can be exported without the data."""
        reference = self.reference(self.harvest_samples)
        if not reference:
            return {}
        norms = set(self.model.learning_norms())
        with self.model.showing(self.model.at(Stage.FOSSILIZED)), self.model.recalibrated(reference):
            return {
                f"{path}.{name}": value.clone()
                for path, module in self.model.named_modules()
                if module in norms
                for name, value in module.named_buffers(recurse=False)
            }

    def harvest_parameters(self) -> int:
        """Parameters of host and fossils."""
        return self.start_parameters + sum(self.model.slots[slot].size() for slot in self.model.at(Stage.FOSSILIZED))

    # After the decision

    def end_epoch(self) -> list[Event]:
        """After the controller has acted: the body's tick. Returns what has happened to the seeds since the last call."""
        states = [slot.state for slot in self.model.slots.values()]
        fossilized = any(state.stage is Stage.FOSSILIZED and state.epochs_in_stage == 0 for state in states)
        if fossilized and self.governor.healthy:
            self.snapshot = self._snapshot()
        elif fossilized:
            self.snapshot = self.snapshot.with_new_fossils(self.model, self.optimizer, self.governor)
        self.model.tick()
        self._judge_anew()
        return self.drain()

    def drain(self) -> list[Event]:
        """The body's journal since the last call, counted."""
        events = self.model.drain_journal()
        stages = [event.after for event in events if isinstance(event, StageChanged)]
        self.germinated += stages.count(Stage.GERMINATED)
        self.fossilized += stages.count(Stage.FOSSILIZED)
        self.pruned += stages.count(Stage.PRUNED)
        return events

    # Safety

    def _snapshot(self) -> Snapshot:
        return Snapshot.take(self.model, self.optimizer, self.governor, self.epoch)

    def roll_back(self, reason: str) -> None:
        """Back to the last snapshot: host and fossils restored, live seeds pruned. The budget goes on."""
        live = self.model.at(*LIVE)
        for slot in live:
            self.model.prune(slot, cause="rollback")
        self.snapshot.restore(self.model, self.optimizer, self.governor)
        self.snapshot = replace(self.snapshot, restored=True)
        self.rollbacks += 1
        self.model.journal.append(RolledBack(reason=reason, to_epoch=self.snapshot.epoch, pruned=tuple(live)))

    def _influence(self) -> dict[str, tuple[float, Style]]:
        states = {id: slot.state for id, slot in self.model.slots.items()}
        return {id: (state.alpha, state.style) for id, state in states.items() if state.stage in BLENDED}

    def _judge_anew(self) -> None:
        """Where seeds have lost influence on purpose, by a decision or a ramp that one began, or have another style, let the governor go by
        what the network was measured to be without them: that it was better with them is no anomaly."""
        before, now = self.measurement, self._influence()
        lost = set()
        for id, (alpha, style) in before.influence.items():
            alpha_now, style_now = now.get(id, (0.0, style))
            if alpha_now < alpha or (alpha > 0.0 and style_now is not style):
                lost.add(id)
        if lost:
            known = before.scores.get(frozenset(before.influence) - lost)
            self.governor.begin_anew(*(() if known is None else (known.loss, known.accuracy)))
        self.measurement = Measurement()

    def _drop_broken_seeds(self) -> None:
        """Prune seeds that are not finite: without influence yet they cannot hurt the host, which goes on."""
        for slot in self.model.at(*DEVELOPING):
            if not self.model.finite(slot):
                self.model.prune(slot, cause="governor: not finite")

    # Counting

    def _count_training(self) -> dict[str, int]:
        """Operations that this epoch's training takes."""
        return self._as_before("training", self._structure(), self._training_operations)

    def _training_operations(self) -> dict[str, int]:
        forms = {id: slot.form for id, slot in self.model.slots.items()}
        forward, backward = self._per_sample(forms, backward=True)
        if self.config.isolation == "shadow" and (training := self.model.at(Stage.TRAINING)):
            again = self._per_sample({**forms, **dict.fromkeys(training, Form.TRIAL)}, backward=True)
            forward, backward = forward + again[0], backward + again[1]
        return {"forward": forward * len(self.split), "backward": backward * len(self.split)}

    def _count_validation(self, wanted: Sequence[Configuration]) -> dict[str, int]:
        """Operations of validating the network as it is, samples for its batch norms included, and of the other configurations."""
        recalibrates = self._recalibrates()
        known = (self._structure(), wanted, recalibrates)
        return self._as_before("validation", known, lambda: self._validation_operations(wanted, recalibrates))

    def _validation_operations(self, wanted: Sequence[Configuration], recalibrates: bool) -> dict[str, int]:
        slots = self.model.slots
        samples = len(self.data.val) + (min(self.config.recalibrate, len(self.split)) if recalibrates else 0)
        total = plain = self._per_sample({id: slot.form for id, slot in slots.items()})[0]
        if recalibrates:
            total = sum(self._per_sample(forms_showing(slots, on))[0] for on in wanted)
        elif len(wanted) > 1:
            # Every seed that some configuration has on runs for all of them.
            total = self._per_sample(forms_showing(slots, frozenset().union(*wanted)))[0] * len(wanted)
        return {"validation": plain * samples, "counterfactual": (total - plain) * samples}

    def _structure(self) -> Hashable:
        """What the operations of an epoch follow from, but for the configurations that are measured."""
        return tuple([(slot.form, slot.state.stage, slot.kind()) for slot in self.model.slots.values()])

    def _as_before(self, part: str, known: Hashable, operations: Callable[[], dict[str, int]]) -> dict[str, int]:
        """The operations of a part of the epoch: the same as in the last one, unless what they follow from has changed."""
        if part not in self._counts or self._counts[part][0] != known:
            self._counts[part] = known, operations()
        return self._counts[part][1]

    def _per_sample(self, forms: Mapping[str, Form], *, backward: bool = False) -> Counts:
        """Operations of the forward and of the backward pass for one sample, with the slots in these forms."""
        return per_sample(self.counted, self._seeds_counted, self.model, forms, partial(self._count, backward), backward)

    def _count(self, backward: bool) -> Counts:
        """The same of the model as it is shown now, counted on a few samples: of training if there is a backward pass, else of val."""
        split = self.split if backward else self.data.val
        x, y = split.x[:SAMPLES], split.y[:SAMPLES]
        with modes_kept(self.model):
            self.model.train(backward)
            return count(self.model, len(x), lambda: self.task.loss(self.model(x), y), backward)

    # Saving

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as tensors in plain containers. Taken between epochs."""
        return {
            "model": self.model.state_dict(),
            "harvest_norms": self._harvest_norms(),
            "optimizer": self.optimizer.state_dict(),
            "governor": self.governor.state(),
            "snapshot": self.snapshot.state(),
            "counters": {name: getattr(self, name) for name in self._COUNTERS},
            "flops": dict(self.flops),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.governor.load_state(state["governor"])
        self.snapshot = Snapshot(**state["snapshot"])
        for name in self._COUNTERS:
            setattr(self, name, state["counters"][name])
        self.flops = dict(state["flops"])

    _COUNTERS = ("epoch", "steps", "germinated", "fossilized", "pruned", "rollbacks")


def _optimizer(model: Growable, member: Member) -> torch.optim.Optimizer:
    """The member's optimiser over the host and its slots.

    All tensors of a group in one call: the same numbers as one after another, and hosts this small wait for Python alone.
    """
    groups, rate, decay = model.parameter_groups(), member.learning_rate, member.weight_decay
    match member.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, weight_decay=decay, foreach=True)
        case "sgd":
            momentum = member.momentum
            return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, weight_decay=decay, foreach=True)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 where it is asked for. Casts are not cached: a cache filled in validation would cut the next backward off."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def batch_sizes(samples: int, size: int) -> tuple[int, ...]:
    """So many samples cut into batches. A last one of a single sample joins the one before: a batch norm over vectors needs two."""
    full, rest = divmod(samples, size)
    if rest == 1 and full:
        return (size,) * (full - 1) + (size + 1,)
    return (size,) * full + ((rest,) if rest else ())


def _compiled(model: Growable, backend: str) -> Callable[[Tensor], Any]:
    """The model, compiled by the backend of that name in its first forward pass."""
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise unknown("backend of torch.compile", backend, known)
    compiled = torch.compile(model, backend=backend)

    def run(x: Tensor) -> Any:
        try:
            return compiled(x)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, torch._inductor.exc.InvalidCxxCompiler):
                raise
            reason = "needs a C++ compiler, and none was found; install g++, or leave training.compile empty"
            raise DeviceError(f"torch.compile with the backend {backend!r} {reason}") from error

    return run


def _seed(device: torch.device, seed: int) -> None:
    """Restart the global streams that a forward pass draws from. torch.manual_seed would look for every kind of device each time."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
