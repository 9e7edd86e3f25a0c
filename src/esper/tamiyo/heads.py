"""The distribution over decisions: eight heads, chosen in order, masked so that whatever is drawn is legal.

The op is drawn first, the slot given the op, and each of the other heads given both. A head has a small number of contexts, the
values that the heads before it can take: one for op, six (the ops) for slot, and ops times slots for the others. All of them are
worked out at once as a table [..., contexts, values]. So the object that draws an action also gives the probability of any other,
can be held against a prior wherever a head could matter, and can be compared with another policy exactly.

Which head matters for which op is read from HEADS_FOR_OP and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import HEADS_FOR_OP, Head, Op
from esper.leyline.config import Range, check_ranges
from esper.tamiyo.batch import HEADS, ObservationBatch
from esper.tamiyo.controller import random_stream
from esper.tamiyo.masks import PARAMETERS, Masks
from esper.tamiyo.prior import Prior

ILLEGAL = -1e30
"""Log-probability of an illegal value: its probability is exactly 0, and 0 times it is 0, which minus infinity would make a NaN."""

OPS_OF: dict[Head, tuple[Op, ...]] = {head: tuple(op for op in Op if head in HEADS_FOR_OP[op]) for head in Head}
"""For each head the ops for which it matters."""

CHOICE_HEADS: tuple[Head, ...] = tuple(head for head in Head if head not in (Head.OP, Head.SLOT))
"""The heads that are drawn last, given op and slot."""

CHOICE_OPS: tuple[Op, ...] = tuple(op for op in Op if any(op in OPS_OF[head] for head in CHOICE_HEADS))
"""The ops for which one of them matters."""

Share = Annotated[float, Range(0.0, 0.5)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """A small chance for every legal value: pi' = (1 - k eps) pi + eps over the k legal values of a head.

    Values that the policy has given up are still drawn now and then, and so can prove themselves. It belongs to training: what was
    drawn with it must be scored with it.
    """

    op: Share = 0.0
    """eps of the op head; see `for_budget`."""
    choices: Share = 0.01
    """eps of every other head."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @classmethod
    def for_budget(cls, steps: int, forced_acts: float = 0.5, choices: float = 0.01) -> Exploration:
        """For episodes of at most so many steps: at most `forced_acts` acts other than WAIT are expected that the policy did not want."""
        return cls(op=forced_acts / (steps * (len(Op) - 1)), choices=choices)

    def mix(self, head: Head, log_p: Tensor, mask: Tensor) -> Tensor:
        """log pi' of log pi [..., values]. At most half of the chances is given away, however many values are legal."""
        eps = self.op if head is Head.OP else self.choices
        if eps == 0.0:
            return log_p
        legal = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        share = (0.5 / legal).clamp(max=eps)
        # No chance is below eps, so the logarithm loses nothing by being taken last, and its gradient stays finite.
        return (log_p.exp() * (1.0 - legal * share) + share).log().masked_fill(~mask, ILLEGAL)


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities over the legal values; ILLEGAL for the others. Where nothing is legal the row has no meaning, and is finite."""
    return logits.masked_fill(~mask, ILLEGAL).log_softmax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """One head's distribution in each of its contexts. C: contexts, K: values."""

    log_p: Tensor
    """[..., C, K]: the policy's own."""
    acting: Tensor
    """[..., C, K]: the one that actions are drawn from, with exploration."""
    mask: Tensor
    """bool [..., C, K], or [1, K] where it is the same everywhere: legal values."""
    reachable: Tensor
    """bool [..., C]: contexts that a legal choice of the heads before can lead to, and in which this head matters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Actions as a distribution sees them, each head given the op and slot of the action. All is 0 where a head does not matter."""

    log_probs: Tensor
    """[..., 8]: as drawn, exploration included."""
    entropies: Tensor
    """[..., 8]: of the policy itself, in nats."""
    legal: Tensor
    """int64 [..., 8]: values that were legal."""
    matters: Tensor
    """bool [..., 8]: whether the head matters for the action's op."""

    @property
    def log_prob(self) -> Tensor:
        """[...]: log-probability of the whole action, the sum over the heads that matter."""
        return self.log_probs.sum(dim=-1)

    @property
    def normalised_entropies(self) -> Tensor:
        """[..., 8]: entropy as a share of the largest possible with so many legal values; 0 where there was no choice."""
        return self.entropies / self.legal.clamp(min=2).to(self.entropies.dtype).log()


