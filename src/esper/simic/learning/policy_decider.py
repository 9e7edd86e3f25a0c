"""A policy that decides for all hosts of a play at once, and keeps what it takes to learn from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esper.leyline.actions import Decision
from esper.leyline.errors import LearningError
from esper.leyline.events import HostStarted
from esper.simic.growth.episode import Thought
from esper.simic.learning.repeated import Repeated, addresses
from esper.simic.learning.rollout import RolloutBuffer
from esper.simic.rewards import RewardStep
from esper.tamiyo import Observation
from esper.tamiyo.policy.batch import HEADS, ObservationBatch, decision_of, values_of
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.network import LSTMState
from esper.tamiyo.policy.policy import Acted, Policy, PolicyState


class PolicyDecider:
    """A policy for all hosts at once. Chance comes from (seed, place, step) alone.

    explore: what actions are drawn with. deterministic: take the likeliest action instead.
    buffer: takes what is needed to learn from the round; None when nobody learns.
    repeated: where what is captured on a GPU is kept from one play to the next; None to keep it for this one.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        *,
        explore: Exploration | None = None,
        deterministic: bool = False,
        buffer: RolloutBuffer | None = None,
        repeated: Repeated | None = None,
    ) -> None:
        self.policy, self.seed, self.explore, self.deterministic, self.buffer = policy, seed, explore, deterministic, buffer
        self.repeated = repeated or Repeated(policy.device)
        self.state = policy.initial_state(0)
        self.slots = 1
        self.step = 0
        self._last: tuple[dict[int, int], Mapping[int, Observation], Acted] | None = None

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """All hosts begin together, with nothing remembered."""
        self.state, self.step = self.policy.initial_state(len(started)), 0
        self.slots = max((1, *(len(each.slots) for each in started.values())))
        return dict.fromkeys(started, "policy")

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """One action for each host, from one batch."""
        places, blueprints = list(seen), self.policy.config.blueprints
        batch = ObservationBatch.from_observations(list(seen.values()), blueprints)
        chance = None if self.deterministic else uniforms(self.seed, places, self.step)
        try:
            acted = (self._as_whole if self.repeated.captures else self._alone)(places, batch, chance)
        except FloatingPointError as error:
            raise LearningError(f"{error} at step {self.step + 1}; go on from a checkpoint before, with a lower learning rate") from error
        acted = self.changed(places, batch, acted)
        self.state = acted.state
        self._last = {place: row for row, place in enumerate(places)}, seen, acted
        self.keep(places, batch, acted)
        self.step += 1
        return {
            place: decision_of(observation.masks, action, blueprints)
            for (place, observation), action in zip(seen.items(), acted.actions.tolist(), strict=True)
        }

    def changed(self, places: Sequence[int], batch: ObservationBatch, acted: Acted) -> Acted:
        """What is done at these places where the policy would do as `acted` says; `state` still is that before the step. Here the same."""
        return acted

    def keep(self, places: Sequence[int], batch: ObservationBatch, acted: Acted) -> None:
        """Fill the buffer with what was seen and done at these places."""
        if self.buffer is not None:
            self.buffer.decided(places, self.step, batch, acted)

    def thought(self, place: int) -> Thought:
        """What the last decision for that host was drawn from."""
        assert self._last is not None, "nothing is decided yet"
        rows, seen, acted = self._last
        masks, row, blueprints = seen[place].masks, rows[place], self.policy.config.blueprints
        chances = zip(HEADS, acted.chances[row].tolist(), strict=True)
        # A head's probabilities are padded to those of the largest.
        probabilities = {head: dict(zip(values_of(head, masks, blueprints), given, strict=False)) for head, given in chances}
        return Thought(probabilities, float(acted.value[row]))

    def _alone(self, places: Sequence[int], batch: ObservationBatch, chance: Tensor | None) -> Acted:
        """The decisions of the hosts at these places, and the state of all hosts."""
        index = torch.tensor(places, device=self.policy.device)
        acted = self.policy.act(batch.to(self.policy.device), self.state[index], chance, self.explore)
        return replace(acted, state=_updated(self.state, index, acted.state))

    @torch.inference_mode()
    def _as_whole(self, places: Sequence[int], batch: ObservationBatch, chance: Tensor | None) -> Acted:
        """The same from a pass over all hosts, which can be captured: those that have ended are padding, and stay as they are."""
        policy, repeated, index = self.policy, self.repeated, torch.tensor(places)
        hosts, slots = len(self.state.actor[0]), max(self.slots, batch.slot_count)
        seen, present = ObservationBatch.padding((hosts,), slots, len(policy.config.blueprints)), torch.zeros(hosts, dtype=torch.bool)
        seen.fill((index,), batch)
        present[index] = True
        if chance is not None:
            chance = chance.new_zeros(hosts, len(HEADS)).index_copy(0, index, chance).to(policy.device)
        with repeated.beside():
            repeated.begin(seen.slots.shape, self.explore, self.deterministic, addresses(policy))
            given = repeated.put("given", (seen.to(policy.device), self.state, chance, present.to(policy.device)))
            rows, state = repeated("step", partial(_step, policy, self.explore, *given))
        return policy.acted(rows.cpu()[index], state)

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Fill the buffer."""
        if self.buffer is not None and rewards:
            total = torch.tensor([reward.total for reward in rewards.values()])
            self.buffer.outcome(list(rewards), self.step - 1, total, terminated=torch.full((len(rewards),), ended))


def _step(
    policy: Policy, explore: Exploration | None, seen: ObservationBatch, state: PolicyState, chance: Tensor | None, present: Tensor
) -> tuple[Tensor, PolicyState]:
    """A step of all hosts, as `Policy.step` has it; those that are not present, bool [hosts], remember what they did."""
    rows, new = policy.step(seen, state, chance, explore)

    def kept(old: LSTMState, part: LSTMState) -> LSTMState:
        return torch.where(present[:, None], part[0], old[0]), torch.where(present[:, None], part[1], old[1])

    return rows, PolicyState(actor=kept(state.actor, new.actor), critic=kept(state.critic, new.critic))


def _updated(state: PolicyState, hosts: torch.Tensor, new: PolicyState) -> PolicyState:
    """The state of all hosts with that of some replaced."""

    def replaced(old: LSTMState, part: LSTMState) -> LSTMState:
        return old[0].index_copy(0, hosts, part[0]), old[1].index_copy(0, hosts, part[1])

    with torch.inference_mode():
        return PolicyState(actor=replaced(state.actor, new.actor), critic=replaced(state.critic, new.critic))
