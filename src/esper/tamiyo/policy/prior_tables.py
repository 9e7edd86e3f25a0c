"""The prior as tensors: its chances wherever a head could matter, to be held near, and its log-chances, to start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import Head
from esper.tamiyo.observe.masks import HEAD_VALUES
from esper.tamiyo.policy.batch import ObservationBatch
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, choice_width
from esper.tamiyo.policy.prior import Prior

LEAST_CHANCE = 1e-9
"""What a prior that rules something out is taken to grant it, so that the policy can still learn otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriorTables:
    """A prior's chances in every context of the blocks op, slot and choices."""

    chances: tuple[Tensor, Tensor, Tensor]
    """[..., C, K] each."""
    negative_entropies: tuple[Tensor, Tensor, Tensor]
    """[..., C] each: the sum of p log p."""

    def __getitem__(self, hosts: Tensor) -> PriorTables:
        """Those of some hosts."""
        op, slot, choices = (each[hosts] for each in self.chances)
        of_op, of_slot, of_choices = (each[hosts] for each in self.negative_entropies)
        return PriorTables(chances=(op, slot, choices), negative_entropies=(of_op, of_slot, of_choices))


def prior_tables(prior: Prior, batch: ObservationBatch) -> PriorTables:
    """What a prior says of a batch."""
    device, shape = batch.host.device, (*batch.shape, batch.slot_count)
    choices = torch.zeros(*shape, len(HEAD_OP_PAIRS), choice_width(batch.blueprint_mask.shape[-1]), dtype=torch.float64, device=device)
    for place, (head, _) in enumerate(HEAD_OP_PAIRS):
        legal = batch.blueprint_mask.cpu().numpy() if head is Head.BLUEPRINT else np.ones(len(HEAD_VALUES[head]), dtype=np.bool_)
        chances = torch.from_numpy(prior.probabilities(head, legal)).to(device)
        choices[..., place, : chances.shape[-1]] = chances
    op, slot = (
        torch.from_numpy(prior.probabilities(head, mask.cpu().numpy())).to(device)
        for head, mask in ((Head.OP, batch.op_mask.unsqueeze(-2)), (Head.SLOT, batch.slot_mask))
    )
    choices = choices.flatten(-3, -2)
    of_op, of_slot, of_choices = (torch.special.xlogy(each, each).sum(dim=-1) for each in (op, slot, choices))
    return PriorTables(chances=(op, slot, choices), negative_entropies=(of_op, of_slot, of_choices))


def prior_logits(prior: Prior, batch: ObservationBatch) -> tuple[Tensor, Tensor]:
    """What to add to logits so that 0 stands for the prior: for op [..., 6], and for the choices [P, K]. Slots are all alike to it."""
    device, chances = batch.host.device, prior.probabilities(Head.OP, batch.op_mask.cpu().numpy())
    choices = np.ones((len(HEAD_OP_PAIRS), choice_width(batch.blueprint_mask.shape[-1])))
    for place, (head, _) in enumerate(HEAD_OP_PAIRS):
        if head is not Head.BLUEPRINT:
            own = prior.probabilities(head, np.ones(len(HEAD_VALUES[head]), dtype=np.bool_))
            choices[place, : len(own)] = own
    op, others = (torch.from_numpy(np.log(np.maximum(each, LEAST_CHANCE))).to(device, torch.float32) for each in (chances, choices))
    return op, others
