"""Validation: one pass over the val split that evaluates the network as it is and every counterfactual configuration beside it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Growable
from esper.kasmina.probe import evaluating
from esper.leyline.stages import BLENDED, Stage
from esper.tolaria.attribution import Configuration, configurations, interactions, shapley
from esper.tolaria.config import TrainingConfig
from esper.tolaria.data import Split
from esper.tolaria.flops import FlopLedger
from esper.tolaria.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What validation found. Accuracies in points."""

    loss: float
    accuracy: float
    per_class: tuple[float, ...]
    bare_accuracy: float | None
    harvest_accuracy: float
    harvest_loss: float
    interactions: dict[tuple[str, str], float]
    shapley: dict[str, float]
    configurations: list[Configuration]
    """Those that were evaluated, the network as it is first."""
    flops: dict[str, int] = field(default_factory=dict)


def measure(
    model: Growable,
    run: Callable[..., Any],
    task: Task,
    split: Split,
    classes: int,
    config: TrainingConfig,
    *,
    seed: int,
) -> Measurement:
    """Evaluate all configurations in stacked passes, and record each seed's contribution with the body."""
    by_stage = {slot.id: slot.life.stage for slot in model._slots()}
    blended = [id for id, stage in by_stage.items() if stage in BLENDED]
    fossils = [id for id, stage in by_stage.items() if stage is Stage.FOSSILIZED]
    trials = [id for id, stage in by_stage.items() if stage is Stage.TRAINING]
    wanted = configurations(blended, fossils, trials, config.attribution, seed)
    losses, accuracies, per_class = evaluate(model, run, task, split, classes, config.eval_batch, wanted)
    loss = dict(zip(wanted, losses, strict=True))
    accuracy = dict(zip(wanted, accuracies, strict=True))
    base = wanted[0]
    for slot in blended:
        model.record(slot, contribution=accuracy[base] - accuracy[base - {slot}])
    for slot in trials:
        model.record(slot, trial_contribution=accuracy[base | {slot}] - accuracy[base])
    full = config.attribution == "full" and blended
    return Measurement(
        loss=loss[base],
        accuracy=accuracy[base],
        per_class=per_class,
        bare_accuracy=accuracy[frozenset()] if blended else None,
        harvest_accuracy=accuracy[frozenset(fossils)],
        harvest_loss=loss[frozenset(fossils)],
        interactions=interactions(blended, accuracy),
        configurations=wanted,
        shapley=shapley(blended, accuracy.__getitem__, seed) if full else {},
    )


def evaluate(
    model: Growable,
    run: Callable[..., Any],
    task: Task,
    split: Split,
    classes: int,
    eval_batch: int,
    wanted: list[Configuration],
) -> tuple[list[float], list[float], tuple[float, ...]]:
    """Loss and accuracy of each configuration, and the accuracy by class of the first. Waits for the device once, at the end."""
    k = len(wanted)
    device = split.x.device
    sums = torch.zeros(k, 2, device=device)
    by_class = torch.zeros(2, classes, device=device)
    counted = task.kind == "classification"
    with evaluating(model):
        assert not model.training, "validation needs eval mode"
        for x, y in zip(split.x.split(max(1, eval_batch // k)), split.y.split(max(1, eval_batch // k)), strict=True):
            logits = _logits(model, run, x, wanted)
            for i, part in enumerate(logits.split(len(x))):
                sums[i, 0] += task.loss(part, y) * len(x)
                sums[i, 1] += task.correct(part, y)
            if counted:
                hits = logits[: len(x)].argmax(-1) == y
                by_class[0] += torch.bincount(y[hits], minlength=classes)
                by_class[1] += torch.bincount(y, minlength=classes)
    losses = [total / len(split) for total in sums[:, 0].tolist()]
    accuracies = [100.0 * total / split.y.numel() for total in sums[:, 1].tolist()]
    shares = (100.0 * by_class[0] / by_class[1].clamp(min=1)).tolist() if counted else []
    return losses, accuracies, tuple(shares)


def _logits(model: Growable, run: Callable[..., Any], x: Tensor, wanted: list[Configuration]) -> Tensor:
    """Logits of every configuration, one after another along the batch."""
    if len(wanted) == 1 and wanted[0] == {slot.id for slot in model._slots() if slot.life.stage in BLENDED}:
        return run(x)  # the network as it is
    with model.stacked(wanted, batch=len(x)):
        return run(x.repeat(len(wanted), *[1] * (x.dim() - 1)))


def count(
    model: Growable, task: Task, split: Split, wanted: list[Configuration], ledger: FlopLedger, architecture: Hashable
) -> dict[str, int]:
    """Operations of the plain validation pass, and of what the other configurations cost on top."""
    samples = min(2, len(split))
    x, y = split.x[:samples], split.y[:samples]

    def one() -> int:
        return ledger.per_sample(model, architecture, samples, lambda: task.loss(model(x), y), backward=False)[0]

    plain = total = one()
    if len(wanted) > 1:
        # Every seed that some configuration has on runs for all of them.
        with model.stacked([frozenset().union(*wanted)], batch=samples):
            total = one() * len(wanted)
    return {"validation": plain * len(split), "counterfactual": (total - plain) * len(split)}


@dataclass(frozen=True, slots=True)
class Score:
    """Loss, and accuracy in points, on one split."""

    loss: float
    accuracy: float


def evaluate_split(network: torch.nn.Module, task: Task, split: Split, batch: int) -> Score:
    """A plain network on a whole split."""
    sums = torch.zeros(2, device=split.x.device)
    with evaluating(network):
        for x, y in zip(split.x.split(batch), split.y.split(batch), strict=True):
            logits = network(x)
            sums[0] += task.loss(logits, y) * len(x)
            sums[1] += task.correct(logits, y)
    loss, correct = sums.tolist()
    return Score(loss / len(split), 100.0 * correct / split.y.numel())
