"""Proximal policy optimisation of the controller, from top to bottom.

A round is one whole episode of every host. An update replays the round a few times, in minibatches of whole episodes, each from zero
memory. An action is one choice with one probability, the product over the heads that matter for its op: so there is one ratio and
one advantage per step, and every step counts the same. (Averaging each head over its own few steps would give a head used in 5 % of
the steps twenty times the weight.)

Beside the clipped surrogate the policy is held near a prior, per head, by lambda * KL(prior || policy): its gradient is policy minus
prior and never vanishes, however far a head has collapsed, which that of an entropy bonus does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.simic.learning.popart import follow_returns
from esper.simic.learning.ppo_config import EntropyMultipliers, PPOConfig, PriorStrength
from esper.simic.learning.ppo_metrics import Tally, UpdateMetrics, critic_figures, mean_of, policy_figures
from esper.simic.learning.rollout import Rollout
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import ActionDistribution, Exploration
from esper.tamiyo.policy.policy import Policy, reset_heads
from esper.tamiyo.policy.prior_tables import PriorTables, prior_tables

KL_STOP = 1.5
"""Epochs end once the exact KL is above this many times its target."""


# The formulas, each step's own; none of them takes a mean


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: float) -> Tensor:
    """The loss of each step: minus the advantage times the ratio, with no reward for moving the ratio past its range."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage)


def value_error(value: Tensor, target: Tensor, before: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with a clip the worse of the value and of the value kept near what it was `before`."""
    error = (value - target).square()
    if clip is not None:
        near = before + (value - before).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return 0.5 * error


def annealed(start: float, end: float, updates: int | None, update: int) -> float:
    """A straight line from `start` at update 0 to `end` at update `updates`, and level from there on; without an end, `start`."""
    if updates is None:
        return start
    return end if update >= updates else start + (end - start) * update / updates


def learning_rate(config: PPOConfig, update: int) -> float:
    """The learning rate of an update, counted from 0: warm-up, then decay, then level; without an end to the decay, level at once."""
    if update < config.warmup_updates:
        return config.learning_rate * (update + 1) / (config.warmup_updates + 1)
    if config.decay_updates is None:
        return config.learning_rate
    length = max(1, config.decay_updates - config.warmup_updates)
    progress = min(1.0, (update - config.warmup_updates) / length)
    match config.decay:
        case "none":
            left = 1.0
        case "linear":
            left = 1.0 - progress
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * left)


def normalised(advantages: Tensor, weight: Tensor) -> Tensor:
    """Advantages of mean 0 and spread 1 over the steps that happened; 0 in padding."""
    mean = mean_of(advantages, weight)
    std = mean_of((advantages - mean).square(), weight).sqrt()
    return (advantages - mean) / (std + 1e-8) * weight


# The update


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOBatch:
    """A round, or some hosts of it, ready to learn from; every tensor is [hosts, steps] in front."""

    batch: ObservationBatch
    actions: Tensor
    log_prob: Tensor
    """The ratio's reference."""
    advantage: Tensor
    """Normalised."""
    target: Tensor
    """Normalised returns."""
    value: Tensor
    """Normalised values when the actions were drawn."""
    weight: Tensor
    """What each step counts in its minibatch's loss: the same for all, whichever minibatch they are in; 0 in padding."""
    prior: PriorTables
    exploration: Exploration | None

    def part(self, hosts: Tensor) -> PPOBatch:
        """Some of the hosts."""
        names = ("batch", "actions", "log_prob", "advantage", "target", "value", "weight", "prior")
        return replace(self, **{name: getattr(self, name)[hosts] for name in names})


def make_optimizer(policy: Policy, config: PPOConfig) -> torch.optim.Optimizer:
    """Adam over actor and critic; the critic's weights decay."""
    groups = policy.parameter_groups(config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.learning_rate, eps=1e-5, fused=True)


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: PPOConfig,
    update_index: int,
    generator: torch.Generator,
) -> UpdateMetrics:
    """Learn from one round. `update_index` counts updates from 0; `generator`, on the CPU, shuffles the hosts."""
    before, value_before = _replay(policy, rollout, config), _values(policy, rollout, config)
    advantage = rollout.advantages(config.gamma, config.gae_lambda)
    if not torch.isfinite(advantage).all():
        raise FloatingPointError("a reward or a value of this round is not finite; the policy was left as it was")
    minibatches = min(config.minibatches, rollout.hosts)
    follow_returns(policy.value_head, advantage + rollout.value, rollout.weight, config.popart_rate)
    lesson = _prepare(policy, rollout, config, advantage, before, minibatches)
    rate = learning_rate(config, update_index)
    for group in optimizer.param_groups:
        group["lr"] = rate
    entropy_coefficient = annealed(config.entropy_start, config.entropy_end, config.entropy_updates, update_index)

    tally, gradients = Tally(), Gradients(policy, config.max_gradient_norm)
    after, moving, epochs = before, True, 0
    for _ in range(config.epochs):
        order = torch.randperm(rollout.hosts, generator=generator).to(policy.device)
        for hosts in order.tensor_split(minibatches):
            part = lesson.part(hosts)
            optimizer.zero_grad(set_to_none=True)
            if moving:
                actor_loss(policy, part, config, entropy_coefficient, tally).backward()
            critic_loss(policy, part, config, tally).backward()
            gradients.shorten(tally)
            optimizer.step()
        if moving:
            epochs += 1
            after = _replay(policy, rollout, config)
            kl = mean_of(after.divergence(before).sum(dim=-1), rollout.weight)
            # This ends the policy's passes; the critic shares nothing with it, and goes on.
            moving = config.target_kl == 0 or bool(kl <= KL_STOP * config.target_kl)
    return UpdateMetrics(
        n_updates=update_index + 1,
        epochs=epochs,
        learning_rate=rate,
        entropy_coefficient=entropy_coefficient,
        clip_range=config.clip_range,
        losses=tally.losses(entropy_coefficient, gradients.parts),
        policy=policy_figures(rollout, before, after, config.clip_range, tally.ratio_error),
        critic=critic_figures(rollout, advantage, value_before, _values(policy, rollout, config)),
        episode_reward=float((rollout.reward * rollout.weight).sum(dim=1).mean()),
        episode_length=float(rollout.lengths().mean()),
    )


