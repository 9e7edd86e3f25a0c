"""Isolation with a pass of its own: the loss feels the seeds in TRAINING, and they alone learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from esper.kasmina.attach.running import modes_kept, untouched
from esper.kasmina.counterfactuals import trial
from esper.kasmina.norms import tracked_norms
from esper.kasmina.ranks import Ranks, unwatched
from esper.kasmina.slot import Slots
from esper.leyline.stages import Stage


def backward(host: nn.Module, slots: Slots, ranks: Ranks | None, closure: Callable[[], Tensor]) -> Tensor | None:
    """Add to the gradients of the seeds in TRAINING what comes of a pass that shows them at their target alpha; returns its loss, or None
    when no seed is there.

    Batch norms use their running statistics, so that a seed learns what it will be judged by in a trial. Buffers and random streams are
    left as they were.
    """
    training = [slot for slot in slots.values() if slot.state.stage is Stage.TRAINING]
    if not training:
        return None
    with untouched(host), modes_kept(host), unwatched(ranks), trial(slots, [slot.id for slot in training]):
        for norm in tracked_norms(host):
            norm.training = False
        loss = closure()
        parameters = [p for slot in training for p in slot.seed_parameters() if p.requires_grad]
        # Inside, because a host that recomputes its activations runs its forward pass again here.
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
    if ranks is not None:
        grads = ranks.mean(parameters, grads)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            continue
        if parameter.grad is None:
            # In the parameter's own memory layout, which a channels-last host's gradients do not have and fused optimisers ask for.
            parameter.grad = torch.empty_like(parameter).copy_(grad)
        else:
            parameter.grad += grad
    return loss.detach()
