"""The distribution over decisions: eight heads, chosen in order, masked so that whatever is drawn is legal.

The op is drawn first, the slot given the op, and the other heads, the choices, given both. A head has a small number of contexts, the
values that the heads before it can take: one for op, six (the ops) for slot, and for the choices each slot with each op for which they
matter. The network gives the logits of all contexts at once. So the object that draws an action also gives the probability of any
other, can be held against a prior wherever a head could matter, and can be compared with another policy exactly.

Heads are handled in three blocks, op, slot and choices, because a tensor operation costs more than the few numbers it is made for.
Which head matters for which op is read from HEADS_FOR_OP and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import HEADS_FOR_OP, Head, Op
from esper.leyline.config import Range, check_ranges
from esper.tamiyo.controllers.controller import random_stream
from esper.tamiyo.observe.masks import HEAD_VALUES, Masks
from esper.tamiyo.policy.batch import HEADS, Index, ObservationBatch

ILLEGAL = -1e30
"""Log-probability of an illegal value: its probability is exactly 0, and 0 times it is 0, which minus infinity would make a NaN."""

OPS_OF: dict[Head, tuple[Op, ...]] = {head: tuple(op for op in Op if head in HEADS_FOR_OP[op]) for head in Head}
"""For each head the ops for which it matters."""

VALUE_HEADS: tuple[Head, ...] = HEADS[2:]
"""The heads that are drawn last, given op and slot."""

HEAD_OP_PAIRS: tuple[tuple[Head, Op], ...] = tuple((head, op) for head in VALUE_HEADS for op in OPS_OF[head])
"""Each choice with each op for which it matters: with the slots, the contexts of the choices."""

FORCED_ACTS = 0.5
"""Acts in an episode that exploration may bring about by itself; see `Exploration.for_budget`."""


def choice_size(head: Head, blueprints: int) -> int:
    """How many values a head has that is chosen last, in a policy with so many blueprints."""
    return blueprints if head is Head.BLUEPRINT else len(HEAD_VALUES[head])


def choice_width(blueprints: int) -> int:
    """K: the values of the largest of the heads that are chosen last; the others are padded to it."""
    return max(choice_size(head, blueprints) for head in VALUE_HEADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """A small probability for every legal value: pi' = (1 - k eps) pi + eps over the k legal values of a head.

    Values that the policy has given up are still drawn now and then, and so can prove themselves. It belongs to training: what was
    drawn with it must be scored with it.
    """

    op: Annotated[float, Range(0.0, 0.5)] = 0.0
    """eps of the op head; see `for_budget`."""
    choices: Annotated[float, Range(0.0, 0.5)] = 0.01
    """eps of each of the other seven heads."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @classmethod
    def for_budget(cls, steps: int) -> Exploration:
        """For episodes of at most so many steps: at most FORCED_ACTS acts other than WAIT are expected that the policy did not want."""
        return cls(op=FORCED_ACTS / (steps * (len(Op) - 1)))

    def mix(self, head: Head, log_p: Tensor, mask: Tensor) -> Tensor:
        """log pi' of log pi [..., values]. At most half of the probability is given away, however many values are legal.

        All choices are mixed at once, as Head.BLUEPRINT.
        """
        eps = self.op if head is Head.OP else self.choices
        if eps == 0.0:
            return log_p
        legal = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        share = (0.5 / legal.to(log_p.dtype)).clamp(max=eps)
        # No probability is below eps, so the logarithm loses nothing by being taken last, and its gradient stays finite.
        return (log_p.exp() * (1.0 - legal * share) + share).log().masked_fill(~mask, ILLEGAL)


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities over the legal values; ILLEGAL for the others. Where nothing is legal the row has no meaning, and is finite."""
    legal = logits.masked_fill(~mask, ILLEGAL)
    shifted = legal - legal.detach().amax(dim=-1, keepdim=True)
    # torch's own log_softmax takes four times as long on rows as short as these.
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadLogits:
    """The network's logits in every context. S: slots; P: HEAD_OP_PAIRS; K: choice_width."""

    op: Tensor
    """[..., 6]: of each op."""
    slot: Tensor
    """[..., 6, S]: of each slot, given the op."""
    choices: Tensor
    """[..., S, P, K]: of each value of a head that is chosen last, given slot and op; what is padded to K is not read."""

    def __getitem__(self, index: Index) -> HeadLogits:
        """The part at an index of hosts, or of hosts and steps."""
        return HeadLogits(op=self.op[index], slot=self.slot[index], choices=self.choices[index])


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


