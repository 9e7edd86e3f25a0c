"""One step of many hosts: gradients measured and clipped for each host and each seed apart, then every row moved by its own optimiser.

The number of operations does not depend on what there is to learn: all of it is in one vector, and which of its numbers belong to which
host is written in tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, optim

from esper.kasmina.gradients import step_sums
from esper.kasmina.stacking.growables import StackedGrowables
from esper.kasmina.stacking.packed import Packed
from esper.kasmina.stacking.rows import sent
from esper.kasmina.stacking.storage import Segments
from esper.kasmina.stacking.views import Learning


@dataclass(slots=True, eq=False)
class Rates:
    """What the optimiser of each host goes by, (hosts,) each; 0 for rows without a host."""

    learning_rate: Tensor
    weight_decay: Tensor
    momentum: Tensor

    def of(self, hosts: Tensor) -> Rates:
        """Those of some hosts, int64 (n,)."""
        return Rates(*(each.index_select(0, hosts) for each in (self.learning_rate, self.weight_decay, self.momentum)))


class Learner:
    """Takes the steps of many hosts. No operation waits for the device, and every tensor that changes keeps its place.

    A unit is what is measured and clipped by itself: a host, or its seed at one slot together with its gate.

    learning: what learns, of the hosts and of their seeds: all parts of the stack's storage up to some part, in any order.
    clip: largest norm of a unit's gradient.
    """

    def __init__(self, stack: StackedGrowables, learning: Sequence[Learning], rates: Rates, clip: float) -> None:
        storage = stack.storage
        assert storage is not None
        at = {id(part): number for number, part in enumerate(storage.parts)}
        self.order = sorted(range(len(learning)), key=lambda part: at[id(learning[part].rows)])
        self.learning = [learning[part] for part in self.order]
        assert [at[id(part.rows)] for part in self.learning] == list(range(len(learning))), "some part before another does not learn"
        self.rates, self.clip = rates, clip
        self.segments = segments = Segments([part.rows for part in self.learning], stack.device)
        rows, elements = segments.first_row[-1], segments.elements
        self.row_of = segments.row_of_elements()
        levels: list[str | None] = [None, *stack.slots]
        self.levels = [levels.index(part.slot) for part in self.learning]
        self.first = self._first_tensors()
        height = max(first + part.rows.parameters for first, part in zip(self.first, self.learning, strict=True))
        self.sums = stack.sums.flatten(0, 1)
        """(units, figures of a meter): hosts, then seeds slot by slot."""
        self.shape = (height, len(self.sums))
        self._ints, self._bools = Packed(torch.int64, stack.device), Packed(torch.bool, stack.device)
        for size in (height * len(self.sums), rows, rows):
            self._ints.add(size)
        self._bools.add(height * len(self.sums))
        self.cells, self.unit_of, self.host_of = self._ints.make()
        """Of each cell of the table of norms its segment, and of each row its unit and its host."""
        self.present = self._bools.make()[0].view(self.shape)
        """bool (tensors, units): which cells belong to a tensor."""
        self.active = torch.zeros(len(self.sums), 1, device=stack.device)
        """1 for units that are there."""
        self.norms = torch.zeros(len(segments) + 1, device=stack.device)
        """Of each segment, and 0 for tensors that are not there or never learn."""
        rule, kept = _RULES[storage.parts[0].kind], {key: state[:elements] for key, state in storage.states.items()}
        self.optimizer = rule(storage.flat[:elements], kept, storage.steps[:rows], self.row_of, storage.parts[0].settings)

    def _first_tensors(self) -> list[int]:
        """Where in its unit's column of the table a part's norms begin: gates come below the largest of the slot's seeds."""
        tallest: dict[int, int] = {}
        for level, part in zip(self.levels, self.learning, strict=True):
            if not part.gate:
                tallest[level] = max(part.rows.parameters, tallest.get(level, 0))
        return [tallest[level] if part.gate else 0 for level, part in zip(self.levels, self.learning, strict=True)]

    def fill(self) -> None:
        """Take in whose each row is, before `activate` and the first step of an epoch."""
        cells, unit_of, host_of = self._ints.staged
        table, present = cells.reshape(self.shape), self._bools.staged[0].reshape(self.shape)
        table.fill(len(self.segments))
        present.fill(False)
        hosts = len(self.rates.learning_rate)
        for at, (level, first, part) in enumerate(zip(self.levels, self.first, self.learning, strict=True)):
            tensors, mine = len(part.rows.names), slice(*self.segments.first_row[at : at + 2])
            host_of[mine] = part.hosts
            unit_of[mine] = units = host_of[mine] + level * hosts
            numbers = np.arange(*self.segments.first_segment[at : at + 2]).reshape(tensors, len(part.rows))
            table[first : first + tensors, units] = numbers
            present[first : first + part.rows.parameters, units] = True
        self._ints.write()
        self._bools.write()

    def activate(self, hosts: Tensor) -> None:
        """Let these hosts, bool (hosts,), learn in the steps that follow; what belongs to the others stays as it is."""
        self.active.copy_((self.present.any(0) & hosts.repeat(len(self.sums) // len(hosts)))[:, None])
        self.optimizer.fill(self.rates.of(self.host_of), hosts.index_select(0, self.host_of))

    @torch.no_grad()
    def step(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Measure, clip and step. gradients: for each part of `learning`, those of its rows' tensors, in order."""
        gradient = torch.cat([each.reshape(-1) for each in chain.from_iterable(gradients[part] for part in self.order)])
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        torch.sqrt(self.segments.sums(wide.square()), out=self.norms[:-1])
        norms = self.norms.index_select(0, self.cells).view(self.shape)
        total = torch.linalg.vector_norm(norms, dim=0)
        step, peak = step_sums(norms, total, self.present)
        self.sums[:, :-1].addcmul_(step.T, self.active)
        self.sums[:, -1].clamp_(min=peak)
        scale = (self.clip / (total + 1e-6)).clamp(max=1.0).index_select(0, self.unit_of)
        gradient *= scale.index_select(0, self.row_of)
        self.optimizer.step(gradient)


class _Rule(ABC):
    """How an optimiser steps a vector of parameters that belong to rows, each with rates of its own.

    states: what it keeps, of the same shape. steps: (rows,), how often each was stepped. row_of: of each parameter its row.
    settings: of the optimiser, alike for all hosts.
    """

    def __init__(self, parameters: Tensor, states: dict[str, Tensor], steps: Tensor, row_of: Tensor, settings: dict[str, Any]) -> None:
        self.parameters, self.states, self.steps, self.row_of, self.settings = parameters, states, steps, row_of, settings
        self.make()

    @abstractmethod
    def make(self) -> None:
        """Have tensors for the rates."""

    @abstractmethod
    def fill(self, rates: Rates, active: Tensor) -> None:
        """Take in the rates of an epoch, (rows,) each, and which rows move at all, bool (rows,)."""

    @abstractmethod
    def step(self, gradient: Tensor) -> None:
        """Move the parameters; the gradient is used up."""

    def spread(self, figures: Tensor) -> Tensor:
        """Figures of rows, (rows,), as those of their parameters."""
        return figures.index_select(0, self.row_of)


class _SGD(_Rule):
    """SGD with Nesterov's momentum, as torch.optim.SGD has it."""

    def make(self) -> None:
        """Have tensors for the rates: of each parameter weight decay, momentum, and learning rate with a minus."""
        self.factors = self.parameters.new_zeros(3, len(self.parameters))

    def fill(self, rates: Rates, active: Tensor) -> None:
        """Take in the rates of an epoch, (rows,) each, and which rows move at all, bool (rows,)."""
        rest = (0.0, 1.0, 0.0)  # with these, and without a gradient, nothing changes
        for into, each, still in zip(self.factors, (rates.weight_decay, rates.momentum, -rates.learning_rate), rest, strict=True):
            into.copy_(self.spread(torch.where(active, each, still)))

    def step(self, gradient: Tensor) -> None:
        """Move the parameters; the gradient is used up."""
        decay, momentum, rate = self.factors
        gradient.addcmul_(self.parameters, decay)
        if self.states:
            buffer = self.states["momentum_buffer"]
            buffer.mul_(momentum).add_(gradient)
            gradient.addcmul_(buffer, momentum)
        self.parameters.addcmul_(gradient, rate)


class _AdamW(_Rule):
    """AdamW, as torch.optim.AdamW has it."""

    def make(self) -> None:
        """Have tensors for the rates: of each parameter what a step leaves of it, how far its mean moves and what it leaves of its mean
        square; of each row the learning rate with a minus, and whether it moves."""
        self.left, self.towards, self.second = self.parameters.new_zeros(3, len(self.parameters))
        self.rate, self.moves = self.parameters.new_zeros(len(self.steps)), torch.zeros_like(self.steps)
        self.betas = sent(torch.tensor(self.settings["betas"], dtype=torch.float64)[:, None], self.steps.device)

    def fill(self, rates: Rates, active: Tensor) -> None:
        """Take in the rates of an epoch, (rows,) each, and which rows move at all, bool (rows,)."""
        first, second = self.settings["betas"]
        self.moves.copy_(active)
        self.rate.copy_(-rates.learning_rate * active)
        self.left.copy_(self.spread(torch.where(active, 1 - rates.learning_rate * rates.weight_decay, 1.0)))
        self.towards.copy_(self.spread((1 - first) * active.to(self.rate.dtype)))
        self.second.copy_(self.spread(torch.where(active, second, torch.ones_like(self.rate))))

    def step(self, gradient: Tensor) -> None:
        """Move the parameters; the gradient is used up."""
        (_, second), mean, square = self.settings["betas"], self.states["exp_avg"], self.states["exp_avg_sq"]
        self.steps += self.moves
        # In double precision: in the first steps 1 - 0.999 is what is left of two numbers near 1.
        first_left, second_left = 1 - torch.pow(self.betas, self.steps.clamp(min=1))  # (rows,) each
        mean.lerp_(gradient, self.towards)
        square.mul_(self.second).addcmul_(gradient, gradient, value=1 - second)
        root = square.sqrt().div_(self.spread(second_left.sqrt().to(square.dtype))).add_(self.settings["eps"])
        self.parameters.mul_(self.left).addcmul_(mean / root, self.spread((self.rate / first_left).to(root.dtype)))


_RULES: dict[type[optim.Optimizer], type[_Rule]] = {optim.SGD: _SGD, optim.AdamW: _AdamW}