def actor_loss(policy: Policy, lesson: PPOBatch, config: PPOConfig, entropy_coefficient: float, tally: Tally) -> Tensor:
    """Clipped surrogate, minus the entropy bonus, plus the distance from the prior."""
    distribution = policy.replay(lesson.batch, lesson.exploration, checkpoint_lstm=config.checkpoint_lstm, autocast=config.autocast)
    scores = distribution.score(lesson.actions)
    log_ratio = scores.log_prob - lesson.log_prob
    surrogate = (clipped_surrogate(log_ratio, lesson.advantage, config.clip_range) * lesson.weight).sum()
    entropy = (_weighted(scores.entropies, config.entropy_multipliers) * lesson.weight).sum()
    distance = (_weighted(distribution.distance_from(lesson.prior), config.prior_strength) * lesson.weight).sum()
    tally.add(policy_gradient_loss=surrogate, entropy_loss=-entropy, prior_loss=distance)
    tally.note_ratio_error((log_ratio.expm1().abs() * (lesson.weight > 0)).max())
    return surrogate - entropy_coefficient * entropy + distance


def critic_loss(policy: Policy, lesson: PPOBatch, config: PPOConfig, tally: Tally) -> Tensor:
    """Half the squared error of the normalised values."""
    value = policy.normalised_values(lesson.batch, checkpoint_lstm=config.checkpoint_lstm, autocast=config.autocast)
    error = (value_error(value, lesson.target, lesson.value, config.value_clip) * lesson.weight).sum()
    tally.add(value_loss=error)
    return error