class Block:
    """Heads that are drawn together: logits [..., C, K] of their contexts C, legal values [..., C, K], reachable contexts [..., C].

    A context is reachable if legal choices of the heads before lead to it, and if the heads matter in it. The contexts of the choices
    are pairs of slot and HEAD_OP_PAIRS, the pairs running fastest: C = S * P.

    Worked out in double precision: the log-probability of an action is a sum of up to eight, and the ratio of two of them is to be 1
    within 1e-6 when nothing has changed.
    """

    def __init__(self, head: Head, logits: Tensor, mask: Tensor, reachable: Tensor, explore: Exploration | None) -> None:
        self.head, self.logits, self.mask, self.reachable, self.explore = head, logits, mask, reachable, explore

    @cached_property
    def log_p(self) -> Tensor:
        """[..., C, K]: the policy's own log-probabilities."""
        return masked_log_softmax(self.logits.double(), self.mask)

    @cached_property
    def acting(self) -> Tensor:
        """[..., C, K]: those that actions are drawn from."""
        return self._mixed(self.log_p, self.mask)

    def rows(self, contexts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log_p, acting and mask, each [..., n, K], of contexts [..., n] alone."""
        index = contexts.unsqueeze(-1).expand(*contexts.shape, self.logits.shape[-1])
        mask = self.mask.gather(-2, index)
        log_p = masked_log_softmax(self.logits.gather(-2, index).double(), mask)
        return log_p, self._mixed(log_p, mask), mask

    def _mixed(self, log_p: Tensor, mask: Tensor) -> Tensor:
        return log_p if self.explore is None else self.explore.mix(self.head, log_p, mask)


class ActionDistribution:
    """The distribution over actions of each host (and step) of a batch."""

    def __init__(self, logits: HeadLogits, batch: ObservationBatch, explore: Exploration | None = None) -> None:
        known = _tables(logits.op.device)
        op_mask, slot_mask = batch.op_mask, batch.slot_mask
        self.op = Block(Head.OP, logits.op.unsqueeze(-2), op_mask.unsqueeze(-2), torch.ones_like(op_mask[..., :1]), explore)
        self.slot = Block(Head.SLOT, logits.slot, slot_mask, op_mask & known.matters[:, 1], explore)
        # A pair can be reached in the slots that its op may name: [..., S, P].
        reachable = (slot_mask & op_mask.unsqueeze(-1))[..., known.pair_op, :].transpose(-1, -2)
        mask = _choice_mask(batch.blueprint_mask, logits.choices.shape[-1])
        self.choices = Block(Head.BLUEPRINT, logits.choices.flatten(-3, -2), mask.flatten(-3, -2), reachable.flatten(-2), explore)
        self._known = known

    # Drawing and scoring

    def sample(self, uniforms: Tensor) -> Tensor:
        """Actions int64 [..., 8] from numbers [..., 8] in [0, 1), one for each head, so that what a host draws depends on it alone."""
        return self._choose(uniforms)

    def mode(self) -> Tensor:
        """Actions int64 [..., 8]: the likeliest value of each head in its turn, exploration left out."""
        return self._choose(None)

    def _choose(self, uniforms: Tensor | None) -> Tensor:
        def pick(block: Block, contexts: Tensor, columns: slice) -> Tensor:
            log_p, acting, _ = block.rows(contexts)
            return log_p.argmax(dim=-1) if uniforms is None else _inverse_cdf(acting, uniforms[..., columns])

        op = pick(self.op, torch.zeros_like(self.op.reachable, dtype=torch.int64), slice(0, 1))
        slot = pick(self.slot, op, slice(1, 2))
        matters = self._known.matters[op.squeeze(-1)]
        slot = torch.where(matters[..., 1:2], slot, Masks.idle(Head.SLOT))
        choices = pick(self.choices, self._choice_contexts(op, slot), slice(2, None))
        return torch.where(matters, torch.cat([op, slot, choices], dim=-1), self._known.idle)

    def score(self, actions: Tensor) -> Scores:
        """What the distribution says of actions [..., 8]."""
        matters = self._known.matters[actions[..., 0]]
        # What stands in where a head does not matter may be out of its range.
        values = torch.where(matters, actions, 0)
        log_probs, entropies, legal = [], [], []
        for (log_p, acting, mask), own in zip(self._rows(actions), (values[..., :1], values[..., 1:2], values[..., 2:]), strict=True):
            log_probs.append(acting.gather(-1, own.unsqueeze(-1)).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(dim=-1))
            legal.append(mask.sum(dim=-1))
        return Scores(
            log_probs=torch.where(matters, torch.cat(log_probs, dim=-1), 0.0),
            entropies=torch.where(matters, torch.cat(entropies, dim=-1), 0.0),
            legal=torch.where(matters, torch.cat(legal, dim=-1), 0),
            matters=matters,
        )

    def chances(self, actions: Tensor) -> Tensor:
        """[..., 8, V]: the probability of each value of each head, as drawn from, given op and slot of actions [..., 8]. V is the most
        values that a head has; 0 beyond those of its own, and no meaning where it does not matter."""
        rows = [acting.exp() for _, acting, _ in self._rows(actions)]
        width = max(row.shape[-1] for row in rows)
        return torch.cat([torch.nn.functional.pad(row, (0, width - row.shape[-1])) for row in rows], dim=-2)

    def likeliest(self, actions: Tensor) -> Tensor:
        """int64 [..., 8]: the likeliest value of each head given op and slot of actions [..., 8]; no meaning where it does not matter."""
        return torch.cat([log_p.argmax(dim=-1) for log_p, _, _ in self._rows(actions)], dim=-1)

    def preference(self, actions: Tensor) -> Tensor:
        """[...]: how far actions [..., 8] lie behind the mode, in nats: 0 for what `mode` takes, less for anything else.

        It is summed over op, slot and blueprint, of each the log-probability minus that of the likeliest value in its place, given the
        heads before. So it orders actions as the mode does, which looks at one head after another, and not by their joint probability:
        that of a seed is shared among all slots and blueprints, however good each is.
        """
        matters, gaps = self._known.matters[actions[..., 0]], []
        for place, (log_p, _, _) in enumerate(self._rows(actions)):
            first = log_p[..., 0, :]  # of the choices the first is the blueprint
            own = first.gather(-1, torch.where(matters[..., place], actions[..., place], 0).unsqueeze(-1)).squeeze(-1)
            gaps.append(torch.where(matters[..., place], own - first.amax(dim=-1), 0.0))
        return torch.stack(gaps).sum(dim=0)

    def _rows(self, actions: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """log_p, acting and mask of each block, [..., heads of the block, K], in the contexts that ops and slots of actions lead to."""
        op, slot = actions[..., :1], actions[..., 1:2]
        contexts = (torch.zeros_like(op), op, self._choice_contexts(op, slot))
        return [block.rows(at) for block, at in zip(self._blocks, contexts, strict=True)]

    # Everything that could be drawn

    def divergence(self, before: ActionDistribution) -> Tensor:
        """[..., 8]: KL(before || this) of what actions of a batch are drawn from, exact. Their sum is that of the joint distributions.

        Each head's is the mean over its contexts, by how likely `before` was to get there.
        """
        return self.divergence_from(before.tables)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """[..., C, K] for each block: the log-probabilities that actions are drawn from."""
        return self.op.acting, self.slot.acting, self.choices.acting

    def divergence_from(self, tables: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """[..., 8]: the divergence, by the other distribution's tables on the same batch."""
        ops = tables[0].exp().squeeze(-2)
        pairs = (ops.unsqueeze(-1) * tables[1].exp())[..., self._known.pair_op, :].transpose(-1, -2).flatten(-2)
        arrivals = (torch.ones_like(ops[..., :1]), ops, pairs)
        parts = []
        for old, new, arrival in zip(tables, self._blocks, arrivals, strict=True):
            distance = (old.exp() * (old - new.acting)).sum(dim=-1)
            parts.append(torch.where(new.reachable, arrival * distance, 0.0))
        return self._by_head(*parts)

    def distance_from(self, prior: Sequence[Tensor]) -> Tensor:
        """[..., 8]: KL(prior || policy) of each head, without exploration: its mean over the contexts in which the head could matter.

        prior: its probabilities [..., C, K] for each block; see `prior_tables`.
        Its gradient with respect to a head's logits is policy minus prior, which does not vanish however far apart they are.
        """
        parts, counts = [], []
        for block, p in zip(self._blocks, prior, strict=True):
            distance = torch.special.xlogy(p, p).sum(dim=-1) - (p * block.log_p).sum(dim=-1)
            parts.append(torch.where(block.reachable, distance, 0.0))
            counts.append(block.reachable.double())
        return self._by_head(*parts) / self._by_head(*counts).clamp(min=1.0)

    def gaps(self) -> tuple[Tensor, Tensor]:
        """[..., 8] each: how far the likeliest value lies above the next one, in nats, and whether a context with a choice is reachable."""
        parts, counts = [], []
        for block in self._blocks:
            free = block.reachable & (block.mask.sum(dim=-1) > 1)
            top = block.log_p.topk(min(2, block.log_p.shape[-1]), dim=-1).values
            parts.append(torch.where(free, top[..., 0] - top[..., -1], 0.0))
            counts.append(free.double())
        total = self._by_head(*counts)
        return self._by_head(*parts) / total.clamp(min=1.0), total > 0.0

    def op_probabilities(self) -> Tensor:
        """[..., 6]: the policy's own probability of each op."""
        return self.op.log_p.squeeze(-2).exp()

    @property
    def _blocks(self) -> tuple[Block, Block, Block]:
        return self.op, self.slot, self.choices

    def _choice_contexts(self, op: Tensor, slot: Tensor) -> Tensor:
        """int64 [..., 6]: the context of each choice after op and slot [..., 1]; any of them where it does not matter."""
        return slot * len(HEAD_OP_PAIRS) + self._known.pair_of[op.squeeze(-1)]

    def _by_head(self, op: Tensor, slot: Tensor, choices: Tensor) -> Tensor:
        """[..., 8]: sums over the contexts of each head of figures [..., C]."""
        of_pairs = choices.unflatten(-1, (-1, len(HEAD_OP_PAIRS))).sum(dim=-2)
        return torch.cat([op.sum(dim=-1, keepdim=True), slot.sum(dim=-1, keepdim=True), of_pairs @ self._known.pair_head], dim=-1)


def uniforms(seed: int, hosts: Sequence[int], step: int) -> Tensor:
    """float64 [hosts, 8]: what each host draws its decision with at a step; it depends on nothing but seed, host and step."""
    return torch.from_numpy(np.stack([random_stream("policy", seed, host, step).random(len(HEADS)) for host in hosts]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tables:
    """HEADS_FOR_OP and what follows from it, as tensors."""

    matters: Tensor
    """bool [6, 8]: whether a head matters for an op."""
    idle: Tensor
    """int64 [8]: what stands in where a head does not matter."""
    pair_of: Tensor
    """int64 [6, choices]: the pair of an op and a choice; 0 where the choice does not matter."""
    pair_op: Tensor
    """int64 [P]: the op of each pair."""
    pair_head: Tensor
    """float64 [P, choices]: 1 where a pair is of that choice."""


@cache
def _tables(device: torch.device) -> _Tables:
    # Made outside of inference mode, whoever asks first: they are used in training too.
    with torch.inference_mode(False):
        return _Tables(
            matters=torch.tensor([[head in HEADS_FOR_OP[op] for head in HEADS] for op in Op], device=device),
            idle=torch.tensor([Masks.idle(head) for head in HEADS], device=device),
            pair_of=torch.tensor(
                [[HEAD_OP_PAIRS.index((head, op)) if (head, op) in HEAD_OP_PAIRS else 0 for head in VALUE_HEADS] for op in Op],
                device=device,
            ),
            pair_op=torch.tensor([int(op) for _, op in HEAD_OP_PAIRS], device=device),
            pair_head=torch.tensor(
                [[float(head is each) for each in VALUE_HEADS] for head, _ in HEAD_OP_PAIRS], dtype=torch.float64, device=device
            ),
        )


def _choice_mask(blueprint_mask: Tensor, width: int) -> Tensor:
    """bool [..., S, P, K]: the legal values of each pair in each slot, from what can grow there [..., S, B]."""
    blueprints = blueprint_mask.shape[-1]
    own = _own_values(blueprints, width, blueprint_mask.device)
    mask = own.expand(*blueprint_mask.shape[:-1], *own.shape).clone()
    for place, (head, _) in enumerate(HEAD_OP_PAIRS):
        if head is Head.BLUEPRINT:
            mask[..., place, :blueprints] = blueprint_mask
    return mask


@cache
def _own_values(blueprints: int, width: int, device: torch.device) -> Tensor:
    """bool [P, K]: the values that the head of each pair has at all; the rest is padding."""
    with torch.inference_mode(False):  # as the tables
        columns = torch.arange(width, device=device)
        return torch.stack([columns < choice_size(head, blueprints) for head, _ in HEAD_OP_PAIRS])


def _inverse_cdf(log_p: Tensor, uniform: Tensor) -> Tensor:
    """int64 [...]: the first value at which the summed probabilities exceed the uniform number; never one of probability 0."""
    summed = log_p.exp().cumsum(dim=-1)
    total = summed[..., -1:]
    # Rounding may bring the product up to the total, which no sum exceeds.
    aim = torch.minimum(uniform.double().unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return (summed > aim).int().argmax(dim=-1)
