"""Counting the floating-point operations of training, with torch's own counter.

Operations follow from the structure of a network and the number of samples alone, so they are counted on one small batch and
multiplied; the counter never runs inside the training loop. A seed adds its own operations to the host's and changes no others, so it
is enough to count the bare host, and each kind of seed in each slot: a network that was never seen before costs nothing to count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import Growable
from esper.kasmina.attach.probe import untouched
from esper.kasmina.counterfactuals import shown_as
from esper.kasmina.slot import Form

Counts = tuple[int, int]
"""Operations of a forward and of a backward pass."""
Known = dict[Hashable, Counts]
"""What was counted of networks of one architecture: of the bare host, and of it with one seed, by slot, form and kind."""


def per_sample(known: Known, model: Growable, forms: Mapping[str, Form], count: Callable[[], Counts], backward: bool) -> Counts:
    """Operations of the forward and of the backward pass for one sample, with the slots in these forms.

    known: what was counted before; what is counted now joins it. count: counts one sample of the model as it is shown then.
    """

    def counted(key: Hashable, shown: Mapping[str, Form]) -> Counts:
        if key not in known:
            with shown_as(model.slots, {**dict.fromkeys(model.slots, Form.ABSENT), **shown}):
                known[key] = count()
        return known[key]

    bare = forward, back = counted(backward, {})
    for id, form in forms.items():
        if form is not Form.ABSENT:
            slot = model.slots[id]
            # However a seed is blended in, what counts are its own operations; isolated, it gives no gradient to the features.
            alone = counted((backward, slot.place.path, form is Form.ISOLATED, slot.kind()), {id: form})
            forward, back = forward + alone[0] - bare[0], back + alone[1] - bare[1]
    return forward, back


def count(model: Growable, samples: int, run: Callable[[], Tensor], backward: bool) -> Counts:
    """Operations of one sample, by running the model as it is on some. run: returns a scalar. The model is left as it was."""
    counter = FlopCounterMode(display=False)
    with untouched(model), counter, torch.set_grad_enabled(backward):
        loss = run()
        forward = counter.get_total_flops()
        if backward:
            parameters = [p for p in model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)
    return forward // samples, (counter.get_total_flops() - forward) // samples
