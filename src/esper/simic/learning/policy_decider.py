"""A policy that decides for all hosts of a play at once, and keeps what it takes to learn from that."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from esper.leyline.actions import Decision
from esper.leyline.errors import LearningError
from esper.leyline.events import HostStarted
from esper.simic.learning.rollout import RolloutBuffer
from esper.simic.rewards import RewardStep
from esper.tamiyo import Observation
from esper.tamiyo.policy.batch import ObservationBatch, decision_of
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.network import LSTMState
from esper.tamiyo.policy.policy import Policy, PolicyState


class PolicyDecider:
    """A policy for all hosts at once. Chance comes from (seed, place, step) alone.

    explore: what actions are drawn with. deterministic: take the likeliest action instead.
    buffer: takes what is needed to learn from the round; None when nobody learns.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        *,
        explore: Exploration | None = None,
        deterministic: bool = False,
        buffer: RolloutBuffer | None = None,
    ) -> None:
        self.policy, self.seed, self.explore, self.deterministic, self.buffer = policy, seed, explore, deterministic, buffer
        self.state = policy.initial_state(0)
        self.step = 0

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """All hosts begin together, with nothing remembered."""
        self.state, self.step = self.policy.initial_state(len(started)), 0
        return dict.fromkeys(started, "policy")

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """One action for each host, from one batch."""
        places, blueprints = list(seen), self.policy.config.blueprints
        batch = ObservationBatch.from_observations(list(seen.values()), blueprints)
        chance = None if self.deterministic else uniforms(self.seed, places, self.step)
        index = torch.tensor(places, device=self.policy.device)
        try:
            acted = self.policy.act(batch.to(self.policy.device), self.state[index], chance, self.explore)
        except FloatingPointError as error:
            raise LearningError(f"{error} at step {self.step + 1}; go on from a checkpoint before, with a lower learning rate") from error
        self.state = _updated(self.state, index, acted.state)
        if self.buffer is not None:
            self.buffer.decided(places, self.step, batch, acted)
        self.step += 1
        return {
            place: decision_of(observation.masks, action, blueprints)
            for (place, observation), action in zip(seen.items(), acted.actions.tolist(), strict=True)
        }

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Fill the buffer."""
        if self.buffer is not None and rewards:
            total = torch.tensor([reward.total for reward in rewards.values()])
            self.buffer.outcome(list(rewards), self.step - 1, total, terminated=torch.full((len(rewards),), ended))


def _updated(state: PolicyState, hosts: torch.Tensor, new: PolicyState) -> PolicyState:
    """The state of all hosts with that of some replaced."""

    def replaced(old: LSTMState, part: LSTMState) -> LSTMState:
        return old[0].index_copy(0, hosts, part[0]), old[1].index_copy(0, hosts, part[1])

    with torch.inference_mode():
        return PolicyState(actor=replaced(state.actor, new.actor), critic=replaced(state.critic, new.critic))
