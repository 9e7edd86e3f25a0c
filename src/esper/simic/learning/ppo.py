"""Proximal policy optimisation of the controller, from top to bottom.

A round is one whole episode of every host. An update replays the round a few times, in minibatches of whole episodes, each from zero
memory. An action is one choice with one probability, the product over the heads that matter for its op: so there is one ratio and
one advantage per step, and every step counts the same. (Averaging each head over its own few steps would give a head used in 5 % of
the steps twenty times the weight.)

Beside the clipped surrogate the policy is held near a reference, per head, by lambda * KL(reference || policy): its gradient is policy
minus reference and never vanishes, however far a head has collapsed, which that of an entropy bonus does. The reference is the prior,
or the policy that learning goes on from, as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from esper.leyline.errors import LearningError
from esper.simic.learning.optimizer import (
    check_finite,
    check_gradients,
    clipped_step,
    load_optimizer,
    make_optimizer,
    optimizer_state,
    set_rate,
)
from esper.simic.learning.popart import follow_returns
from esper.simic.learning.ppo_config import EntropyMultipliers, PPOConfig, PriorStrength
from esper.simic.learning.ppo_metrics import (
    Figures,
    Tally,
    critic_figures,
    explained_variance,
    flat,
    loss_figures,
    mean_of,
    policy_figures,
    regression_ceiling,
)
from esper.simic.learning.repeated import Repeated, addresses
from esper.simic.learning.rollout import Rollout
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import ActionDistribution, Exploration, HeadLogits
from esper.tamiyo.policy.policy import Policy, reset_heads
from esper.tamiyo.policy.prior_tables import prior_tables
from esper.tolaria.data.streams import generator

KL_STOP = 1.5
"""The policy stays as it is from the first minibatch on whose exact KL is above this many times its target."""


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


def normalised(advantages: Tensor, weight: Tensor, task: Tensor, clip: float) -> Tensor:
    """[hosts, steps]: advantages of mean 0 and standard deviation 1 over the steps that happened in each task, int64 [hosts].

    So no task drowns another whose returns vary less. A single step counts for no more than `clip`. 0 in padding.
    """
    same = (task.unsqueeze(1) == task).double()  # [hosts, hosts]
    steps = same @ weight.double().sum(dim=1)

    def mean(values: Tensor) -> Tensor:
        return ((same @ (values * weight).double().sum(dim=1)) / steps).unsqueeze(1)

    centred = advantages - mean(advantages)
    std = mean(centred.square()).sqrt()
    return ((centred / (std + 1e-8)).clamp(-clip, clip) * weight).to(advantages.dtype)


# The update


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPOBatch:
    """A round, or some hosts of it, ready to learn from; every tensor is [hosts, steps] in front."""

    observations: ObservationBatch
    actions: Tensor
    """int64 [hosts, steps, 8]."""
    log_prob: Tensor
    """Of the actions, which ratios are taken against."""
    advantage: Tensor
    """Normalised within each task, and clipped."""
    target: Tensor
    """Normalised returns."""
    value: Tensor
    """Normalised values when the actions were drawn."""
    weight: Tensor
    """What each step counts in its minibatch's loss: the same for all, whichever minibatch they are in; 0 in padding."""
    reference: list[Tensor]
    """What the policy is held near: the probabilities in every context, as `prior_tables` has them."""
    exploration: Exploration | None

    def part(self, hosts: Tensor) -> PPOBatch:
        """Some of the hosts, by their numbers int64 [hosts]."""
        names = ("observations", "actions", "log_prob", "advantage", "target", "value", "weight")
        return replace(self, reference=[each[hosts] for each in self.reference], **{name: getattr(self, name)[hosts] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What an update is judged by."""

    before: HeadLogits
    after: HeadLogits
    divergence: Tensor
    """[hosts, steps, 8]: of the policy after from that before."""
    first_error: Tensor
    """Scalar: the largest distance of the first minibatch's ratios from 1."""
    advantage: Tensor
    value_before: Tensor
    value_after: Tensor


def _weighted(figures: Tensor, weights: EntropyMultipliers | PriorStrength) -> Tensor:
    """[...]: the sum over the heads of figures [..., 8], each by its head's weight."""
    return figures @ _by_head(weights, figures.device)


@cache  # as every minibatch asks for the same, and a device is slow to be given them
def _by_head(weights: EntropyMultipliers | PriorStrength, device: torch.device) -> Tensor:
    """float64 [8]: the weight of each head."""
    return torch.tensor([getattr(weights, head.value) for head in HEADS], dtype=torch.float64, device=device)


@torch.no_grad()
def _probabilities(policy: Policy, rollout: Rollout) -> list[Tensor]:
    """[hosts, steps, C, K] for each block: the policy's own probabilities, without exploration."""
    return [each.exp() for each in policy.replay(rollout.observations).tables]


class Gradients:
    """Measures the gradient of each part of a policy, and of actor and critic."""

    def __init__(self, policy: Policy) -> None:
        parts = policy.parts()
        self.parts = tuple(parts)
        self.parameters = [each for group in parts.values() for each in group]
        owner = [number for number, group in enumerate(parts.values()) for _ in group]
        self.owner = torch.tensor(owner, device=policy.device)
        self.of_critic = torch.tensor([part == "critic" for part in parts], device=policy.device)

    def measure(self, tally: Tally) -> list[Tensor]:
        """The norms of the actor's and the critic's gradient, scalars; those of the parts go to the tally."""
        zero = self.parameters[0].new_zeros(())
        found = iter(torch._foreach_norm([each.grad for each in self.parameters if each.grad is not None]))
        norms = [zero if each.grad is None else next(found) for each in self.parameters]
        # Not by index_add, which on a GPU adds in any order: the same update is to give the same numbers twice.
        squares = zero.expand(len(self.parts)).index_put((self.owner,), torch.stack(norms).square(), accumulate=True)
        tally["gradient_norm"].append(squares.sqrt())
        # Chosen, not multiplied by 0: what is not finite in one network says nothing of the other.
        return [torch.where(chosen, squares, 0.0).sum().sqrt() for chosen in (~self.of_critic, self.of_critic)]


class Learner:
    """A policy with everything that learning goes on from: optimiser, count of updates, and the seed that all chance comes from.

    reference: what the policy is held near; None for the config's prior. It learns nothing.
    `config` may be replaced between two updates; the next one goes by it. What an update does again and again goes through `repeated`,
    which on a GPU captures it; on a CPU it adds nothing.
    """

    def __init__(self, policy: Policy, config: PPOConfig, seed: int = 0, *, reference: Policy | None = None) -> None:
        self.policy, self.config, self.seed, self.reference = policy, config, seed, reference
        self.repeated = Repeated(policy.device)
        groups = policy.parameter_groups(config.weight_decay)
        self.optimizer = make_optimizer(groups, config.learning_rate, captured=self.repeated.captures)
        self.gradients = Gradients(policy)
        self.updates = 0

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from one round; returns its figures by their full names, which `ppo_metrics` explains.

        Raises LearningError when something in it is not finite; the policy is of no use then.
        """
        try:
            with self.repeated.beside():
                metrics = self._update(rollout)
        except FloatingPointError as error:
            raise LearningError(
                f"update {self.updates + 1} of the policy went wrong: {error}; what was saved is intact, "
                "go on with a lower ppo.learning_rate or fewer ppo.epochs"
            ) from error
        self.updates += 1
        return metrics

    def _update(self, rollout: Rollout) -> dict[str, float]:
        figures = {"reward": rollout.reward, "value": rollout.value, "log-probability": rollout.log_prob}
        check_finite({f"a {what} of the round": values for what, values in figures.items()})
        policy, config, repeated = self.policy, self.config, self.repeated
        fixed = () if self.reference is None else addresses(self.reference)
        repeated.begin(config, rollout.exploration, rollout.observations.slots.shape, addresses(policy), fixed)
        rollout = repeated.put("round", rollout)
        before, tables = repeated.put("before", repeated("before", partial(self._before, rollout)))
        value_before = repeated("values", partial(self._values, rollout))
        advantage = rollout.advantages(config.gamma, config.gae_lambda)
        follow_returns(policy.value_head, advantage + rollout.value, rollout.weight, config.popart_rate)
        minibatches = min(config.minibatches, rollout.hosts)
        whole = repeated.put("batch", self.prepare(rollout, advantage, self._distribution(before, rollout), minibatches))
        rate = learning_rate(config, self.updates)
        set_rate(self.optimizer, rate)
        for group, present in zip(self.optimizer.param_groups, policy.parameter_groups(config.weight_decay), strict=True):
            group["weight_decay"] = present["weight_decay"]
        entropy_coefficient = annealed(config.entropy_start, config.entropy_end, config.entropy_updates, self.updates)
        coefficient = repeated.put("coefficient", torch.tensor(entropy_coefficient, dtype=torch.float64, device=policy.device))

        tally, shuffle = Tally(list), generator("update", self.seed, self.updates)
        moving, steps = True, 0
        for _ in range(config.epochs):
            order = torch.randperm(rollout.hosts, generator=shuffle).to(policy.device)
            for hosts in order.tensor_split(minibatches):
                chosen = repeated.put(f"{len(hosts)} hosts", hosts)
                if moving and steps and config.target_kl:
                    kl = float(repeated(("kl", len(hosts)), partial(self._kl, whole, tables, chosen)))
                    # This ends the policy's epochs; the critic shares nothing with it, and goes on.
                    moving = kl <= KL_STOP * config.target_kl
                steps += moving
                step = partial(self.step, whole, chosen, coefficient, moving=moving)
                for name, figure in repeated(("step", len(hosts), moving), step).items():
                    tally[name].append(figure)
            check_gradients(self.optimizer, torch.stack(tally["norms"][-minibatches:]))
        after, divergence, mean = repeated("moved", partial(self._moved, rollout, tables))
        check_finite({"the KL divergence from the policy before": mean})
        value_after = repeated("values", partial(self._values, rollout))
        check_finite({"a value after the update": value_after})
        first_error = tally.pop("ratio_error")[0]
        del tally["norms"]
        outcome = Outcome(
            before=before,
            after=after,
            divergence=divergence,
            first_error=first_error,
            advantage=advantage,
            value_before=value_before,
            value_after=value_after,
        )
        figures_of = partial(self._figures, rollout, repeated.put("outcome", outcome))
        found: Figures = {
            "n_updates": self.updates + 1,
            "epochs": steps / minibatches,
            "learning_rate": rate,
            "entropy_coefficient": entropy_coefficient,
            "clip_range": config.clip_range,
            "ep_rew_mean": (rollout.reward * rollout.weight).sum(dim=1).mean(),
            "ep_len_mean": rollout.lengths().mean(),
            **loss_figures(tally, entropy_coefficient, self.gradients.parts),
            **repeated("figures", figures_of),
            "explained_variance_monte_carlo": explained_variance(value_before, rollout.returns(config.gamma), rollout.weight),
            "explained_variance_ceiling": regression_ceiling(rollout, advantage + rollout.value),
        }
        return flat(found)

    def prepare(self, rollout: Rollout, advantage: Tensor, before: ActionDistribution, minibatches: int) -> PPOBatch:
        """The round with its advantages [hosts, steps], to be split into minibatches; `before` is the policy that it starts from."""
        head = self.policy.value_head
        return PPOBatch(
            observations=rollout.observations,
            actions=rollout.actions,
            # In bfloat16 a replay differs from what acted by more than rounding; the first ratio is to be 1 all the same.
            log_prob=before.score(rollout.actions).log_prob if self.config.autocast else rollout.log_prob,
            advantage=normalised(advantage, rollout.weight, rollout.task, self.config.advantage_clip),
            target=head.normalise(advantage + rollout.value),
            value=head.normalise(rollout.value),
            weight=rollout.weight * (minibatches / rollout.weight.sum()),
            reference=self._reference(rollout),
            exploration=rollout.exploration,
        )

    def step(self, whole: PPOBatch, hosts: Tensor, entropy_coefficient: Tensor, *, moving: bool) -> dict[str, Tensor]:
        """One step of the optimiser on some of the hosts, of the critic and, while it is moving, the actor. Returns what to tally."""
        batch, tally = whole.part(hosts), Tally(list)
        self.optimizer.zero_grad(set_to_none=True)
        if moving:
            self.actor_loss(batch, entropy_coefficient, tally).backward()
        self.critic_loss(batch, tally).backward()
        norms = self.gradients.measure(tally)
        clipped_step(self.optimizer, norms, self.config.max_gradient_norm)
        return {"norms": torch.stack(norms), **{name: figure for name, (figure,) in tally.items()}}

    def actor_loss(self, batch: PPOBatch, entropy_coefficient: float | Tensor, tally: Tally) -> Tensor:
        """Scalar: clipped surrogate, minus the entropy bonus, plus the distance from the reference."""
        config = self.config
        distribution = self.policy.replay(
            batch.observations, batch.exploration, checkpoint_lstm=config.checkpoint_lstm, autocast=config.autocast
        )
        scores = distribution.score(batch.actions)
        log_ratio = scores.log_prob - batch.log_prob
        surrogate = (clipped_surrogate(log_ratio, batch.advantage, config.clip_range) * batch.weight).sum()
        entropy = (_weighted(scores.entropies, config.entropy_multipliers) * batch.weight).sum()
        distance = (_weighted(distribution.distance_from(batch.reference), config.prior_strength) * batch.weight).sum()
        tally["policy_gradient_loss"].append(surrogate.detach())
        tally["entropy_loss"].append(-entropy.detach())
        tally["prior_loss"].append(distance.detach())
        tally["ratio_error"].append((log_ratio.detach().expm1().abs() * (batch.weight > 0)).max())
        return surrogate - entropy_coefficient * entropy + distance

    def critic_loss(self, batch: PPOBatch, tally: Tally) -> Tensor:
        """Scalar: half the squared error of the normalised values."""
        config = self.config
        value = self.policy.normalised_values(batch.observations, checkpoint_lstm=config.checkpoint_lstm, autocast=config.autocast)
        error = (value_error(value, batch.target, batch.value, config.value_clip) * batch.weight).sum()
        tally["value_loss"].append(error.detach())
        return error

    def _logits(self, rollout: Rollout) -> HeadLogits:
        return self.policy.logits(rollout.observations, autocast=self.config.autocast)

    def _distribution(self, logits: HeadLogits, rollout: Rollout) -> ActionDistribution:
        return ActionDistribution(logits, rollout.observations, rollout.exploration)

    @torch.no_grad()
    def _before(self, rollout: Rollout) -> tuple[HeadLogits, tuple[Tensor, Tensor, Tensor]]:
        """The policy's logits, and its tables."""
        logits = self._logits(rollout)
        return logits, self._distribution(logits, rollout).tables

    def _reference(self, rollout: Rollout) -> list[Tensor]:
        """[hosts, steps, C, K] for each block: what the policy is held near."""
        if self.reference is None:
            return prior_tables(self.config.prior, rollout.observations)
        return self.repeated("reference", partial(_probabilities, self.reference, rollout))

    @torch.no_grad()
    def _moved(self, rollout: Rollout, tables: tuple[Tensor, Tensor, Tensor]) -> tuple[HeadLogits, Tensor, Tensor]:
        """The policy's logits, its exact KL divergence [hosts, steps, 8] from the one that the tables are of, and the mean of that."""
        logits = self._logits(rollout)
        divergence = self._distribution(logits, rollout).divergence_from(tables)
        return logits, divergence, mean_of(divergence.sum(dim=-1), rollout.weight)

    @torch.no_grad()
    def _kl(self, whole: PPOBatch, tables: tuple[Tensor, Tensor, Tensor], hosts: Tensor) -> Tensor:
        """Scalar: the policy's exact KL divergence from the one that the tables are of, on some of the hosts."""
        observations, (op, slot, choices) = whole.observations[hosts], tables
        logits = self.policy.logits(observations, autocast=self.config.autocast)
        now = ActionDistribution(logits, observations, whole.exploration)
        return mean_of(now.divergence_from((op[hosts], slot[hosts], choices[hosts])).sum(dim=-1), whole.weight[hosts])

    @torch.no_grad()
    def _figures(self, rollout: Rollout, outcome: Outcome) -> Figures:
        before, after = (self._distribution(logits, rollout) for logits in (outcome.before, outcome.after))
        return {
            **policy_figures(rollout, before, after, outcome.divergence, self.config.clip_range, outcome.first_error),
            **critic_figures(rollout, outcome.advantage, outcome.value_before, outcome.value_after),
        }

    @torch.no_grad()
    def _values(self, rollout: Rollout) -> Tensor:
        """[hosts, steps]: what the critic expects, on the reward's scale."""
        return self.policy.value_head.denormalise(self.policy.normalised_values(rollout.observations, autocast=self.config.autocast))

    def reset_heads(self, heads: Iterable[str]) -> None:
        """Make chosen heads as new, and forget what the optimiser knows about them."""
        for parameter in reset_heads(self.policy, heads, generator("reset", self.seed, self.updates)):
            self.optimizer.state.pop(parameter, None)
        self.repeated.forget()

    def state(self) -> dict[str, Any]:
        """Everything to go on from but config and seed, as a checkpoint can hold it."""
        reference = None if self.reference is None else self.reference.state_dict()
        optimizer = optimizer_state(self.optimizer)
        return {"policy": self.policy.state_dict(), "reference": reference, "optimizer": optimizer, "updates": self.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit. Settings are those of the present config, not of the saved one."""
        self.policy.load_state_dict(state["policy"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.repeated.forget()
        self.updates = state["updates"]
