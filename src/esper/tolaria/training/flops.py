"""Counting the floating-point operations of training, with torch's own counter.

Operations follow from the structure of a network and the number of samples alone, so they are counted on one small batch and
multiplied; the counter never runs inside the training loop. A seed adds its own operations to the host's and changes no others, so it
is enough to count the bare host, and each kind of seed in each slot: a network that was never seen before costs nothing to count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import Growable
from esper.kasmina.attach.probe import untouched
from esper.kasmina.slot import Form

Counts = tuple[int, int]
"""Operations of a forward and of a backward pass."""


def per_sample(
    known: dict[Hashable, Counts], model: Growable, architecture: Hashable, samples: int, run: Callable[[], Tensor], backward: bool
) -> Counts:
    """Operations of the forward and of the backward pass for one sample, with every slot in the form it has now.

    known: what was counted before; what is counted now joins it. architecture: what the host is, the same for hosts that cost the same.
    run: runs the model on `samples` samples and returns a scalar. The model is left as it was.
    """

    def counted(*key: Hashable) -> Counts:
        signature = (architecture, backward, key)
        if signature not in known:
            known[signature] = _count(model, samples, run, backward)
        return known[signature]

    with model.bare():
        bare = forward, back = counted()
    active = [slot for slot in model.slots.values() if slot.form is not Form.ABSENT]
    for slot in active:
        with model.without(*(other.id for other in active if other is not slot)):
            alone = counted(slot.place.path, slot.form, repr(slot.seed), slot.gating is not None)
        forward, back = forward + alone[0] - bare[0], back + alone[1] - bare[1]
    return forward, back


def _count(model: Growable, samples: int, run: Callable[[], Tensor], backward: bool) -> Counts:
    counter = FlopCounterMode(display=False)
    with untouched(model), counter, torch.set_grad_enabled(backward):
        loss = run()
        forward = counter.get_total_flops()
        if backward:
            parameters = [p for p in model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)
    return forward // samples, (counter.get_total_flops() - forward) // samples
