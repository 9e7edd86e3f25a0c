"""One step of many hosts: gradients measured and clipped for each host and each seed apart, then every row moved by its own optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, optim

from esper.kasmina.gradients import step_sums
from esper.kasmina.stacking.growables import StackedGrowables
from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.views import Learning


@dataclass(slots=True, eq=False)
class Rates:
    """What the optimiser of each host goes by, (hosts, 1) each; 0 for rows without a host."""

    learning_rate: Tensor
    weight_decay: Tensor
    momentum: Tensor

    def of(self, hosts: Tensor) -> Rates:
        """Those of some hosts."""
        return Rates(*(each.index_select(0, hosts) for each in (self.learning_rate, self.weight_decay, self.momentum)))


class _Meter:
    """Measures the gradients of the hosts, or of their seeds at one slot: a table of norms with a column for each host."""

    def __init__(self, sums: Tensor, parts: Sequence[Learning]) -> None:
        self.sums, self.parts = sums, list(parts)
        tensors = max(part.rows.parameters for part in parts if not part.gate)
        self.first = [tensors if part.gate else 0 for part in parts]
        height = tensors + max((part.rows.parameters for part in parts if part.gate), default=0)
        self.present = torch.zeros(height, len(sums), dtype=torch.bool, device=sums.device)
        self.active = torch.zeros(len(sums), dtype=torch.bool, device=sums.device)

    def fill(self) -> None:
        """Note who has gradients, once the parts say which hosts theirs belong to."""
        self.present.zero_()
        for first, part in zip(self.first, self.parts, strict=True):
            self.present[first : first + part.rows.parameters].index_fill_(1, part.hosts, True)
        self.active.copy_(self.present.any(0))

    def add(self, norms: Sequence[Tensor]) -> Tensor:
        """Add a step to the meters; returns the norm of each host's gradient, or of its seed's, (hosts,).

        norms: of each part's gradients, (tensors, rows).
        """
        table = torch.zeros(self.present.shape, device=self.sums.device)
        for first, part, each in zip(self.first, self.parts, norms, strict=True):
            table[first : first + len(each)].index_copy_(1, part.hosts, each)
        total, step, peak = step_sums(table, self.present)
        self.sums[:, :5].add_(torch.where(self.active, step, 0.0).T)
        self.sums[:, 5].clamp_(min=torch.where(self.active, peak, 0.0))
        return total


class Learner:
    """Takes the steps of many hosts. No operation waits for the device, and every tensor that changes keeps its place.

    learning: what learns, of the hosts and of their seeds. clip: largest norm of a gradient, of a host and of each seed apart.
    """

    def __init__(self, stack: StackedGrowables, learning: Sequence[Learning], rates: Rates, clip: float) -> None:
        self.learning, self.rates, self.clip = list(learning), rates, clip
        by_slot: dict[str | None, list[Learning]] = {}
        for part in self.learning:
            by_slot.setdefault(part.slot, []).append(part)
        meters = {slot: stack.meters if slot is None else stack.slot_meters[slot] for slot in by_slot}
        self.meters = {slot: _Meter(meters[slot].fixed["sums"], parts) for slot, parts in by_slot.items()}

    def fill(self) -> None:
        """Take in which hosts take part, before the first step of an epoch."""
        for meter in self.meters.values():
            meter.fill()

    @torch.no_grad()
    def step(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Measure, clip and step. gradients: for each part of `learning`, those of its rows' tensors, in order."""
        norms = [torch.stack([_norms(each) for each in grads]) for grads in gradients]  # (tensors, rows) each
        scales: dict[str | None, Tensor] = {}
        for slot, meter in self.meters.items():
            total = meter.add([norm for part, norm in zip(self.learning, norms, strict=True) if part.slot == slot])
            scales[slot] = (self.clip / (total + 1e-6)).clamp(max=1.0)
        for part, grads in zip(self.learning, gradients, strict=True):
            gradient = torch.cat([each.reshape(len(each), -1) for each in grads], 1)
            gradient *= scales[part.slot].index_select(0, part.hosts)[:, None]
            _STEPS[part.rows.kind](part.rows, gradient, self.rates.of(part.hosts))


def _sgd(rows: Rows, gradient: Tensor, rates: Rates) -> None:
    """SGD with Nesterov's momentum, as torch.optim.SGD has it."""
    parameters = rows.flat
    gradient = gradient.addcmul_(parameters, rates.weight_decay)
    if rows.kept:
        momentum = rows.states["momentum_buffer"]
        momentum.mul_(rates.momentum).add_(gradient)
        gradient = gradient.addcmul_(momentum, rates.momentum)
    parameters.addcmul_(gradient, -rates.learning_rate)


def _adamw(rows: Rows, gradient: Tensor, rates: Rates) -> None:
    """AdamW, as torch.optim.AdamW has it."""
    (first, second), epsilon = rows.settings["betas"], rows.settings["eps"]
    parameters, mean, square, steps = rows.flat, rows.states["exp_avg"], rows.states["exp_avg_sq"], rows.steps
    steps += 1
    parameters.mul_(1 - rates.learning_rate * rates.weight_decay)
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    # In double precision: in the first steps 1 - 0.999 is what is left of two numbers near 1.
    size = (rates.learning_rate / (1 - torch.pow(first, steps))).to(parameters.dtype)
    root = (1 - torch.pow(second, steps)).sqrt().to(parameters.dtype)
    parameters.addcmul_(mean / (square.sqrt() / root + epsilon), -size)


_STEPS = {optim.SGD: _sgd, optim.AdamW: _adamw}


def _norms(gradient: Tensor) -> Tensor:
    """Norm of the gradient of each row, (rows,), in float32."""
    flat = gradient.reshape(len(gradient), -1)
    return torch.linalg.vector_norm(flat, dim=1, dtype=torch.promote_types(flat.dtype, torch.float32)).float()
