"""Forked search: the same host once more, with one other decision at one moment, and the policy's own from there on.

What becomes of a host follows from its seed and from what is decided. So a fork is a second host of the same seed that decides alike up
to the moment, and how the two end tells what the other decision was worth, with the noise of one host and not that of all hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline.actions import Head, Op, matters
from esper.leyline.events import HostStarted
from esper.simic.learning.dataset import allowed
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.repeated import Repeated
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.simic.rewards import RewardStep
from esper.tamiyo.controllers.controller import random_stream
from esper.tamiyo.observe.masks import Masks
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import HEAD_OP_PAIRS, ActionDistribution, HeadLogits
from esper.tamiyo.policy.policy import Acted, Policy

SEARCHED: tuple[Op, ...] = tuple(op for op in Op if op is not Op.SET_ALPHA_TARGET)
"""Ops that are tried. A target of alpha other than full influence leads nowhere by itself, so one such decision shows nothing."""
SEARCHED_HEADS = (Head.OP, Head.SLOT, Head.BLUEPRINT)
"""Heads whose values are tried; the policy's likeliest value stands in the others."""
UNIFORM = 0.55
"""Share of the draws, of slot and blueprint, that are made among all legal values alike; the others are the policy's."""
TRIES = 12
"""Draws for each alternative that is wanted, until it counts as not there."""
ANY_STEP = 0.25
"""Share of the moments that may be steps in which the policy waits. What it does instead of waiting in one epoch it often does in the next
anyway: such forks ended within 0.8 points of their hosts (std), those that grew another seed than the policy within 4.4."""
PATIENCE = 6
"""Steps after which any other moment may be such a step too: a policy that always waits is to find something else as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Which decision a host tries: at the first step from `step` on in which the policy does not wait, or from `latest` on in any, the
    alternative number `rank`, or the next where another fork of the host has come to the same step and takes that one. Where there are
    not so many, it goes on to a step that has them."""

    host: int
    """The place of the host that it is a fork of."""
    step: int
    latest: int
    rank: int


OWN = ("reward", "weight", "where", "candidates", "scores", "present", "preferred")
"""The tensors of a search besides what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search:
    """Episodes that a policy played by its likeliest decisions, and how hosts ended when one of these was another.

    A moment is a step of an episode at which something else was tried. Its candidates are what the policy did, which comes first, and what
    forks did. C: the most candidates of a moment.
    """

    observations: ObservationBatch
    """[hosts, steps]."""
    reward: Tensor
    """[hosts, steps]: what each step of the episodes themselves earned."""
    weight: Tensor
    """[hosts, steps]: 1 for a step that happened, 0 for padding."""
    where: Tensor
    """int64 [moments, 2]: host and step of each."""
    candidates: Tensor
    """int64 [moments, C, 8]: actions; where a moment has fewer, its first once more."""
    scores: Tensor
    """float64 [moments, C]: what the harvested network was worth in the end, in points after rent."""
    present: Tensor
    """bool [moments, C]: which candidates there are."""
    preferred: Tensor
    """float64 [moments, C]: what the policy that searched thought of the candidates; see `preferences`."""

    def __len__(self) -> int:
        return len(self.weight)

    def part(self, hosts: Tensor) -> Search:
        """Some of the hosts, by their numbers int64 [hosts], with the moments that they have; steps behind the last moment are kept."""
        number = torch.full((len(self),), -1, dtype=torch.int64, device=hosts.device)
        number[hosts] = torch.arange(len(hosts), device=hosts.device)
        kept = (number[self.where[:, 0]] >= 0).nonzero().squeeze(1)
        where = self.where[kept].clone()
        where[:, 0] = number[where[:, 0]]
        return Search(
            observations=self.observations[hosts],
            reward=self.reward[hosts],
            weight=self.weight[hosts],
            where=where,
            candidates=self.candidates[kept],
            scores=self.scores[kept],
            present=self.present[kept],
            preferred=self.preferred[kept],
        )

    def to(self, device: torch.device) -> Search:
        """The same on another device."""
        return Search(observations=self.observations.to(device), **{name: getattr(self, name).to(device) for name in OWN})

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, as a checkpoint holds it."""
        own = {name: getattr(self, name) for name in OWN}
        return {**own, **{f"observations.{name}": tensor for name, tensor in self.observations.tensors().items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Search:
        """What `tensors` gave."""
        seen = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith("observations.")}
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("observations.")}
        return cls(observations=ObservationBatch(**seen), **own)