def _prepare(
    policy: Policy, rollout: Rollout, config: PPOConfig, advantage: Tensor, before: ActionDistribution, minibatches: int
) -> PPOBatch:
    return PPOBatch(
        batch=rollout.batch,
        actions=rollout.actions,
        # In bfloat16 a replay differs from what acted by more than rounding; the first ratio is to be 1 all the same.
        log_prob=before.score(rollout.actions).log_prob if config.autocast else rollout.log_prob,
        advantage=normalised(advantage, rollout.weight),
        target=policy.value_head.normalise(advantage + rollout.value),
        value=policy.value_head.normalise(rollout.value),
        weight=rollout.weight * (minibatches / rollout.weight.sum()),
        prior=prior_tables(config.prior, rollout.batch),
        exploration=rollout.exploration,
    )


@torch.no_grad()
def _replay(policy: Policy, rollout: Rollout, config: PPOConfig) -> ActionDistribution:
    return policy.replay(rollout.batch, rollout.exploration, autocast=config.autocast)


@torch.no_grad()
def _values(policy: Policy, rollout: Rollout, config: PPOConfig) -> Tensor:
    return policy.value_head.denormalise(policy.normalised_values(rollout.batch, autocast=config.autocast))


def _weighted(figures: Tensor, weights: EntropyMultipliers | PriorStrength) -> Tensor:
    """[...]: the sum over the heads of figures [..., 8], each by its head's weight."""
    return figures @ figures.new_tensor([getattr(weights, head.value) for head in HEADS])


class Gradients:
    """Measures the gradient of each part of a policy, and shortens those of actor and critic to the longest allowed."""

    def __init__(self, policy: Policy, longest: float) -> None:
        parts = policy.parts()
        self.longest, self.parts = longest, tuple(parts)
        self.parameters = [each for group in parts.values() for each in group]
        owner = [number for number, group in enumerate(parts.values()) for _ in group]
        self.owner = torch.tensor(owner, device=policy.device)
        self.groups = {group["name"]: group["params"] for group in policy.parameter_groups()}
        self.of_critic = torch.tensor([part == "critic" for part in parts], device=policy.device)

    def shorten(self, tally: Tally) -> None:
        """To be called between the backward pass and the optimiser's step."""
        zero = self.parameters[0].new_zeros(())
        norms = [zero if each.grad is None else torch.linalg.vector_norm(each.grad) for each in self.parameters]
        squares = zero.expand(len(self.parts)).index_add(0, self.owner, torch.stack(norms).square())
        for name, chosen in (("actor", ~self.of_critic), ("critic", self.of_critic)):
            norm = (squares * chosen).sum().sqrt()
            if not torch.isfinite(norm):
                raise FloatingPointError(f"the gradient of the {name} is {float(norm)}; this step was not taken")
            nn.utils.clip_grads_with_norm_(self.groups[name], self.longest, norm)
        tally.add(gradient_norm=squares.sqrt())


class Learner:
    """A policy with everything that learning goes on from: optimiser, count of updates, and the stream that shuffles the hosts."""

    def __init__(self, policy: Policy, config: PPOConfig, seed: int = 0) -> None:
        self.policy, self.config = policy, config
        self.optimizer = make_optimizer(policy, config)
        self.updates = 0
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, rollout: Rollout) -> UpdateMetrics:
        """Learn from one round."""
        metrics = update(self.policy, self.optimizer, rollout, self.config, self.updates, self.generator)
        self.updates += 1
        return metrics

    def reset_heads(self, heads: Iterable[str]) -> None:
        """Make chosen heads as new, and forget what the optimiser knows about them."""
        for parameter in reset_heads(self.policy, heads, self.generator):
            self.optimizer.state.pop(parameter, None)

    def state(self) -> dict[str, Any]:
        """Everything, as a checkpoint can hold it."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly. Settings are those of the present config, not of the saved one."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group, fresh in zip(self.optimizer.param_groups, self.policy.parameter_groups(self.config.weight_decay), strict=True):
            group["weight_decay"] = fresh["weight_decay"]
        self.updates = state["updates"]
        self.generator.set_state(state["generator"])
