"""The prior as tensors: its probabilities wherever a head could matter, to be held near, and their logarithms, to start from."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.observe.masks import HEAD_VALUES, BoolArray
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, choice_width

LEAST_PROBABILITY = 1e-9
"""What a prior that rules something out is taken to grant it, so that the policy can still learn otherwise."""


def prior_tables(prior: Prior, batch: ObservationBatch) -> list[Tensor]:
    """The prior's probabilities in every context of a batch: [..., C, K] for each of the blocks op, slot and choices of `heads`."""
    found = (
        prior.probabilities(Head.OP, batch.op_mask.unsqueeze(-2).cpu().numpy()),
        prior.probabilities(Head.SLOT, batch.slot_mask.cpu().numpy()),
        _choices(prior, batch.blueprint_mask.cpu().numpy()),
    )
    op, slot, choices = (torch.from_numpy(each).to(batch.host.device) for each in found)
    return [op, slot, choices.flatten(-3, -2)]


def prior_logits(prior: Prior, batch: ObservationBatch) -> tuple[Tensor, Tensor]:
    """What to add to logits so that 0 stands for the prior: for op [..., 6], and for the choices [P, K]. Slots are all alike to it."""
    bits, ops, choices = _logits(prior, batch.blueprint_mask.shape[-1], batch.op_mask.device)
    return ops[(batch.op_mask * bits).sum(dim=-1)], choices


@cache
def _logits(prior: Prior, blueprints: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """On the device: the number 2^i of each op, [6]; the logits of the ops, [64, 6], by the sum of the numbers of those that are legal;
    and the logits of the choices."""
    masks = np.array([legal[::-1] for legal in product((False, True), repeat=len(Op))])  # row 0b000001 has the first op alone
    choices = _choices(prior, np.ones(blueprints, dtype=np.bool_))
    choices[[head is Head.BLUEPRINT for head, _ in HEAD_OP_PAIRS]] = 1.0  # blueprints are all alike to it, as slots are
    found = [np.log(np.maximum(each, LEAST_PROBABILITY)) for each in (prior.probabilities(Head.OP, masks), choices)]
    # Made outside of inference mode, whoever asks first: they are used in training too.
    with torch.inference_mode(False):
        ops, values = (torch.from_numpy(each).to(device, torch.float32) for each in found)
        return 2 ** torch.arange(len(Op), device=device), ops, values


def _choices(prior: Prior, blueprints: BoolArray) -> NDArray[np.float64]:
    """[..., P, K]: the prior of each pair of head and op, where blueprints [..., B] can grow."""
    found = np.zeros((*blueprints.shape[:-1], len(HEAD_OP_PAIRS), choice_width(blueprints.shape[-1])))
    for place, (head, _) in enumerate(HEAD_OP_PAIRS):
        own = prior.probabilities(head, blueprints if head is Head.BLUEPRINT else np.ones(len(HEAD_VALUES[head]), dtype=np.bool_))
        found[..., place, : own.shape[-1]] = own
    return found