def preferences(logits: HeadLogits, observations: ObservationBatch, where: Tensor, candidates: Tensor) -> Tensor:
    """float64 [moments, C]: what a policy with these logits [hosts, steps] thinks of candidates: how far each lies behind its mode."""
    count = candidates.shape[1]
    host, step = where.repeat_interleave(count, dim=0).unbind(dim=1)
    distribution = ActionDistribution(logits[host, step], observations[host, step])
    return distribution.preference(candidates.flatten(0, 1)).unflatten(0, (-1, count))


def planned(steps: Sequence[int], moments: int, alternatives: int, generator: np.random.Generator) -> list[Fork]:
    """The forks of hosts with so many steps each: a few moments of every host, early ones more often than late, and as many alternatives
    at each. Of two moments twice as late one is half as likely: what is decided first decides most of what follows. No fork waits for the
    policy to act until the last step, after which nothing trains."""
    forks = []
    for host, length in enumerate(steps):
        odds = 1.0 / np.arange(2.0, length + 2.0)
        drawn = sorted(generator.choice(length, size=min(moments, length), replace=False, p=odds / odds.sum()).tolist())
        latest = [step if generator.random() < ANY_STEP else max(step, min(step + PATIENCE, length - 2)) for step in drawn]
        for step, last in zip(drawn, latest, strict=True):
            forks += [Fork(host=host, step=step, latest=last, rank=rank) for rank in range(alternatives)]
    return forks


class ForkDecider(PolicyDecider):
    """The likeliest decisions of a policy for hosts and their forks, each of which departs from that once.

    The hosts have the first places and are kept in the buffer; the forks have those behind them, in their order.
    """

    def __init__(self, policy: Policy, seed: int, forks: Sequence[Fork], buffer: RolloutBuffer, repeated: Repeated | None = None) -> None:
        super().__init__(policy, seed, deterministic=True, buffer=buffer, repeated=repeated)
        self.hosts, self.forks = buffer.hosts, forks
        self.taken: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By the number of a fork: the step at which it departed, and its action."""

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """All hosts begin together, with nothing remembered."""
        self.taken = {}
        return super().begin(started)

    def changed(self, places: Sequence[int], batch: ObservationBatch, acted: Acted) -> Acted:
        """What the policy decided, with other actions for the forks whose time has come."""
        due = [row for row, place in enumerate(places) if self._is_due(place, batch.op_mask[row], int(acted.actions[row, 0]))]
        if not due:
            return acted
        at, index = torch.tensor(due), torch.tensor([places[row] for row in due], device=self.policy.device)
        h, c = self.state.actor
        _, distribution, _ = self.policy.choose(batch[at].to(self.policy.device), (h[index], c[index]), None)
        actions = acted.actions.clone()
        used: dict[int, set[int]] = {}
        for row, chances in zip(due, Chances.of(distribution, batch[at]), strict=True):
            number = places[row] - self.hosts
            fork, own = self.forks[number], tuple(actions[row].tolist())
            others = used.setdefault(fork.host, set())
            rank = next(rank for rank in count(fork.rank) if rank not in others)
            found = chances.alternatives(own, rank + 1, random_stream("fork", self.seed, fork.host, self.step))
            if len(found) > rank:
                others.add(rank)
                self.taken[number] = self.step, found[rank]
                actions[row] = torch.tensor(found[rank])
        return replace(acted, actions=actions)

    def _is_due(self, place: int, legal: Tensor, op: int) -> bool:
        """Whether it is a fork that departs now, where these ops are legal and the policy would take this one."""
        number = place - self.hosts
        if number < 0 or number in self.taken or int(legal.sum()) < 2:
            return False
        fork = self.forks[number]
        return self.step >= (fork.latest if op == Op.WAIT else fork.step)

    def keep(self, places: Sequence[int], batch: ObservationBatch, acted: Acted) -> None:
        """Fill the buffer with what the hosts themselves did."""
        rows = [row for row, place in enumerate(places) if place < self.hosts]
        if rows:
            index = torch.tensor(rows)
            own = replace(acted, actions=acted.actions[index], log_prob=acted.log_prob[index], value=acted.value[index])
            super().keep([places[row] for row in rows], batch[index], own)

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Fill the buffer with what the hosts themselves earned."""
        super().earned({place: reward for place, reward in rewards.items() if place < self.hosts}, ended)

    def search(self, rollout: Rollout, scores: Sequence[float]) -> Search:
        """What came out, given the scores of hosts and forks in the order of their places."""
        moments: dict[tuple[int, int], dict[tuple[int, ...], tuple[tuple[int, ...], float]]] = {}
        for number, (step, action) in sorted(self.taken.items()):
            host = self.forks[number].host
            # On a GPU a fork is its host but for rounding, and now and then it comes to another state: what the host could not have done,
            # or did itself, tells nothing of the host.
            seen = rollout.observations[host : host + 1, step]
            if bool(rollout.weight[host, step]) and bool(allowed(seen, torch.tensor([action]))):
                own = tuple(rollout.actions[host, step].tolist())
                found = moments.setdefault((host, step), {_searched(own): (own, scores[host])})
                found.setdefault(_searched(action), (action, scores[self.hosts + number]))
        rows = [(where, list(found.values())) for where, found in sorted(moments.items()) if len(found) > 1]
        most = max((len(found) for _, found in rows), default=1)
        padded = [found + [found[0]] * (most - len(found)) for _, found in rows]
        where = torch.tensor([where for where, _ in rows], dtype=torch.int64).view(-1, 2)
        candidates = torch.tensor([[action for action, _ in found] for found in padded], dtype=torch.int64).view(-1, most, len(HEADS))
        seen = rollout.observations.to(self.policy.device)
        with torch.no_grad():
            preferred = preferences(self.policy.logits(seen), seen, where.to(seen.host.device), candidates.to(seen.host.device))
        return Search(
            observations=rollout.observations.map(torch.clone),
            reward=rollout.reward.clone(),
            weight=rollout.weight.clone(),
            where=where,
            candidates=candidates,
            preferred=preferred.to(rollout.reward.device),
            scores=torch.tensor([[score for _, score in found] for found in padded], dtype=torch.float64).view(-1, most),
            present=torch.tensor([[place < len(found) for place in range(most)] for _, found in rows], dtype=torch.bool).view(-1, most),
        )


