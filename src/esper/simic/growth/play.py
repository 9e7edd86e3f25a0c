"""Rounds of episodes under a policy: every host acts once per epoch, all at once, and what happened is kept for learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from esper.leyline.actions import WAIT, Decision
from esper.leyline.events import Event
from esper.simic.growth.environment import Environment, Outcome, Start
from esper.simic.growth.recording import EpisodeRecorder
from esper.simic.learning.rollout import RolloutBuffer
from esper.tamiyo import Controller, Observation
from esper.tamiyo.policy.batch import ObservationBatch, decision_of
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.network import LSTMState
from esper.tamiyo.policy.policy import Policy, PolicyState


@dataclass(slots=True)
class Played:
    """One episode that was played: what each step earned, by component, and how it ended."""

    start: Start
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    events: list[tuple[int, Event]] = field(default_factory=list)
    """With the epoch of each."""
    refused: int = 0
    final: dict[str, float] = field(default_factory=dict)

    def add(self, decision: Decision, outcome: Outcome) -> None:
        """One more step."""
        self.decisions.append(decision)
        self.reward += outcome.reward.total
        for name, value in outcome.reward.components.items():
            self.components[name] = self.components.get(name, 0.0) + value
        self.events += [(len(self.decisions), event) for event in outcome.events]
        self.refused += bool(outcome.refused)
        if outcome.final is not None:
            self.final = outcome.final


Progress = Callable[[int, int], None]
"""Told how many host-epochs are done, and of how many."""


def play_round(
    environment: Environment,
    policy: Policy,
    starts: Sequence[Start],
    *,
    seed: int,
    explore: Exploration | None,
    buffer: RolloutBuffer | None = None,
    recorders: Sequence[EpisodeRecorder] = (),
    deterministic: bool = False,
    progress: Progress | None = None,
) -> list[Played]:
    """One episode of every start under the policy. Chance comes from (seed, place in the round, step) alone.

    buffer: takes what is needed to learn from the round; None when nobody learns.
    recorders: one for each start, to keep the episodes for imitation and offline learning; none to keep none.
    """
    observations: list[Observation | None] = list(environment.reset(starts))
    played = [Played(start) for start in starts]
    total = sum(each.report.budget for each in observations if each is not None)
    state, step, done = policy.initial_state(len(starts)), 0, len(starts)
    while any(each is not None for each in observations):
        rows = [row for row, each in enumerate(observations) if each is not None]
        seen = [each for each in observations if each is not None]
        batch = ObservationBatch.from_observations(seen, policy.config.blueprints, policy.device)
        chance = None if deterministic else uniforms(seed, rows, step)
        index = torch.tensor(rows, device=policy.device)
        acted = policy.act(batch, state[index], chance, explore)
        decisions = [WAIT] * len(starts)
        for row, each, action in zip(rows, seen, acted.actions.tolist(), strict=True):
            decisions[row] = decision_of(each.masks, action, policy.config.blueprints)
        if buffer is not None:
            buffer.decided(rows, step, batch, acted)
        if recorders:
            for row, each in zip(rows, seen, strict=True):
                recorders[row].decided(each, decisions[row])
        outcomes = environment.step(decisions)
        ended = []
        for row in rows:
            outcome = outcomes[row]
            assert outcome is not None, f"host {row} has an observation and no outcome"
            played[row].add(decisions[row], outcome)
            if recorders:
                recorders[row].earned(outcome.reward.total)
            ended.append(outcome.terminated)
            observations[row] = None if outcome.terminated else outcome.observation
        if buffer is not None:
            rewards = torch.tensor([outcomes[row].reward.total for row in rows])  # type: ignore[union-attr]
            buffer.outcome(rows, step, rewards, terminated=torch.tensor(ended))
        state = _updated(state, index, acted.state)
        done += len(rows) - sum(ended)
        step += 1
        if progress is not None:
            progress(done, total)
    return played


def _updated(state: PolicyState, hosts: torch.Tensor, new: PolicyState) -> PolicyState:
    """The state of all hosts with that of some replaced."""

    def replaced(old: LSTMState, part: LSTMState) -> LSTMState:
        return old[0].index_copy(0, hosts, part[0]), old[1].index_copy(0, hosts, part[1])

    with torch.inference_mode():
        return PolicyState(actor=replaced(state.actor, new.actor), critic=replaced(state.critic, new.critic))


def play_controller(
    environment: Environment, controller: Controller, starts: Sequence[Start], *, progress: Progress | None = None
) -> list[Played]:
    """One episode of every start under a controller."""
    observations: list[Observation | None] = list(environment.reset(starts))
    played = [Played(start) for start in starts]
    memories = [controller.start(start.seed) for start in starts]
    total = sum(each.report.budget for each in observations if each is not None)
    done = len(starts)
    while any(each is not None for each in observations):
        decisions = [WAIT] * len(starts)
        for row, each in enumerate(observations):
            if each is not None:
                decisions[row], memories[row] = controller.decide(each, memories[row])
        for row, outcome in enumerate(environment.step(decisions)):
            if outcome is not None:
                played[row].add(decisions[row], outcome)
                observations[row] = None if outcome.terminated else outcome.observation
                done += not outcome.terminated
        if progress is not None:
            progress(done, total)
    return played
