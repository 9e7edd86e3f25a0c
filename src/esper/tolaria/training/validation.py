"""Validation: the network as it is, and every counterfactual configuration of its seeds, on the val split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.kasmina import Growable
from esper.kasmina.attach.running import evaluating
from esper.kasmina.counterfactuals import Configuration
from esper.leyline.stages import BLENDED, LIVE, Stage
from esper.tolaria.data import Split
from esper.tolaria.tasks import Task
from esper.tolaria.training.attribution import configurations, interactions

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """One configuration on one split: loss, and accuracy in points."""

    loss: float
    accuracy: float
    hits: NDArray[np.floating] | None = None
    """Of each sample, the share of its targets that was predicted; None where that is not known."""
    targets: int = 1
    """Of one sample: 1 for an image, the tokens of a block of text."""

    @property
    def error(self) -> float | None:
        """The standard error of the accuracy, in points: how far it would be off on other samples. None if not known."""
        return None if self.hits is None else _standard_error(self.hits, self.targets)


def record_contributions(model: Growable, scores: Mapping[Configuration, Score]) -> None:
    """Tell the body what each seed brings, and how sure that is: one with influence against the network without it, one in TRAINING
    against the network as it is."""
    base = frozenset(model.at(*BLENDED))
    for slot in () if model.is_static else base:
        on, off = scores[base], scores[base - {slot}]
        model.record(slot, contribution=on.accuracy - off.accuracy, error=_error(on, off), loss=off.loss - on.loss)
    for slot in model.at(Stage.TRAINING):
        on, off = scores[base | {slot}], scores[base]
        model.record(slot, trial_contribution=on.accuracy - off.accuracy, error=_error(on, off), loss=off.loss - on.loss)


def _error(first: Score, second: Score) -> float | None:
    """The standard error of the difference of two accuracies on the same samples, in points; None if not known."""
    if first.hits is None or second.hits is None:
        return None
    return _standard_error(np.subtract(first.hits, second.hits, dtype=np.float64), first.targets)


def _standard_error(shares: NDArray[np.floating], targets: int) -> float:
    """Of the mean of shares of targets, in points; as if one target more had been the odd one out, so that it is never 0."""
    rest = shares - np.add.reduce(shares, dtype=np.float64) / len(shares)
    squares = float(np.add.reduce(rest * rest)) + 1.0 / targets**2
    return 100.0 * math.sqrt(squares) / len(shares)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluated:
    """Configurations on a split, as sums on the device not yet waited for: `read_all` fetches them, `scores` tells what they mean."""

    wanted: tuple[Configuration, ...]
    """K configurations, the network as it is first."""
    losses: Tensor
    """[K]: summed over the samples."""
    hits: Tensor
    """[K, samples]: targets of each sample that were predicted."""
    by_class: Tensor
    """[2, classes]: samples of each class that the first configuration predicted, and all of them; [2, 0] where there are no classes."""
    targets: int
    """Of one sample."""

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What has to be read, in the order in which `scores` takes it."""
        return self.losses, self.hits, self.by_class

    def scores(self, losses: Array, hits: Array, by_class: Array) -> Scores:
        """What these mean, once they have been read."""
        return Scores.of(self.wanted, losses, hits, by_class, self.targets)

    def read(self) -> Scores:
        """The scores, for a caller that has nothing else to wait for."""
        return self.scores(*read_all(self.tensors()))


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Configurations of a host on a split."""

    by: dict[Configuration, Score]
    """The network as it is first."""
    per_class: tuple[float, ...]
    """The accuracy by class of the first."""

    @classmethod
    def of(cls, wanted: Sequence[Configuration], losses: Array, hits: Array, by_class: Array, targets: int) -> Scores:
        """From the fields of `Evaluated` as they were read, whoever evaluated."""
        samples = hits.shape[1]
        found = np.add.reduce(hits, axis=1, dtype=np.float64).tolist()  # [K]
        shares = hits if targets == 1 else hits / targets
        scores = {
            on: Score(loss=total / samples, accuracy=100.0 * right / (samples * targets), hits=row, targets=targets)
            for on, total, right, row in zip(wanted, losses.tolist(), found, shares, strict=True)
        }
        return cls(scores, tuple((100.0 * by_class[0] / np.maximum(by_class[1], 1)).tolist()))


def read_all(tensors: Sequence[Tensor]) -> list[Array]:
    """The tensors' values, fetched from their device in one go: the one wait of an epoch."""
    flat = torch.cat([tensor.detach().float().flatten() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(flat, ends[:-1]), tensors, strict=True)]


