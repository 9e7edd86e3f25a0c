"""What a fleet does on its device again and again: a step of all its hosts, and a measurement of many configurations.

Both work on tensors that stay where they are, so that they can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from esper.kasmina.attach.running import evaluating, modes_kept
from esper.kasmina.norms import Norm, refit, tracked_norms
from esper.kasmina.stacking.views import View
from esper.tolaria.data import Split
from esper.tolaria.training.captured import Captured
from esper.tolaria.training.config import Precision
from esper.tolaria.training.host import autocast
from esper.tolaria.training.stackable import stacked_losses

if TYPE_CHECKING:
    from esper.tolaria.training.fleet import Fleet


class Phase(NamedTuple):
    """Steps of an epoch in which the same hosts learn, on batches of one size."""

    size: int
    steps: int
    rows: frozenset[int]


def phases_of(sizes: Mapping[int, tuple[int, ...]]) -> list[Phase]:
    """The steps of an epoch, given the batches of each row: the large ones of all hosts together, for as long as each has any."""
    phases: list[Phase] = []
    at, ends = dict.fromkeys(sizes, 0), {row: len(each) for row, each in sizes.items()}
    while left := [row for row in sizes if at[row] < ends[row]]:
        size = max(sizes[row][at[row]] for row in left)
        rows = frozenset(row for row in left if sizes[row][at[row]] == size)
        for row in rows:
            at[row] += 1
        if phases and (phases[-1].size, phases[-1].rows) == (size, rows):
            phases[-1] = phases[-1]._replace(steps=phases[-1].steps + 1)
        else:
            phases.append(Phase(size, 1, rows))
    return phases


class Step:
    """One step of all hosts on batches of one size: losses, gradients, then every row moved."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        assert fleet._view is not None
        assert fleet._learner is not None
        self.view, self.shadow, self.learner = fleet._view, fleet._shadow, fleet._learner
        self.x: Tensor | None = None
        self.y: Tensor | None = None
        self.work = Captured(self._work, None if self.view.streams is not None else fleet.graphs)

    def __call__(self, x: Tensor, y: Tensor) -> None:
        if self.x is None or self.y is None:
            self.x, self.y = x, y
        else:
            self.x.copy_(x)
            self.y.copy_(y)
        self.work()

    def _work(self) -> None:
        fleet, x, y, rows = self.fleet, self.x, self.y, len(self.view)
        assert x is not None
        assert y is not None
        fleet.stack.network.train()
        fleet.stack.note_frozen()
        logits, each = self._forward(self.view, x, y)
        losses = torch.where(fleet.active, each, 0.0)
        gradients = _gradients(losses, self.view)
        if self.shadow is not None:
            gradients += self._shadow_gradients(self.shadow, x, y)
        self.learner.step(gradients)
        correct = fleet.task.correct(logits.detach(), y).view(-1, rows)
        fleet.sums += torch.stack((losses.detach() * len(correct), correct.sum(0) * fleet.active), 1)

    def _forward(self, view: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.fleet.config.precision, self.fleet.device):
            logits = view.run(x)
            return logits, stacked_losses(self.fleet.task, logits, y, len(view))

    def _shadow_gradients(self, view: View, x: Tensor, y: Tensor) -> list[list[Tensor]]:
        """Seeds in TRAINING, in a pass of their own: at their target alpha, with running statistics in the batch norms."""
        rows = (-1, len(self.view))
        x, y = (each.unflatten(0, rows).index_select(1, view.which).flatten(0, 1) for each in (x, y))
        view.copy()  # the hosts have moved since the step before
        stack = self.fleet.stack
        with modes_kept(stack.network), nullcontext() if view.streams is None else view.streams.kept():
            for norm in tracked_norms(stack.host.module):
                norm.training = False
            losses = self._forward(view, x, y)[1]
            return _gradients(torch.where(self.fleet.active.index_select(0, view.which), losses, 0.0), view)


class Measurement:
    """Models of a view on a split: batch norms made anew, then losses and hits."""

    def __init__(self, fleet: Fleet, view: View, norms: list[Norm], precision: Precision) -> None:
        self.fleet, self.view, self.norms, self.precision = fleet, view, norms, precision
        self.reference: list[Tensor] = []
        classes = fleet.task.classes if fleet.task.kind == "classification" else 0
        self.losses = torch.zeros(len(view), device=fleet.device)
        self.right = torch.zeros(len(view), classes, device=fleet.device)
        self.prepare = Captured(self._prepare, fleet.graphs)
        self.passes: dict[int, _Pass] = {}

    def run(self, split: Split, reference: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (rows,) summed over the samples, hits (rows, samples), and samples predicted by class (rows, classes)."""
        if self.reference:
            for mine, new in zip(self.reference, reference, strict=True):
                mine.copy_(new)
        else:
            self.reference = reference
        hits = torch.zeros(len(self.view), len(split), device=self.fleet.device)
        self.losses.zero_()
        self.right.zero_()
        self.prepare()
        step = max(1, self.fleet.cap // len(self.view))
        for start in range(0, len(split), step):
            x, y = split.x[start : start + step], split.y[start : start + step]
            if len(x) not in self.passes:
                self.passes[len(x)] = _Pass(self, x, y)
            hits[:, start : start + len(x)] = self.passes[len(x)](x, y)
        return self.losses, hits, self.right

    def _prepare(self) -> None:
        self.view.copy()
        if self.norms:
            with evaluating(self.fleet.stack.network), autocast(self.precision, self.fleet.device):
                refit(self.view.bound(), self.norms, self.reference)


class _Pass:
    """So many samples of a split through all models of a view."""

    def __init__(self, measurement: Measurement, x: Tensor, y: Tensor) -> None:
        self.of, self.x, self.y = measurement, x.clone(), y.clone()
        self.hits = torch.zeros(len(measurement.view), len(x), device=x.device)
        self.work = Captured(self._work, measurement.fleet.graphs)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.x.copy_(x)
        self.y.copy_(y)
        self.work()
        return self.hits

    def _work(self) -> None:
        view, task, samples = self.of.view, self.of.fleet.task, len(self.x)
        x, y = (each.unsqueeze(1).expand(samples, len(view), *each.shape[1:]).flatten(0, 1) for each in (self.x, self.y))
        with evaluating(self.of.fleet.stack.network), autocast(self.of.precision, x.device):
            logits = view.run(x)
            self.of.losses += stacked_losses(task, logits, y, len(view)).float() * samples
        self.hits.copy_(task.correct(logits, y).view(samples, len(view)).T)
        if self.of.right.shape[1]:
            found = (logits.argmax(-1) == y).view(samples, len(view)).T.float()
            self.of.right += found @ torch.nn.functional.one_hot(self.y, self.of.right.shape[1]).float()


def _gradients(losses: Tensor, view: View) -> list[list[Tensor]]:
    """Gradients of what learns in a view, by part. The losses of different hosts have no tensor in common, so their sum does for all."""
    leaves = [[part.values[name] for name in part.rows.names] for part in view.learning]
    found = iter(torch.autograd.grad(losses.sum(), [leaf for each in leaves for leaf in each], materialize_grads=True))
    return [[next(found) for _ in each] for each in leaves]
