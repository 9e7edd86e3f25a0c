"""Implicit Q-learning (IQL) from recorded episodes, after Kostrikov, Nair and Levine (2021).

Q(s, a) learns what a recorded action earned and what its successor is worth; V(s) an expectile of Q over the actions that were
recorded in such states, which leans towards the better ones; and the policy imitates what was recorded, each action by
exp(beta * (Q - V)). Good parts of different mediocre episodes are so put together, and no action is ever valued that was not recorded.

With every epoch Q knows the recorded episodes better by heart, its advantages say less about any other, and what is left is imitation. So
the policy is kept as it was when it did best on held-out hosts, by yardsticks that stay the same while Q and V move.

V is the policy's own critic, so that PPO can go on from it. All values are normalised by mean and standard deviation of the returns:
beta is per standard deviation, whatever the reward's scale.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from esper.leyline.actions import HEADS_FOR_OP, Head, Op
from esper.simic.learning.dataset import EpisodeDataset
from esper.simic.learning.early_stopping import EarlyStopping
from esper.simic.learning.imitation import agreement, weighted_negative_log_likelihood
from esper.simic.learning.offline_config import IQLConfig
from esper.simic.learning.optimizer import make_optimizer, minimise
from esper.simic.learning.popart import MIN_STD, follow_returns
from esper.simic.learning.ppo_metrics import mean_of, moments, ridge_returns
from esper.simic.learning.rollout import td_targets
from esper.tamiyo.observe.masks import HEAD_VALUES
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.network import HIDDEN_GAIN, VALUE_GAIN, PolicyConfig, Trunk, initialise
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import generator

ACTION_EMBEDDING = 16
"""Features that stand for the values of an action's heads."""

# The formulas, each step's own; none of them takes a mean


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(difference < 0)| * difference^2: what a value is below its target counts more than what it is above.

    difference: target minus value.
    """
    return torch.where(difference < 0, 1.0 - expectile, expectile) * difference.square()


def advantage_weights(advantage: Tensor, beta: float, limit: float) -> Tensor:
    """exp(beta * advantage), at most `limit`: how much an action is worth imitating."""
    return (beta * advantage).exp().clamp(max=limit)


def held_out_preference(dataset: EpisodeDataset, held_out: EpisodeDataset, config: IQLConfig) -> Tensor:
    """[episodes, steps]: what each decision on the held-out hosts is worth, by what was earned after it.

    As in advantage-weighted regression: exp(beta * advantage), where the advantage is the return beyond what a linear regression on the
    other hosts expects, in standard deviations of returns; 0 where there was no choice. It owes nothing to what is learned here, so that
    epochs can be compared by it.
    """
    returns, earned = dataset.returns(config.gamma), held_out.returns(config.gamma)
    expected = ridge_returns(dataset.observations, returns, dataset.weight, held_out.observations)
    std = moments(returns, dataset.weight)["std"].clamp(min=MIN_STD)
    return (held_out.choices() * advantage_weights((earned - expected) / std, config.beta, config.weight_limit)).to(earned.dtype)


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """Move the slow network's parameters towards the fast one's by a share of the way."""
    for mine, other in zip(slow.parameters(), fast.parameters(), strict=True):
        mine.lerp_(other, rate)


# The networks


class QNetwork(nn.Module):
    """The normalised value of a state and an action. The action enters by its heads that matter, and by the slot that it names."""

    matters: Tensor

    def __init__(self, config: PolicyConfig, generator: torch.Generator) -> None:
        super().__init__()
        sizes = {head: len(HEAD_VALUES[head]) if head in HEAD_VALUES else len(config.blueprints) for head in HEADS if head is not Head.SLOT}
        with torch.random.fork_rng(devices=[]):
            self.trunk = Trunk(config)
            self.embeddings = nn.ModuleDict({head.value: nn.Embedding(size, ACTION_EMBEDDING) for head, size in sizes.items()})
            self.join = nn.Linear(config.hidden + config.slot_width + ACTION_EMBEDDING, config.hidden)
            self.norm = nn.LayerNorm(config.hidden)
            self.output = nn.Linear(config.hidden, 1)
        initialise(self, HIDDEN_GAIN, generator)
        initialise(self.output, VALUE_GAIN, generator)
        table = [[head in HEADS_FOR_OP[op] for head in HEADS] for op in Op]
        self.register_buffer("matters", torch.tensor(table), persistent=False)

    def forward(self, batch: ObservationBatch, actions: Tensor) -> Tensor:
        """[episodes, steps]: of actions [episodes, steps, 8] in whole episodes."""
        features, slots = self.trunk.replay(batch, checkpoint_lstm=False, autocast=False)
        matters = self.matters[actions[..., 0]].unsqueeze(-1)  # [..., 8, 1]
        named = actions[..., 1][..., None, None].expand(*actions.shape[:-1], 1, slots.shape[-1])
        slot = slots.gather(-2, named).squeeze(-2) * matters[..., 1, :]
        values = [
            self.embeddings[head.value](actions[..., column]) * matters[..., column, :]
            for column, head in enumerate(HEADS)
            if head is not Head.SLOT
        ]
        joined = torch.cat([features, slot, torch.stack(values).sum(dim=0)], dim=-1)
        return self.output(self.norm(self.join(joined)).relu()).squeeze(-1)


class TwinQ(nn.Module):
    """Two Q networks that share nothing; the lower of the two is believed."""

    def __init__(self, config: PolicyConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.first = QNetwork(config, generator)
        self.second = QNetwork(config, generator)

    def forward(self, batch: ObservationBatch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The two values [episodes, steps] of actions [episodes, steps, 8] in whole episodes."""
        return self.first(batch, actions), self.second(batch, actions)


