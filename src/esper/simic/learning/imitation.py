"""Behaviour cloning: a policy learns to decide as the recorded controller did, and its critic what that earned.

Whole episodes are replayed through the policy, and the log-probability of what was decided is raised. A decision is one choice with
one probability, the product over the heads that matter for its op. Most decisions are WAIT, so rare ops can be made to count more.
Actor and critic share nothing: each is kept as it was when it did best on the held-out hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.observation import OBSERVATION, UNTOLD
from esper.simic.learning.dataset import EpisodeDataset
from esper.simic.learning.early_stopping import EarlyStopping
from esper.simic.learning.offline_config import BCConfig
from esper.simic.learning.optimizer import make_optimizer, minimise
from esper.simic.learning.popart import follow_returns
from esper.simic.learning.ppo_metrics import explained_variance, mean_of
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import generator

# The formulas


def op_weights(ops: Tensor, counted: Tensor, balance: float) -> Tensor:
    """[6]: what a step counts by its op: the op's share of the counted steps to the power of -balance; 1 on average over them.

    ops: int64 [...]; counted: 1 or 0 [...]. An op that was never decided counts as the rarest one would.
    """
    counts = torch.zeros(len(Op)).index_add_(0, ops.flatten(), counted.flatten().float())
    shares = counts / counts.sum().clamp(min=1.0)
    rarest = shares[counts > 0].min() if (counts > 0).any() else shares.new_ones(())
    weights = torch.where(counts > 0, shares, rarest).pow(-balance)
    return weights / (weights * shares).sum().clamp(min=1e-12) if (counts > 0).any() else torch.ones(len(Op))


def weighted_negative_log_likelihood(log_prob: Tensor, weight: Tensor, share: Tensor | None = None) -> Tensor:
    """Mean of minus the log-probability by weight; a step of weight 0 counts for nothing, whatever its log-probability. 0 without steps.

    share: [episodes], how much each counts. It is not divided by: a batch of episodes that count little counts little.
    """
    counted = weight if share is None else weight * share.unsqueeze(-1)
    return -torch.where(weight > 0, log_prob, 0.0).mul(counted).sum() / weight.sum().clamp(min=1e-12)


def without(seen: ObservationBatch, missing: Tensor) -> ObservationBatch:
    """Episodes [episodes, steps] as they are seen where fields are not told: bool [episodes, groups of UNTOLD]."""
    host, slots = (
        torch.tensor([[field.name in names for field in fields] for names in UNTOLD], dtype=torch.float32)
        for fields in (OBSERVATION.host_fields, OBSERVATION.slot_fields)
    )  # [groups, fields]: 1 where a group holds a field
    told = [(missing.float() @ fields == 0.0).to(seen.host) for fields in (host, slots)]  # [episodes, fields]
    return replace(seen, host=seen.host * told[0][:, None], slots=seen.slots * told[1][:, None, None])


# What is reported


@torch.no_grad()
def agreement(policy: Policy, dataset: EpisodeDataset, gamma: float) -> dict[str, float]:
    """How well a policy agrees with what was recorded, over the steps in which there was a choice. What has no meaning is left out.

    log_likelihood: mean log-probability of the recorded decision. accuracy/op, accuracy/decision: how often the likeliest op, and the
    whole likeliest decision, is the recorded one. accuracy/acts: the same of the op where the recording did not wait. waiting: how
    often waiting would have agreed. head/...: each head's accuracy given the recorded op and slot, where it mattered and had a choice.
    explained_variance: how much of the recorded returns the critic predicts.
    """
    distribution, weight = policy.replay(dataset.observations), dataset.choices() * dataset.share.unsqueeze(-1)
    scores, chosen = distribution.score(dataset.actions), distribution.mode()
    same = chosen == dataset.actions
    acted = weight * (dataset.actions[..., 0] != Op.WAIT)
    value = policy.value_head.denormalise(policy.normalised_values(dataset.observations))
    figures = {
        "log_likelihood": -float(weighted_negative_log_likelihood(scores.log_prob, weight)) if weight.any() else math.nan,
        "accuracy/op": float(mean_of(same[..., 0].float(), weight)),
        "accuracy/decision": float(mean_of((same | ~scores.matters).all(dim=-1).float(), weight)),
        "accuracy/acts": float(mean_of(same[..., 0].float(), acted)),
        "waiting": float(mean_of((dataset.actions[..., 0] == Op.WAIT).float(), weight)),
        "explained_variance": float(explained_variance(value, dataset.returns(gamma), dataset.weight * dataset.share.unsqueeze(-1))),
    }
    given = distribution.likeliest(dataset.actions) == dataset.actions
    for column, head in enumerate(HEADS):
        figures[f"head/{head.value}"] = float(mean_of(given[..., column].float(), weight * (scores.legal[..., column] > 1)))
    return {name: value for name, value in figures.items() if not math.isnan(value)}


# Learning


class BehaviourCloning:
    """A policy that learns to decide as recorded, with everything that learning goes on from."""

    def __init__(self, policy: Policy, config: BCConfig, dataset: EpisodeDataset, held_out: EpisodeDataset) -> None:
        self.policy, self.config, self.dataset, self.held_out = policy, config, dataset, held_out
        self.optimizer = make_optimizer(policy.parameter_groups(config.weight_decay), config.learning_rate)
        self.op_weights = op_weights(dataset.actions[..., 0], dataset.choices() * dataset.share.unsqueeze(-1), config.balance)
        follow_returns(policy.value_head, dataset.returns(config.gamma), dataset.weight, rate=1.0)
        self.stopping = EarlyStopping(policy, config.patience)

    @property
    def finished(self) -> bool:
        """Whether neither actor nor critic got better for long enough."""
        return self.stopping.finished

    def learn(self, order: Tensor, number: int) -> dict[str, float]:
        """One epoch over the episodes in this order, int64 [episodes]; `number` counts epochs from 0. Returns its mean losses."""
        sums = {"imitation_loss": 0.0, "value_loss": 0.0}
        batches, random = order.split(self.config.batch), generator("untold", self.config.seed, number)
        for rows in batches:
            part = self.dataset.part(rows)
            missing = torch.rand(len(rows), len(UNTOLD), generator=random) < self.config.untold
            imitation, value = self._losses(replace(part, observations=without(part.observations, missing)))
            minimise(self.optimizer, imitation + value, self.config.max_gradient_norm)
            sums["imitation_loss"] += float(imitation.detach()) / len(batches)
            sums["value_loss"] += float(value.detach()) / len(batches)
        return sums

    def judge(self) -> dict[str, float]:
        """How it does on the held-out hosts; what does best there is kept."""
        with torch.no_grad():
            imitation, value = self._losses(self.held_out)
        self.stopping.look(actor=float(imitation), critic=float(value))
        figures = agreement(self.policy, self.held_out, self.config.gamma)
        return {"imitation_loss": float(imitation), "value_loss": float(value), **figures}

    def _losses(self, batch: EpisodeDataset) -> tuple[Tensor, Tensor]:
        """Scalars: what the actor has to lower, and what the critic has to."""
        weight = batch.choices() * self.op_weights[batch.actions[..., 0]]
        log_prob = self.policy.replay(batch.observations).score(batch.actions).log_prob
        target = self.policy.value_head.normalise(batch.returns(self.config.gamma))
        error = 0.5 * (self.policy.normalised_values(batch.observations) - target).square()
        share = batch.share
        return weighted_negative_log_likelihood(log_prob, weight, share), mean_of(error * share.unsqueeze(-1), batch.weight)

    def conclude(self) -> None:
        """Leave the policy as it was when it did best."""
        self.stopping.restore()

    def state(self) -> dict[str, Any]:
        """Everything besides the policy, as a checkpoint can hold it."""
        return {"optimizer": self.optimizer.state_dict(), "stopping": self.stopping.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.stopping.load_state(state["stopping"])
