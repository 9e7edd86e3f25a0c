"""One host in training: its growing model, optimiser, data order, governor and counters, and the epoch that moves them on."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Growable
from esper.kasmina.attach.probe import evaluating
from esper.kasmina.norms import HARVEST_SAMPLES
from esper.leyline.errors import unknown
from esper.leyline.events import Event, RolledBack
from esper.leyline.reports import EpochReport, LifecycleConfig
from esper.leyline.stages import LIVE, Stage
from esper.tolaria.data import Data, Split, epoch_order, stream_seed
from esper.tolaria.tasks import Member, Task
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.flops import FlopLedger
from esper.tolaria.training.governor import Governor
from esper.tolaria.training.snapshot import Snapshot
from esper.tolaria.training.validation import Measurement, Score, count, evaluate, measure


class Host:
    """A host and everything that training it needs. All its randomness comes from `seed`, in separate streams."""

    def __init__(self, task: Task, data: Data, member: Member, seed: int, config: TrainingConfig, ledger: FlopLedger) -> None:
        self.task, self.data, self.member, self.seed, self.config, self.ledger = task, data, member, seed, config, ledger
        net, slots, example, self.split = task.prepare(data, member, seed)
        device = data.train.x.device
        net.to(device)
        if config.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # The embargo is a cool-down, not the rest of a short life: at most a tenth of the budget.
        embargo = max(1, min(config.lifecycle.embargo_epochs, member.epochs // 10))
        lifecycle = LifecycleConfig(
            embargo_epochs=embargo, reset_epochs=config.lifecycle.reset_epochs, auto_advance=config.lifecycle.auto_advance
        )
        growth = stream_seed("growth", seed)
        self.model = Growable(
            net, slots, example.to(device), isolation=config.isolation, gates=config.gates, lifecycle=lifecycle, seed=growth
        )
        self.optimizer = _optimizer(self.model, member)
        self.model.follow(self.optimizer)
        self.run = torch.compile(self.model, backend=_backend(config.compile)) if config.compile else self.model
        self.architecture = (task.name, tuple(example.shape[1:]), tuple(tuple(p.shape) for p in net.parameters()))
        self.governor = Governor(config.governor, data.classes)
        self.start_parameters = self.model.parameter_count()
        self.epoch = self.steps = self.germinated = self.fossilized = self.pruned = self.rollbacks = 0
        self.flops: dict[str, int] = dict.fromkeys(("forward", "backward", "validation", "counterfactual"), 0)
        self.last: EpochReport | None = None
        self.snapshot = self._snapshot()

    @property
    def done(self) -> bool:
        """Whether the budget is spent."""
        return self.epoch >= self.member.epochs

    # One epoch

    def train_epoch(self) -> EpochReport:
        """Train on the whole training split once, validate, measure every seed, and let the governor judge."""
        started = time.perf_counter()
        rate = self.member.rate_at(self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        flops = self._count_training()
        train_loss, train_accuracy = self._train()
        self.epoch += 1
        trained = time.perf_counter()
        measurement = self._measure()
        flops.update(measurement.flops)
        anomaly = self.governor.judge(train_loss, measurement.loss, measurement.accuracy)
        if anomaly:
            self.roll_back(anomaly)
            measurement = self._measure()
            flops.update({part: flops[part] + spent for part, spent in measurement.flops.items()})
        else:
            self._drop_broken_seeds()
            if self.governor.healthy and self.epoch % self.config.governor.snapshot_every == 0:
                self.snapshot = self._snapshot()
        for part, spent in flops.items():
            self.flops[part] += spent
        seconds = {"train": trained - started, "validate": time.perf_counter() - trained}
        self.last = self._report(train_loss, train_accuracy, measurement, rate, flops, seconds, anomaly)
        return self.last

    def _train(self) -> tuple[float, float]:
        """All batches of the epoch. Sums stay on the device; the only wait for it is at the end."""
        model, split, device = self.model, self.split, self.data.train.x.device
        model.train()
        loss_sum, correct = torch.zeros((), device=device), torch.zeros((), device=device)
        order = epoch_order(len(split), stream_seed("host", self.seed), self.epoch).to(device)
        with torch.random.fork_rng(devices=_cuda(device)):
            _seed(device, stream_seed("dropout", self.seed, self.epoch))
            for index in _batches(order, self.member.batch):
                x, y = self.batch(index)
                self.optimizer.zero_grad(set_to_none=True)
                with self.autocast():
                    logits = self.run(x)
                    loss = self.task.loss(logits, y)
                loss.backward()
                if self.config.isolation == "shadow":
                    model.shadow_backward(lambda x=x, y=y: self._shadow_loss(x, y))  # type: ignore[misc]
                model.clip_gradients(self.config.clip)
                self.optimizer.step()
                loss_sum += loss.detach() * len(index)
                correct += self.task.correct(logits.detach(), y).sum()
                self.steps += 1
        # Gradients of the last batch would only take up memory until the next epoch.
        self.optimizer.zero_grad(set_to_none=True)
        total, hits = torch.stack((loss_sum, correct)).tolist()
        return total / len(split), 100.0 * hits / split.y.numel()

    def _shadow_loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast():
            return self.task.loss(self.run(x), y)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at these positions of the training split, augmented as this epoch says."""
        x, y = self.split.x[index], self.split.y[index]
        if self.member.augment:
            x = self.task.augment(x, self.member, stream_seed("host", self.seed), self.epoch, index)
        if self.config.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 where it is asked for. Casts are not cached: a cache filled in validation would cut the next backward off."""
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.data.train.x.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def reference(self, samples: int | None = None) -> list[Tensor]:
        """Training inputs that batch norms are made anew from: the same ones in every epoch, as it augments them.

        samples: at most so many; by default as many as a measurement takes. Empty where there is nothing to make anew.
        """
        if not self.config.recalibrate or not self.model.learning_norms():
            return []
        chosen = epoch_order(len(self.split), stream_seed("reference", self.seed), 0)[: samples or self.config.recalibrate]
        return [self.batch(index)[0] for index in _batches(chosen.to(self.split.x.device), self.config.eval_batch)]

    def _harvest_reference(self) -> list[Tensor]:
        return self.reference(max(HARVEST_SAMPLES, self.config.recalibrate))

    def _measure(self) -> Measurement:
        reference = self.reference()
        with self.autocast():
            measured = measure(
                self.model, self.run, self.task, self.data.val, self.data.classes, self.config, seed=self.seed, reference=reference
            )
        samples = sum(map(len, reference))
        with evaluating(self.model):
            flops = count(self.model, self.task, self.data.val, measured.configurations, self.ledger, self.architecture, samples)
        return replace(measured, flops=flops)

    def score(self, split: Split) -> Score:
        """The network as it would be harvested now, host and fossils, on a split. In full precision, as a plain network runs."""
        fossils, model = frozenset(self.model.at(Stage.FOSSILIZED)), self.model
        reference = self._harvest_reference()
        scores, _ = evaluate(model, model, self.task, split, self.data.classes, self.config.eval_batch, [fossils], reference)
        return scores[fossils]

    def _harvest_norms(self) -> dict[str, Tensor]:
        """Statistics of the batch norms of what would be harvested now, by name, so that it can be exported without the data."""
        reference = self._harvest_reference()
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
        return self.start_parameters + sum(self.model.report(slot).parameters for slot in self.model.at(Stage.FOSSILIZED))

    def _report(
        self,
        train_loss: float,
        train_accuracy: float,
        measured: Measurement,
        rate: float,
        flops: dict[str, int],
        seconds: dict[str, float],
        anomaly: str,
    ) -> EpochReport:
        model = self.model
        seeds = model.reports()
        return EpochReport(
            epoch=self.epoch,
            budget=self.member.epochs,
            steps=self.steps,
            classes=self.data.classes,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            val_loss=measured.loss,
            val_accuracy=measured.accuracy,
            val_error=measured.error,
            per_class=measured.per_class,
            bare_accuracy=measured.bare_accuracy,
            harvest_accuracy=measured.harvest_accuracy,
            harvest_loss=measured.harvest_loss,
            learning_rate=rate,
            initial_learning_rate=self.member.learning_rate,
            start_parameters=self.start_parameters,
            parameters=self.start_parameters + sum(seed.parameters for seed in seeds),
            gradients=model.host_meter.read(),
            seeds=seeds,
            verdicts=tuple(model.verdict(seed.slot) if seed.stage in LIVE else None for seed in seeds),
            interactions=measured.interactions,
            shapley=measured.shapley,
            flops=flops,
            seconds=seconds,
            germinated=self.germinated,
            rollbacks=self.rollbacks,
            anomaly=anomaly,
        )

    # After the decision

    def end_epoch(self) -> list[Event]:
        """After the controller has acted: the body's tick. Returns what has happened to the seeds since the last call."""
        fossilized = [slot.id for slot in self.model._slots() if slot.life.stage is Stage.FOSSILIZED and slot.life.epochs_in_stage == 0]
        if fossilized and self.governor.healthy:
            self.snapshot = self._snapshot()
        elif fossilized:
            self.snapshot = self.snapshot.with_new_fossils(self.model, self.optimizer, self.governor)
        self.model.tick()
        return self.drain()

    def drain(self) -> list[Event]:
        """The body's journal since the last call, counted."""
        events = self.model.drain_journal()
        for event in events:
            after = getattr(event, "after", None)
            self.germinated += after is Stage.GERMINATED
            self.fossilized += after is Stage.FOSSILIZED
            self.pruned += after is Stage.PRUNED
        return events

    # Safety

    def _snapshot(self) -> Snapshot:
        return Snapshot.take(self.model, self.optimizer, self.governor, self.epoch)

    def roll_back(self, reason: str) -> None:
        """Back to the last snapshot: host and fossils restored, live seeds pruned. The budget goes on."""
        live = [report.slot for report in self.model.reports() if report.stage in LIVE]
        for slot in live:
            self.model.prune(slot, cause="rollback")
        self.snapshot.restore(self.model, self.optimizer, self.governor)
        self.rollbacks += 1
        self.model.journal.append(RolledBack(reason=reason, to_epoch=self.snapshot.epoch, pruned=tuple(live)))

    def _drop_broken_seeds(self) -> None:
        """A seed that is not finite and has no influence yet cannot hurt the host; it is pruned, and the host goes on."""
        for report in self.model.reports():
            if report.stage in (Stage.GERMINATED, Stage.TRAINING) and not report.finite:
                self.model.prune(report.slot, cause="governor: not finite")

    # Counting

    def _count_training(self) -> dict[str, int]:
        """Operations that this epoch's training takes, from one sample of the present structure."""
        n, samples = len(self.split), min(2, len(self.split))
        x, y = self.batch(torch.arange(samples, device=self.data.train.x.device))
        self.model.train()
        forward, backward = self.ledger.per_sample(
            self.model, self.architecture, samples, lambda: self.task.loss(self.model(x), y), backward=True
        )
        counts = {"forward": forward * n, "backward": backward * n}
        if self.config.isolation == "shadow" and any(r.life.stage is Stage.TRAINING for r in self.model._slots()):
            training = [slot.id for slot in self.model._slots() if slot.life.stage is Stage.TRAINING]
            with self.model.trial(*training):
                forward, backward = self.ledger.per_sample(
                    self.model, self.architecture, samples, lambda: self.task.loss(self.model(x), y), backward=True
                )
            counts["forward"] += forward * n
            counts["backward"] += backward * n
        return counts

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
        self.snapshot = Snapshot.from_state(state["snapshot"])
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


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """The order cut into batches. A last one of a single sample joins the one before: a batch norm over vectors needs two."""
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _backend(name: str) -> str:
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise unknown("backend of torch.compile", name, known)
    return name


def _seed(device: torch.device, seed: int) -> None:
    """Restart the global streams that a forward pass draws from. torch.manual_seed would look for every kind of device each time."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _cuda(device: torch.device) -> list[int]:
    return [device.index or 0] if device.type == "cuda" else []
