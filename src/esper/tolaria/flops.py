"""Counting the floating-point operations of training, with torch's own counter.

Operations follow from the structure of a network and the number of samples alone, so they are counted on one small batch for each
structure and multiplied; the counter never runs inside the training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import Growable
from esper.kasmina.probe import untouched


class FlopLedger:
    """Operations per sample of each structure that a host has had, counted once and remembered."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, int]] = {}

    def per_sample(self, model: Growable, key: Hashable, samples: int, run: Callable[[], Tensor], *, backward: bool) -> tuple[int, int]:
        """Operations of the forward and of the backward pass for one sample.

        run: runs the model on `samples` samples and returns a scalar. The model is left as it was.
        """
        signature = (structure(model), key, backward)
        if signature not in self._known:
            self._known[signature] = self._count(model, samples, run, backward)
        return self._known[signature]

    def _count(self, model: Growable, samples: int, run: Callable[[], Tensor], backward: bool) -> tuple[int, int]:
        counter = FlopCounterMode(display=False)
        with untouched(model), counter, torch.set_grad_enabled(backward):
            loss = run()
            forward = counter.get_total_flops()
            if backward:
                parameters = [p for p in model.parameters() if p.requires_grad]
                torch.autograd.grad(loss, parameters, allow_unused=True)
        return forward // samples, (counter.get_total_flops() - forward) // samples


def structure(model: Growable) -> tuple[Hashable, ...]:
    """What decides how much a pass through the model costs: for each slot its place, stage, blueprint and style."""
    return tuple((slot.place.path, slot.life.stage, slot.life.blueprint, slot.life.style, slot.form) for slot in model._slots())
