"""What the policy did in a round: a buffer made once, filled as hosts go along, and the advantages of what was done.

One row is one episode of one host, from zero memory. Rows that end early are padded: a padded step has one legal action, WAIT, and
weight 0, so that it can go through the same code as any other and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import Exploration
from esper.tamiyo.policy.policy import Acted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """Whole episodes, one a row, each to its end; all tensors but `task` are [hosts, steps] in front."""

    observations: ObservationBatch
    actions: Tensor
    """int64 [hosts, steps, 8]."""
    log_prob: Tensor
    """Of each action when it was drawn."""
    value: Tensor
    """What the critic expected then."""
    reward: Tensor
    """What each step earned."""
    weight: Tensor
    """1 for a step that happened, 0 for padding."""
    task: Tensor
    """int64 [hosts]: the number of each host's task; advantages are compared within each."""
    exploration: Exploration | None
    """What the actions were drawn with, and must be scored with."""

    @property
    def hosts(self) -> int:
        """Episodes, one of each host."""
        return self.weight.shape[0]

    def lengths(self) -> Tensor:
        """[hosts]: steps that happened."""
        return self.weight.sum(dim=1)

    def advantages(self, gamma: float, gae_lambda: float) -> Tensor:
        """[hosts, steps]: generalised advantage estimates; 0 in padding. With `value` added they are the critic's targets."""
        return gae(self.reward, self.value, self.weight, gamma, gae_lambda)

    def returns(self, gamma: float) -> Tensor:
        """[hosts, steps]: what was earned from each step to the end, discounted, whatever the critic said; 0 in padding."""
        return discounted(self.reward * self.weight, gamma)

    def to(self, device: torch.device) -> Rollout:
        """The same round on another device."""
        names = ("observations", "actions", "log_prob", "value", "reward", "weight", "task")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


