"""Every legal action of a host, and the probabilities of each head worked out in plain Python: what distributions are held against."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from esper.leyline.actions import HEADS_FOR_OP, Head, Op, matters
from esper.tamiyo.observe.masks import Masks
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, OPS_OF, VALUE_HEADS, HeadLogits, choice_size, choice_width

Logits = dict[Head, Tensor]
"""Of each head by itself: op [..., 6], slot [..., 6, S], the others [..., ops of the head, S, values]."""


def sizes(blueprints: int) -> dict[Head, int]:
    """Values of each head that is drawn last."""
    return {head: choice_size(head, blueprints) for head in VALUE_HEADS}


def packed(logits: Logits) -> HeadLogits:
    """As the network gives them; what is padded has a value that must not matter."""
    width = choice_width(logits[Head.BLUEPRINT].shape[-1])
    rows = [logits[head][..., OPS_OF[head].index(op), :, :] for head, op in HEAD_OP_PAIRS]
    padded = [torch.nn.functional.pad(row, (0, width - row.shape[-1]), value=50.0) for row in rows]
    return HeadLogits(op=logits[Head.OP], slot=logits[Head.SLOT], choices=torch.stack(padded, dim=-2))


def unpacked(logits: HeadLogits, blueprints: int) -> Logits:
    """Each head's by itself."""
    own: Logits = {Head.OP: logits.op, Head.SLOT: logits.slot}
    for head, size in sizes(blueprints).items():
        own[head] = torch.stack([logits.choices[..., HEAD_OP_PAIRS.index((head, op)), :size] for op in OPS_OF[head]], dim=-3)
    return own


def every_action(batch: ObservationBatch) -> list[tuple[int, ...]]:
    """All legal actions of one host, with idle values where a head does not matter."""
    actions = []
    for op in Op:
        if not batch.op_mask[op]:
            continue
        named = [slot for slot in range(batch.slot_count) if batch.slot_mask[op, slot]]
        slots = named if matters(Head.SLOT, op) else [Masks.idle(Head.SLOT)]
        for slot in slots:
            options = []
            for head, size in sizes(batch.blueprint_mask.shape[-1]).items():
                legal = [i for i in range(size) if head is not Head.BLUEPRINT or batch.blueprint_mask[slot, i]]
                options.append(legal if matters(head, op) else [Masks.idle(head)])
            actions += [(int(op), slot, *rest) for rest in itertools.product(*options)]
    return actions


def softmax(logits: list[float], legal: list[int]) -> dict[int, float]:
    """By hand, in double precision."""
    top = max(logits[i] for i in legal)
    weights = {i: math.exp(logits[i] - top) for i in legal}
    return {i: weight / sum(weights.values()) for i, weight in weights.items()}


def by_hand(logits: Logits, batch: ObservationBatch, action: tuple[int, ...]) -> dict[Head, dict[int, float]]:
    """The probabilities of the legal values of each head that matters for an action of one host."""
    op, slot = action[0], action[1]
    found = {}
    for head in HEADS_FOR_OP[Op(op)]:
        if head is Head.OP:
            found[head] = softmax(logits[head].tolist(), [i for i in Op if batch.op_mask[i]])
        elif head is Head.SLOT:
            found[head] = softmax(logits[head][op].tolist(), [i for i in range(batch.slot_count) if batch.slot_mask[op, i]])
        else:
            row = logits[head][OPS_OF[head].index(Op(op)), slot].tolist()
            legal = [i for i in range(len(row)) if head is not Head.BLUEPRINT or batch.blueprint_mask[slot, i]]
            found[head] = softmax(row, legal)
    return found