def evaluate(
    model: Growable,
    run: Callable[..., Any],
    task: Task,
    split: Split,
    eval_batch: int,
    wanted: Sequence[Configuration],
    reference: Sequence[Tensor] = (),
) -> Evaluated:
    """Run each configuration on a split. Waits for no device.

    reference: training inputs from which batch norms are made anew, for each configuration by itself: statistics of one network are
    wrong for another. Without them the configurations run stacked, in one pass.
    """
    samples, device = len(split), split.x.device
    counted = task.kind == "classification"
    losses = torch.zeros(len(wanted), device=device)
    hits = torch.zeros(len(wanted), samples, device=device)
    by_class = torch.zeros(2, task.classes if counted else 0, device=device)
    passes = [[i] for i in range(len(wanted))] if reference else [list(range(len(wanted)))]
    with evaluating(model):
        assert not model.training, "validation needs eval mode"
        for rows in passes:
            size = max(1, eval_batch // len(rows))
            with model.showing(wanted[rows[0]]), model.recalibrated(reference) if reference else nullcontext():
                for start in range(0, samples, size):
                    x, y = split.x[start : start + size], split.y[start : start + size]
                    logits = _logits(model, run, x, [wanted[i] for i in rows])  # [configurations * batch, ...]
                    for i, part in zip(rows, logits.split(len(x)), strict=True):
                        losses[i] += task.loss(part, y) * len(x)
                        hits[i, start : start + len(x)] = task.correct(part, y).float()
                    if counted and rows[0] == 0:
                        right = y[logits[: len(x)].argmax(-1) == y]
                        by_class += torch.stack([torch.bincount(labels, minlength=task.classes) for labels in (right, y)])
    return Evaluated(wanted=tuple(wanted), losses=losses, hits=hits, by_class=by_class, targets=split.y.numel() // samples)


def measured(model: Growable, scores: Mapping[Configuration, Score]) -> dict[str, Any]:
    """What an EpochReport says of a growing model, from the scores of its configurations, whoever evaluated them.

    Tells the body what each of its seeds brings, so that gates and reports know.
    """
    record_contributions(model, scores)
    blended = model.at(*BLENDED)
    base, harvested = scores[frozenset(blended)], scores[frozenset(model.at(Stage.FOSSILIZED))]
    accuracy = {on: score.accuracy for on, score in scores.items()}
    seeds = model.reports()
    return {
        "val_loss": base.loss,
        "val_accuracy": base.accuracy,
        "val_error": base.error,
        "bare_accuracy": accuracy[frozenset()] if blended and not model.is_static else None,
        "harvest_accuracy": harvested.accuracy,
        "harvest_loss": harvested.loss,
        "gradients": model.host_gradients(),
        "seeds": seeds,
        "verdicts": tuple(model.verdict(seed.slot, seed) if seed.stage in LIVE else None for seed in seeds),
        "interactions": interactions(blended, accuracy),
    }


def wanted_of(model: Growable) -> list[Configuration]:
    """The configurations that a report on this model needs, the network as it is first. Of one that does not grow nothing else is asked."""
    if model.is_static:
        return [frozenset(model.at(*BLENDED))]
    return configurations(model.at(*BLENDED), model.at(Stage.FOSSILIZED), model.at(Stage.TRAINING))


def _logits(model: Growable, run: Callable[..., Any], x: Tensor, wanted: Sequence[Configuration]) -> Tensor:
    """Logits of every configuration, one after another along the batch; a single one is what the model shows already."""
    if len(wanted) == 1:
        return run(x)
    with model.stacked(wanted, batch=len(x)):
        return run(x.repeat(len(wanted), *[1] * (x.dim() - 1)))