class RolloutBuffer:
    """Room for one round: `hosts` episodes of at most `steps` steps, on hosts with at most `slots` slots.

    In CPU memory, where observations and rewards come from and decisions go to: filling it waits for no device.
    """

    def __init__(self, hosts: int, steps: int, slots: int, blueprints: int, *, exploration: Exploration | None = None) -> None:
        if min(hosts, steps, blueprints) < 1 or slots < 0:
            raise ValueError(f"a buffer needs hosts, steps and blueprints; found {hosts}, {steps}, {blueprints} and {slots} slots")
        self.hosts, self.steps, self.exploration = hosts, steps, exploration
        self.observations = ObservationBatch.padding((hosts, steps), max(1, slots), blueprints)
        self._fresh = ObservationBatch.padding((1, 1), max(1, slots), blueprints)

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(hosts, steps, *size, dtype=dtype)

        self.actions = zeros(len(HEADS), dtype=torch.int64)
        self.log_prob, self.value, self.reward, self.weight = zeros(dtype=torch.float64), zeros(), zeros(), zeros()
        self.judged, self.terminated = zeros(dtype=torch.bool), zeros(dtype=torch.bool)
        self.task = torch.zeros(hosts, dtype=torch.int64)
        """The number of each host's task, for whoever plays several to fill in."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its tensors take."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def clear(self) -> None:
        """Make room for the next round: everything is padding again."""
        for name, tensor in self.observations.tensors().items():
            tensor.copy_(self._fresh.tensors()[name].expand_as(tensor))
        for tensor in self._tensors()[len(self.observations.tensors()) :]:
            tensor.zero_()

    def decided(self, hosts: Sequence[int], step: int, batch: ObservationBatch, acted: Acted) -> None:
        """What these hosts, in the order of the batch, saw and decided at a step, counted from 0. Steps of a host come in order."""
        rows = self._rows(hosts, step)
        if batch.slot_count > self.observations.slot_count:
            raise ValueError(f"a host has {batch.slot_count} slots; the buffer was made for {self.observations.slot_count}")
        if self.weight[rows, step].any() or (step > 0 and not self.judged[rows, step - 1].all()):
            raise ValueError(f"step {step} of hosts {list(hosts)} was decided before, or the step before it has no outcome yet")
        if step > 0 and self.terminated[rows, step - 1].any():
            raise ValueError(f"an episode of hosts {list(hosts)} ended before step {step}; the buffer holds one whole episode of each")
        self.observations.fill((rows, step), batch)  # slots that a host does not have stay padding
        self.actions[rows, step] = acted.actions
        self.log_prob[rows, step] = acted.log_prob
        self.value[rows, step] = acted.value
        self.weight[rows, step] = 1.0

    def outcome(self, hosts: Sequence[int], step: int, reward: Tensor, *, terminated: Tensor) -> None:
        """What followed a step of these hosts: its reward [hosts], and whether the episode ended with it, bool [hosts]."""
        rows = self._rows(hosts, step)
        if not self.weight[rows, step].all() or self.judged[rows, step].any():
            raise ValueError(f"step {step} of hosts {list(hosts)} was not decided yet, or has an outcome already")
        self.reward[rows, step] = reward.to(self.reward)
        self.terminated[rows, step] = terminated.to(self.terminated)
        self.judged[rows, step] = True

    def rollout(self) -> Rollout:
        """The round, as views of the buffer cut to its longest episode. Raises ValueError unless every episode has come to its end."""
        whole = self.terminated.any(dim=1)
        if not whole.all():
            raise ValueError(f"every host must have one whole episode; those of hosts {(~whole).nonzero().flatten().tolist()} have no end")
        used = int(self.weight.sum(dim=1).max())
        return Rollout(
            observations=self.observations[:, :used],
            actions=self.actions[:, :used],
            log_prob=self.log_prob[:, :used],
            value=self.value[:, :used],
            reward=self.reward[:, :used],
            weight=self.weight[:, :used],
            task=self.task,
            exploration=self.exploration,
        )

    def _rows(self, hosts: Sequence[int], step: int) -> Tensor:
        if not 0 <= step < self.steps or not all(0 <= host < self.hosts for host in hosts):
            raise ValueError(f"step {step} of hosts {list(hosts)} does not fit: the buffer has {self.hosts} hosts and {self.steps} steps")
        return torch.tensor(list(hosts), dtype=torch.int64)

    def _tensors(self) -> list[Tensor]:
        own = (self.actions, self.log_prob, self.value, self.reward, self.weight, self.judged, self.terminated, self.task)
        return [*self.observations.tensors().values(), *own]


# Of rows that hold one episode each, from its first step to its end, and padding of weight 0 behind it


def gae(reward: Tensor, value: Tensor, weight: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """[hosts, steps]: generalised advantage estimates of reward, value and weight [hosts, steps]; 0 in padding.

    The advantage of a step is the sum of the temporal-difference errors from there to the end, by powers of gamma * lambda.
    """
    return discounted(td_targets(reward, value, weight, gamma) - value * weight, gamma * gae_lambda)


def td_targets(reward: Tensor, value: Tensor, weight: Tensor, gamma: float) -> Tensor:
    """[hosts, steps]: reward plus gamma times the value of the state reached, which is 0 behind the end of an episode."""
    following = torch.zeros_like(value)
    following[:, :-1] = value[:, 1:] * weight[:, 1:]
    return (reward + gamma * following) * weight


def discounted(values: Tensor, rate: float) -> Tensor:
    """[hosts, steps]: each step's value plus all that follow it, by powers of the rate; values [hosts, steps] are 0 in padding.

    One product of matrices instead of a loop over time: what step t gets of a later step u is rate^(u - t).
    """
    steps = torch.arange(values.shape[1], device=values.device)
    ahead = steps - steps[:, None]
    share = torch.where(ahead >= 0, torch.pow(torch.tensor(rate, dtype=torch.float64), ahead.clamp(min=0)), 0.0)
    return (share @ values.double().unsqueeze(-1)).squeeze(-1).to(values.dtype)