# Learning


class ImplicitQLearning:
    """A policy that learns from what was recorded to do better than it, with everything that learning goes on from."""

    def __init__(self, policy: Policy, config: IQLConfig, dataset: EpisodeDataset, held_out: EpisodeDataset) -> None:
        self.policy, self.config, self.dataset, self.held_out = policy, config, dataset, held_out
        self.q = TwinQ(policy.config, generator("q", config.seed))
        self.slow_q = copy.deepcopy(self.q).requires_grad_(False)
        critic = {"name": "q", "params": list(self.q.parameters()), "weight_decay": config.weight_decay}
        self.optimizer = make_optimizer([*policy.parameter_groups(config.weight_decay), critic], config.learning_rate)
        follow_returns(policy.value_head, dataset.returns(config.gamma), dataset.weight, rate=1.0)
        self.preference = held_out_preference(dataset, held_out, config)
        self.stopping = EarlyStopping(policy, config.patience)
        self.warming = config.warmup > 0
        """Whether values still learn the recorded returns themselves."""

    @property
    def finished(self) -> bool:
        """Whether neither actor nor critic got better for long enough; never while values warm up."""
        return self.stopping.finished

    def learn(self, order: Tensor, number: int) -> dict[str, float]:
        """One epoch over the episodes in this order, int64 [episodes]; `number` counts epochs from 0. Returns the mean figures."""
        sums: dict[str, float] = {}
        batches = order.split(self.config.batch)
        self.warming = number < self.config.warmup
        for rows in batches:
            losses, figures = self._losses(self.dataset.part(rows))
            minimise(self.optimizer, losses["q_loss"] + losses["v_loss"] + losses["policy_loss"], self.config.max_gradient_norm)
            follow(self.slow_q, self.q, self.config.polyak)
            for name, value in {**losses, **figures}.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) / len(batches)
        if number + 1 == self.config.warmup:
            self.slow_q.load_state_dict(self.q.state_dict())
        return sums

    def _losses(self, batch: EpisodeDataset) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The three losses, and what else is worth knowing; all of them scalars."""
        config, head, weight, choices = self.config, self.policy.value_head, batch.weight, batch.choices()
        value = self.policy.normalised_values(batch.observations)
        with torch.no_grad():
            slow = torch.minimum(*self.slow_q(batch.observations, batch.actions))
            returns = batch.returns(config.gamma)
            target = head.normalise(returns if self.warming else td_targets(batch.reward, head.denormalise(value), weight, config.gamma))
            advantage = slow - value
            preference = torch.ones_like(slow) if self.warming else advantage_weights(advantage, config.beta, config.weight_limit)
        first, second = self.q(batch.observations, batch.actions)
        valued = expectile_loss((head.normalise(returns) if self.warming else slow) - value, 0.5 if self.warming else config.expectile)
        log_prob = self.policy.replay(batch.observations).score(batch.actions).log_prob
        # Divided by the number of choices, not by the summed weights: the weight of a step does not depend on its neighbours.
        imitated = weighted_negative_log_likelihood(log_prob, choices * preference)
        share = (choices * preference).sum() / choices.sum().clamp(min=1.0)
        losses = {
            "q_loss": mean_of((first - target).square() + (second - target).square(), weight),
            "v_loss": mean_of(valued, weight),
            "policy_loss": imitated * share,
        }
        figures = {
            "advantage": mean_of(advantage, weight),
            "preference": share,
            "preference_at_limit": (choices * (preference >= config.weight_limit)).sum() / choices.sum().clamp(min=1.0),
        }
        return losses, figures

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """How it does on the held-out hosts; what does best there is kept.

        awr_loss: minus the log-probability of what was decided there, by `held_out_preference`: what the actor is kept by. value_error:
        the std of what was earned there minus the critic's value, in those of returns: what the critic is kept by.
        """
        held_out, head = self.held_out, self.policy.value_head
        losses, figures = self._losses(held_out)
        log_prob = self.policy.replay(held_out.observations).score(held_out.actions).log_prob
        error = head.normalise(held_out.returns(self.config.gamma)) - self.policy.normalised_values(held_out.observations)
        kept_by = {
            "awr_loss": weighted_negative_log_likelihood(log_prob, self.preference),
            "value_error": moments(error, held_out.weight)["std"],
        }
        found = {name: float(value) for name, value in {**losses, **figures, **kept_by}.items()}
        self.stopping.look(actor=found["awr_loss"], critic=found["value_error"])
        if self.warming:
            self.stopping.waited = 0
        return {**found, **agreement(self.policy, held_out, self.config.gamma)}

    def conclude(self) -> None:
        """Leave the policy as it was when it did best."""
        self.stopping.restore()

    def state(self) -> dict[str, Any]:
        """Everything besides the policy, as a checkpoint can hold it."""
        networks = {"q": self.q.state_dict(), "slow_q": self.slow_q.state_dict()}
        return {"optimizer": self.optimizer.state_dict(), **networks, "stopping": self.stopping.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.q.load_state_dict(state["q"])
        self.slow_q.load_state_dict(state["slow_q"])
        self.stopping.load_state(state["stopping"])
