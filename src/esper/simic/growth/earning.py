"""What an episode earns as it goes: the reward of each decision, once the epoch after it is known, and the record of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esper.leyline.actions import Decision
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.events import EVENT_TYPES, Event
from esper.leyline.reports import EpochReport
from esper.simic.growth.episode import Step
from esper.simic.growth.recording import EpisodeRecorder
from esper.simic.rewards import FinalScore, RewardConfig, RewardStep, RewardTracker, Twin


class Earnings:
    """One host's decisions and what they earned. `settle` comes with the report after a decision, `decided` with the next decision."""

    def __init__(self, config: RewardConfig, slots: tuple[str, ...]) -> None:
        self.tracker = RewardTracker(config, slots)
        self.recorder = EpisodeRecorder()
        self._pending: tuple[EpochReport, Decision, bool, tuple[Event, ...]] | None = None

    def decided(self, step: Step) -> None:
        """A decision was carried out; its reward is not known yet."""
        self.recorder.decided(step.observation, step.decision)
        self._pending = (step.observation.report, step.decision, bool(step.refused), step.events)

    def settle(self, report: EpochReport | None, control: Twin | None, final: FinalScore | None = None) -> RewardStep | None:
        """The reward of the decision before, from the epoch trained after it, or at the end from the harvested network.

        None when there was no decision yet.
        """
        if self._pending is None:
            return None
        before, decision, refused, events = self._pending
        reward = self.tracker.step(
            before=before, decision=decision, refused=refused, events=events, report=report or before, control=control, final=final
        )
        self.recorder.earned(reward.total)
        self._pending = None
        return reward

    def state(self) -> dict[str, Any]:
        """Everything to go on from."""
        pending = None
        if self._pending is not None:
            before, decision, refused, events = self._pending
            pending = [to_plain(before), to_plain(decision), refused, [[event.kind(), to_plain(event)] for event in events]]
        return {"tracker": self.tracker.state(), "recorder": self.recorder.state(), "pending": pending}

    def load_state(self, state: dict[str, Any]) -> None:
        self.tracker.load_state(state["tracker"])
        self.recorder.load_state(state["recorder"])
        self._pending = None
        if state["pending"] is not None:
            before, decision, refused, events = state["pending"]
            self._pending = (from_plain(EpochReport, before), from_plain(Decision, decision), refused, _events(events))


def _events(saved: Sequence[Any]) -> tuple[Event, ...]:
    return tuple(from_plain(EVENT_TYPES[kind], value) for kind, value in saved)