class ActionDistribution:
    """The distribution over actions of each host (and step) of a batch.

    It is worked out in double precision: the log-probability of an action is a sum of up to eight, and a ratio of two of them is to
    be 1 within 1e-6 when nothing has changed.

    logits: for op [..., 6], for slot [..., 6, S], for the others [..., ops of the head, S, values].
    """

    def __init__(self, logits: Mapping[Head, Tensor], batch: ObservationBatch, explore: Exploration | None = None) -> None:
        self.slot_count = batch.slot_count
        self.tables = {head: self._table(head, logits[head].double(), batch, explore) for head in HEADS}

    def _table(self, head: Head, logits: Tensor, batch: ObservationBatch, explore: Exploration | None) -> Table:
        if head is Head.OP:
            logits, mask = logits.unsqueeze(-2), batch.op_mask.unsqueeze(-2)
            reachable = torch.ones_like(mask[..., 0])
        elif head is Head.SLOT:
            mask = batch.slot_mask
            reachable = batch.op_mask & _matters_table(mask.device)[:, HEADS.index(head)]
        else:
            logits = logits.flatten(-3, -2)
            # Where all values are always legal, one row serves every context.
            free = torch.ones(1, logits.shape[-1], dtype=torch.bool, device=logits.device)
            mask = torch.cat([batch.blueprint_mask for _ in OPS_OF[head]], dim=-2) if head is Head.BLUEPRINT else free
            reachable = torch.cat([batch.op_mask[..., op, None] & batch.slot_mask[..., op, :] for op in OPS_OF[head]], dim=-1)
        log_p = masked_log_softmax(logits, mask)
        return Table(log_p=log_p, acting=log_p if explore is None else explore.mix(head, log_p, mask), mask=mask, reachable=reachable)

    # Drawing and scoring

    def sample(self, uniforms: Tensor) -> Tensor:
        """Actions int64 [..., 8] from numbers [..., 8] in [0, 1), one for each head, so that what a host draws depends on it alone."""
        tables = {head: table.acting for head, table in self.tables.items()}
        return self._choose(tables, lambda row, column: _inverse_cdf(row, uniforms[..., column]))

    def mode(self) -> Tensor:
        """Actions int64 [..., 8]: the likeliest value of each head in its turn, exploration left out."""
        tables = {head: table.log_p for head, table in self.tables.items()}
        return self._choose(tables, lambda row, column: row.argmax(dim=-1))

    def _choose(self, tables: Mapping[Head, Tensor], pick: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Head by head: `pick` gets a row [..., values] of log-probabilities and the head's column."""
        op = pick(tables[Head.OP].squeeze(-2), 0)
        matters, rows = _matters_table(op.device)[op], _rows_table(op.device)[op]
        slot = pick(_row(tables[Head.SLOT], op), 1)
        slot = torch.where(matters[..., 1], slot, Masks.idle(Head.SLOT))
        chosen = [op, slot]
        for column, head in enumerate(HEADS[2:], start=2):
            value = pick(_row(tables[head], rows[..., column] * self.slot_count + slot), column)
            chosen.append(torch.where(matters[..., column], value, Masks.idle(head)))
        return torch.stack(chosen, dim=-1)

    def score(self, actions: Tensor) -> Scores:
        """What the distribution says of actions [..., 8]."""
        op, slot = actions[..., 0], actions[..., 1]
        matters, rows = _matters_table(op.device)[op], _rows_table(op.device)[op]
        # What stands in where a head does not matter may be out of its table's range.
        values = torch.where(matters, actions, 0)
        log_probs, entropies, legal = [], [], []
        for column, (head, table) in enumerate(self.tables.items()):
            context = torch.zeros_like(op) if head is Head.OP else op if head is Head.SLOT else rows[..., column] * self.slot_count + slot
            log_p = _row(table.log_p, context)
            place = (context * log_p.shape[-1] + values[..., column]).unsqueeze(-1)
            log_probs.append(table.acting.flatten(-2).gather(-1, place).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(dim=-1))
            legal.append(_row(table.mask.expand(table.log_p.shape), context).sum(dim=-1))
        return Scores(
            log_probs=torch.where(matters, torch.stack(log_probs, dim=-1), 0.0),
            entropies=torch.where(matters, torch.stack(entropies, dim=-1), 0.0),
            legal=torch.where(matters, torch.stack(legal, dim=-1), 0),
            matters=matters,
        )

    # Whole tables

    def divergence(self, before: ActionDistribution) -> Tensor:
        """[..., 8]: KL(before || this) of what actions are drawn from, exact. Their sum is the divergence of the joint distributions.

        Each head's is the mean over its contexts, by how likely `before` was to get there.
        """
        columns = []
        for head in HEADS:
            old, new = before.tables[head].acting, self.tables[head].acting
            columns.append((before._arrival(head) * (old.exp() * (old - new)).sum(dim=-1)).sum(dim=-1))
        return torch.stack(columns, dim=-1)

    def distance_from(self, prior: Mapping[Head, Tensor]) -> Tensor:
        """[..., 8]: KL(prior || policy) of each head, without exploration: its mean over the contexts in which the head could matter.

        Its gradient with respect to a head's logits is policy minus prior, which does not vanish however far apart they are.
        """
        columns = []
        for head in HEADS:
            table, chances = self.tables[head], prior[head]
            distance = (torch.special.xlogy(chances, chances) - chances * table.log_p).sum(dim=-1)
            columns.append(_mean_where(distance, table.reachable))
        return torch.stack(columns, dim=-1)

    def gaps(self) -> tuple[Tensor, Tensor]:
        """[..., 8] each: how far the likeliest value lies above the next one, in nats, and whether a context with a choice is reachable."""
        columns, could = [], []
        for head in HEADS:
            table = self.tables[head]
            free = table.reachable & (table.mask.sum(dim=-1) > 1)
            if table.log_p.shape[-1] > 1:
                first, second = table.log_p.topk(2, dim=-1).values.unbind(dim=-1)
                columns.append(_mean_where(first - second, free))
            else:
                columns.append(torch.zeros_like(free[..., 0], dtype=table.log_p.dtype))
            could.append(free.any(dim=-1))
        return torch.stack(columns, dim=-1), torch.stack(could, dim=-1)

    def op_probabilities(self) -> Tensor:
        """[..., 6]: the policy's own chance of each op."""
        return self.tables[Head.OP].log_p.squeeze(-2).exp()

    def _arrival(self, head: Head) -> Tensor:
        """[..., C]: the chance that an action drawn from this gets to each context of a head."""
        if head is Head.OP:
            return torch.ones_like(self.tables[head].acting[..., 0])
        ops = self.tables[Head.OP].acting.squeeze(-2).exp()
        if head is Head.SLOT:
            return torch.where(self.tables[head].reachable, ops, 0.0)
        wanted = list(OPS_OF[head])
        chances = ops[..., wanted, None] * self.tables[Head.SLOT].acting[..., wanted, :].exp()
        return torch.where(self.tables[head].reachable, chances.flatten(-2), 0.0)


def prior_tables(prior: Prior, batch: ObservationBatch) -> dict[Head, Tensor]:
    """The prior's chances for each head, of a shape that goes with the head's table: [..., C or 1, K]."""
    masks = {Head.OP: batch.op_mask.unsqueeze(-2), Head.SLOT: batch.slot_mask, Head.BLUEPRINT: batch.blueprint_mask}
    tables = {}
    for head in HEADS:
        mask = masks[head].cpu().numpy() if head in masks else np.ones((1, len(PARAMETERS[head])), dtype=np.bool_)
        tables[head] = torch.from_numpy(prior.probabilities(head, mask)).to(batch.host.device)
    return tables


def uniforms(seed: int, hosts: Sequence[int], step: int) -> Tensor:
    """float64 [hosts, 8]: what each host draws its decision with at a step; it depends on nothing but seed, host and step."""
    return torch.from_numpy(np.stack([random_stream(seed, host, step, "policy").random(len(HEADS)) for host in hosts]))


@cache
def _matters_table(device: torch.device) -> Tensor:
    """bool [6, 8]: HEADS_FOR_OP as a tensor."""
    # Made outside of inference mode, whoever asks first: it is used in training too.
    with torch.inference_mode(False):
        return torch.tensor([[head in HEADS_FOR_OP[op] for head in HEADS] for op in Op], device=device)


@cache
def _rows_table(device: torch.device) -> Tensor:
    """int64 [6, 8]: the place of each op among those for which a head matters; 0 where it does not."""
    with torch.inference_mode(False):
        return torch.tensor([[OPS_OF[head].index(op) if op in OPS_OF[head] else 0 for head in HEADS] for op in Op], device=device)


def _row(table: Tensor, context: Tensor) -> Tensor:
    """[..., K] of a table [..., C, K] at a context [...]."""
    index = context[..., None, None].expand(*context.shape, 1, table.shape[-1])
    return table.gather(-2, index).squeeze(-2)


def _inverse_cdf(log_p: Tensor, uniform: Tensor) -> Tensor:
    """int64 [...]: the first value at which the summed chances exceed the uniform number. One of chance 0 is never drawn."""
    summed = log_p.double().exp().cumsum(dim=-1)
    total = summed[..., -1:]
    # Rounding may bring the product up to the total, which no sum exceeds.
    aim = torch.minimum(uniform.double().unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return (summed > aim).int().argmax(dim=-1)


def _mean_where(values: Tensor, where: Tensor) -> Tensor:
    """Mean over the last dimension of what is marked; 0 where nothing is."""
    return torch.where(where, values, 0.0).sum(dim=-1) / where.sum(dim=-1).clamp(min=1)
