"""Expert iteration: a policy searches by forks, learns to prefer what its forks showed to be better, and searches again from there.

A moment has candidates, what the policy did and what forks did in its place, and each has a score: points of the network harvested in the
end, after rent. The policy learns to prefer each by as much more than when it searched as it turned out better,

    loss = KL(softmax(preferences then + scores / temperature) || softmax(preferences now)),

over the candidates of the moment. So where nothing is better than anything else it goes on as it was, and does not come to take them for
the same; what is better is preferred more with every search that says so. How sure it was counts up to a point alone (`SUREST`). A
preference is what the likeliest decision is taken by, so the policy that is examined is the one that learns. No critic, no credit
assignment: a fork differs from its host in one decision, and so does what becomes of them. In every step the policy is held near what it
was, by KL(before || now).

Beside it the critic learns what the hosts earned by the reward, which PPO goes on from and watchers look at.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from esper.leyline.errors import LearningError
from esper.simic.learning.expert_config import ExpertConfig
from esper.simic.learning.forks import Search, preferences
from esper.simic.learning.optimizer import check_finite, load_optimizer, make_optimizer, minimise, optimizer_state, set_rate
from esper.simic.learning.popart import follow_returns
from esper.simic.learning.ppo_metrics import explained_variance, mean_of
from esper.simic.learning.rollout import discounted
from esper.tamiyo.policy.batch import HEADS
from esper.tamiyo.policy.heads import ILLEGAL, ActionDistribution
from esper.tamiyo.policy.policy import Policy, reset_heads
from esper.tolaria.data.streams import generator

FINAL_RATE = 0.1
"""Share of the learning rate that is left at the end of a run."""
SUREST = 3.0
"""Nats by which a policy is believed, at most, that one candidate is better than another: what is 20 times as likely. One that is surer,
and wrong, would take many searches to learn of it."""


# The formulas


def wanted(preferred: Tensor, scores: Tensor, present: Tensor, temperature: float) -> Tensor:
    """[moments, C]: how likely each candidate should be: as it was preferred, and e times that for each `temperature` points ahead."""
    return (preferred.clamp(min=-SUREST) + scores / temperature).masked_fill(~present, ILLEGAL).softmax(dim=-1)


def search_loss(preferences: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """[moments]: KL(target || softmax(preferences)) over the candidates that are present."""
    log_p = preferences.masked_fill(~present, ILLEGAL).log_softmax(dim=-1)
    return (torch.special.xlogy(target, target) - torch.where(present, target * log_p, 0.0)).sum(dim=-1)


# Learning


class ExpertLearner:
    """A policy with everything that learning goes on from: optimiser, the searches of the newest rounds, and the seed of all chance.

    rounds: updates in all, over which the learning rate falls.
    """

    def __init__(self, policy: Policy, config: ExpertConfig, rounds: int, seed: int = 0) -> None:
        self.policy, self.config, self.rounds, self.seed = policy, config, rounds, seed
        self.optimizer = make_optimizer(policy.parameter_groups(config.weight_decay), config.learning_rate)
        self.searches: list[Search] = []
        self.updates = 0

    def update(self, search: Search) -> dict[str, float]:
        """Learn from one more search and those before it that are kept; returns the figures by their full names.

        search_loss, anchor_loss, value_loss: means over the steps of the optimiser. gain: of hosts that nothing is learned from, how many
        points the candidate that the policy now prefers is ahead of what it did, mean over their moments; `best` the same of the best
        candidate, which is flattered by chance.

        Raises LearningError when something in it is not finite; the policy is of no use then.
        """
        try:
            return self._update(search)
        except FloatingPointError as error:
            raise LearningError(
                f"update {self.updates + 1} of the policy went wrong: {error}; what was saved is intact, "
                "go on with a lower expert.learning_rate or fewer expert.epochs"
            ) from error

    def _update(self, search: Search) -> dict[str, float]:
        config, rate = self.config, self._rate()
        self.searches = [*self.searches, search][-config.window :]
        first = self.updates + 1 - len(self.searches)
        parts = [self._split(len(each), first + number) for number, each in enumerate(self.searches)]
        returns = discounted(search.reward * search.weight, config.gamma)
        follow_returns(self.policy.value_head, returns.to(self.policy.device), search.weight.to(self.policy.device), rate=0.1)
        set_rate(self.optimizer, rate)
        for group, present in zip(self.optimizer.param_groups, self.policy.parameter_groups(config.weight_decay), strict=True):
            group["weight_decay"] = present["weight_decay"]
        before = copy.deepcopy(self.policy).requires_grad_(False)
        tally: list[Tensor] = []
        for number in range(config.epochs):
            for part in self._batches([learned for learned, _ in parts], number):
                losses = self._losses(part, before)
                minimise(self.optimizer, losses[0] + config.anchor * losses[1] + losses[2], config.max_gradient_norm)
                tally.append(torch.stack(losses).detach())
        means = torch.stack(tally).mean(dim=0)
        check_finite({"a loss of the update": means})
        names = ("search_loss", "anchor_loss", "value_loss")
        found = {f"train/{name}": float(value) for name, value in zip(names, means, strict=True)}
        held = [each.part(out).to(self.policy.device) for each, (_, out) in zip(self.searches, parts, strict=True) if len(out)]
        newest = search.to(self.policy.device)
        self.updates += 1
        return found | {"train/learning_rate": rate, **self._gains(held), **self._moved(newest, before)}

    def _rate(self) -> float:
        """The learning rate of the next update: it falls in a line to a tenth at the end of the run."""
        done = min(1.0, self.updates / max(1, self.rounds - 1))
        return self.config.learning_rate * (1.0 - (1.0 - FINAL_RATE) * done)

    def _split(self, hosts: int, update: int) -> tuple[Tensor, Tensor]:
        """The hosts of an update's search that are learned from, and those that are held out: always the same."""
        order = torch.randperm(hosts, generator=generator("held out", self.seed, update))
        count = min(hosts - 1, round(self.config.held_out * hosts))
        return order[count:].sort().values, order[:count].sort().values

    def _batches(self, learned: list[Tensor], epoch: int) -> Iterator[Search]:
        """All hosts to learn from once, in a new order, those of a batch from one search."""
        random = generator("expert", self.seed, self.updates, epoch)
        batches = []
        for number, hosts in enumerate(learned):
            shuffled = hosts[torch.randperm(len(hosts), generator=random)]
            batches += [(number, chosen) for chosen in shuffled.split(self.config.batch)]
        for place in torch.randperm(len(batches), generator=random).tolist():
            number, chosen = batches[place]
            yield self.searches[number].part(chosen).to(self.policy.device)

    def _losses(self, part: Search, before: Policy) -> tuple[Tensor, Tensor, Tensor]:
        """Scalars: what the forks showed, the distance from the policy before, and the critic's error."""
        logits = self.policy.logits(part.observations)
        with torch.no_grad():
            tables = ActionDistribution(before.logits(part.observations), part.observations).tables
        distance = ActionDistribution(logits, part.observations).divergence_from(tables).sum(dim=-1)
        searched = logits.op.new_zeros((), dtype=torch.float64)
        if len(part.where):
            target = wanted(part.preferred, part.scores, part.present, self.config.temperature)
            found = preferences(logits, part.observations, part.where, part.candidates)
            searched = search_loss(found, target, part.present).mean()
        goal = self.policy.value_head.normalise(discounted(part.reward * part.weight, self.config.gamma))
        error = 0.5 * (self.policy.normalised_values(part.observations) - goal).square()
        return searched, mean_of(distance, part.weight), mean_of(error, part.weight).double()

    @torch.no_grad()
    def _gains(self, held: Iterable[Search]) -> dict[str, float]:
        """What the policy has gained on hosts that it did not learn from, and the most that their forks showed."""
        gains, bests = [], []
        for each in held:
            if len(each.where):
                logits = self.policy.logits(each.observations)
                seen = preferences(logits, each.observations, each.where, each.candidates).masked_fill(~each.present, ILLEGAL)
                own = each.scores[:, 0]
                gains.append(each.scores.gather(1, seen.argmax(dim=-1, keepdim=True)).squeeze(1) - own)
                bests.append(each.scores.masked_fill(~each.present, ILLEGAL).amax(dim=-1) - own)
        if not gains:
            return {}
        return {"search/gain": float(torch.cat(gains).mean()), "search/best": float(torch.cat(bests).mean())}

    @torch.no_grad()
    def _moved(self, search: Search, before: Policy) -> dict[str, float]:
        """On the newest hosts: how far the update moved the policy, how sure it is there, and how much of their returns its critic foresaw
        before it learned from them."""
        old = ActionDistribution(before.logits(search.observations), search.observations)
        new = ActionDistribution(self.policy.logits(search.observations), search.observations)
        scores = new.score(new.mode())
        free = search.weight.unsqueeze(-1) * (scores.matters & (scores.legal > 1))
        entropies = (scores.normalised_entropies * free).sum(dim=(0, 1)) / free.sum(dim=(0, 1))
        values = before.value_head.denormalise(before.normalised_values(search.observations))
        returns = discounted(search.reward * search.weight, self.config.gamma)
        found = {f"train/entropy/{head.value}": float(entropies[place]) for place, head in enumerate(HEADS) if free[..., place].any()}
        explained = explained_variance(values, returns, search.weight)
        kl = mean_of(new.divergence(old).sum(dim=-1), search.weight)
        figures = {"train/kl": float(kl), "train/explained_variance": float(explained), **found}
        return {name: value for name, value in figures.items() if not math.isnan(value)}

    def reset_heads(self, heads: Iterable[str]) -> None:
        """Make chosen heads as new, and forget what the optimiser knows about them."""
        for parameter in reset_heads(self.policy, heads, generator("reset", self.seed, self.updates)):
            self.optimizer.state.pop(parameter, None)

    def state(self) -> dict[str, Any]:
        """Everything to go on from but config and seed, as a checkpoint can hold it."""
        searches = [each.tensors() for each in self.searches]
        optimizer = optimizer_state(self.optimizer)
        return {"policy": self.policy.state_dict(), "optimizer": optimizer, "searches": searches, "updates": self.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit. Settings are those of the present config, not of the saved one."""
        self.policy.load_state_dict(state["policy"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.searches = [Search.from_tensors(each) for each in state["searches"]]
        self.updates = state["updates"]
