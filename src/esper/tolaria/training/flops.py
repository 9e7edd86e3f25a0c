"""Counting the floating-point operations of training, with torch's own counter.

Operations follow from the structure of a network and the number of samples alone, so they are counted on one small batch and
multiplied; the counter never runs inside the training loop. A seed adds its own operations to the host's and changes no others, so it
is enough to count the bare host, and each kind of seed in each slot: a network that was never seen before costs nothing to count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import Growable
from esper.kasmina.attach.running import modes_kept, untouched
from esper.kasmina.counterfactuals import shown_as
from esper.kasmina.slot import Form

SAMPLES = 2
"""How many operations are counted on."""

Counts = tuple[int, int]
"""Operations of a forward and of a backward pass."""
Known = dict[Hashable, Counts]
"""What was counted: of bare hosts, with or without a backward pass, or what seeds add to that, by what they are and where."""


def per_sample(
    hosts: Known, seeds: Known | None, model: Growable, forms: Mapping[str, Form], count: Callable[[], Counts], backward: bool
) -> Counts:
    """Operations of the forward and of the backward pass for one sample, with the slots in these forms.

    hosts, seeds: what was counted before of hosts of this architecture, and of seeds in any; what is counted now joins it. No seeds are
    given where a part of the host is frozen: it needs no gradient from what is behind it, so that what a seed adds depends on where it is.
    count: counts one sample of the model as it is shown then.
    """

    def counted(shown: Mapping[str, Form]) -> Counts:
        with shown_as(model.slots, {**dict.fromkeys(model.slots, Form.ABSENT), **shown}):
            return count()

    if backward not in hosts:
        hosts[backward] = counted({})
    bare = forward, back = hosts[backward]
    for id, form in forms.items():
        if form is not Form.ABSENT:
            slot = model.slots[id]
            # However a seed is blended in, what counts are its own operations; isolated, it gives no gradient to the features.
            features = (slot.place.shape, slot.place.example_shape[1:])
            known, where = (hosts, slot.place.path) if seeds is None else (seeds, "")
            key = (backward, where, features, slot.isolation if form is Form.ISOLATED else None, slot.kind())
            if key not in known:
                known[key] = _of_seed(model, id, form, backward) if seeds is not None else _less(counted({id: form}), bare)
            forward, back = forward + known[key][0], back + known[key][1]
    return forward, back


def _less(first: Counts, second: Counts) -> Counts:
    return first[0] - second[0], first[1] - second[1]


def _of_seed(model: Growable, id: str, form: Form, backward: bool) -> Counts:
    """What a seed adds, counted by itself on features as they come to its slot: a host around it would take several times as long."""
    slot = model.slots[id]
    features = slot.alpha.new_zeros(SAMPLES, *slot.place.example_shape[1:]).requires_grad_(backward)

    def run() -> Tensor:
        given = features.clone()  # the counter asks for tensors that come from somewhere
        blended = slot.hook(slot, (), given)
        return (given if blended is None else blended).sum()

    with shown_as(model.slots, {id: form}), modes_kept(slot):
        slot.train(backward)
        return count(slot, SAMPLES, run, backward, features)


def count(module: nn.Module, samples: int, run: Callable[[], Tensor], backward: bool, *inputs: Tensor) -> Counts:
    """Operations of one sample, by running the module as it is on some. run: returns a scalar. The module is left as it was.

    inputs: what gets a gradient in the backward pass besides its parameters.
    """
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})
    with untouched(module), counter, torch.set_grad_enabled(backward):
        loss = run()
        forward = counter.get_total_flops()
        if backward:
            parameters = [p for p in module.parameters() if p.requires_grad]
            torch.autograd.grad(loss, [*parameters, *inputs], allow_unused=True)
    return forward // samples, (counter.get_total_flops() - forward) // samples


def _convolution_backward(
    gradient: Sequence[int],
    x: Sequence[int],
    weight: Sequence[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,
    wanted: Sequence[bool],
    **_: object,
) -> int:
    """Operations of a convolution's backward pass, from shapes: for each gradient as many as forward.

    torch's own formula takes the gradient of the weight for that of a dense convolution, whatever the groups.
    """
    samples, _channels, *positions = x if transposed else gradient
    return 2 * samples * math.prod(positions) * math.prod(weight) * sum(wanted[:2])