def _searched(action: Sequence[int]) -> tuple[int, ...]:
    """What tells one candidate of a moment from another."""
    return tuple(action[HEADS.index(head)] for head in SEARCHED_HEADS)


Probabilities = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Chances:
    """What could be tried in one state, and how likely a policy finds it. S: slots; P: HEAD_OP_PAIRS; K: values of the largest head."""

    op_mask: NDArray[np.bool_]
    """[6]."""
    slot_mask: NDArray[np.bool_]
    """[6, S]."""
    blueprint_mask: NDArray[np.bool_]
    """[S, B]."""
    slots: Probabilities
    """[6, S]."""
    choices: Probabilities
    """[S, P, K]."""
    _pairs: Mapping[tuple[Head, Op], int] = field(default_factory=lambda: {pair: place for place, pair in enumerate(HEAD_OP_PAIRS)})

    @classmethod
    def of(cls, distribution: ActionDistribution, batch: ObservationBatch) -> list[Chances]:
        """Those of each state of a batch [hosts] on the CPU."""
        _, slots, choices = (table.exp().cpu().numpy() for table in distribution.tables)
        choices = choices.reshape(len(choices), batch.slot_count, len(HEAD_OP_PAIRS), -1)
        masks = (batch.op_mask.numpy(), batch.slot_mask.numpy(), batch.blueprint_mask.numpy())
        rows = zip(*masks, slots, choices, strict=True)
        return [cls(op_mask=op, slot_mask=slot, blueprint_mask=blueprint, slots=s, choices=c) for op, slot, blueprint, s, c in rows]

    def alternatives(self, own: tuple[int, ...], wanted: int, random: np.random.Generator) -> list[tuple[int, ...]]:
        """At most so many different actions besides the policy's own, in the order in which they are drawn: fewer where there are fewer."""
        ops = [op for op in SEARCHED if self.op_mask[op]]
        found = {_searched(own): own}
        for _ in range(TRIES * wanted):
            if len(found) > wanted:
                break
            action = self._drawn(ops[random.integers(len(ops))], random)
            found.setdefault(_searched(action), action)
        return [action for action in found.values() if action is not own]

    def _drawn(self, op: Op, random: np.random.Generator) -> tuple[int, ...]:
        """An action with that op."""
        action = {head: Masks.idle(head) for head in HEADS}
        action[Head.OP] = int(op)
        if matters(Head.SLOT, op):
            slot = action[Head.SLOT] = _draw(self.slot_mask[op], self.slots[op], random)
            for head in HEADS[2:]:
                if matters(head, op):
                    chances = self.choices[slot, self._pairs[head, op]]
                    mask = self.blueprint_mask[slot]
                    drawn = head is Head.BLUEPRINT
                    action[head] = _draw(mask, chances[: len(mask)], random) if drawn else int(chances.argmax())
        return tuple(action.values())


def _draw(mask: NDArray[np.bool_], chances: Probabilities, random: np.random.Generator) -> int:
    """A legal value: all alike, or by how likely the policy finds them."""
    uniform = mask / mask.sum()
    wanted = np.where(mask, chances, 0.0)
    mixed = UNIFORM * uniform + (1.0 - UNIFORM) * wanted / max(wanted.sum(), 1e-12)
    return int(random.choice(len(mask), p=mixed / mixed.sum()))
