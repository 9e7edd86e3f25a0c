"""Episodes as diagnostics see them: what was seen, decided, earned and what happened, step by step; and whoever watches a play for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from esper.leyline.actions import Decision, Op
from esper.leyline.events import Envelope, Event, HostFinished, HostStarted
from esper.leyline.reports import GradientStats, SeedReport

if TYPE_CHECKING:  # these load torch, which whoever looks at recorded runs can do without
    from esper.simic.growth.episode import Thought
    from esper.simic.growth.play import Decider
    from esper.simic.rewards import RewardStep
    from esper.tamiyo import Observation

Floats = NDArray[np.float64]

TREND_EPOCHS = 3
"""Epochs before there is a trend of the loss; see tamiyo/observe/trend.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decision of one host: after which epoch, on what, and what followed."""

    epoch: int
    """Epochs done when it was made, from 1."""
    legal: tuple[bool, ...]
    """Of each op, in order."""
    decision: Decision
    reward: float
    trend: float | None
    """Of the validation loss per epoch, in units of its noise; None before there is one."""
    val_accuracy: float
    bare_accuracy: float | None
    """With every seed switched off; None while none is blended in."""
    seeds: tuple[SeedReport, ...]
    """Of each slot, before the decision."""
    gradients: GradientStats | None
    """The host's, of the epoch before the decision."""
    operations: int
    """Spent in that epoch."""
    events: tuple[Event, ...] = ()
    """Of the epoch and of what the decision brought about, in order."""

    @property
    def choice(self) -> bool:
        """Whether something besides WAIT was legal."""
        return any(self.legal[1:])

    @property
    def acted(self) -> bool:
        """Whether something besides WAIT was decided."""
        return self.decision.op is not Op.WAIT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mind:
    """What a policy thought in an episode; a controller that follows a rule has none to show. T: steps."""

    op_probability: Floats
    """[T, 6]: of each op."""
    entropy: Floats
    """[T, 8]: of each head given the heads before it, as a share of the largest possible with what was legal."""
    legal: NDArray[np.int64]
    """[T, 8]: legal values of each head; 0 where it did not matter."""
    value: Floats
    """[T]: what the critic expected."""
    returns: Floats
    """[T]: what followed in truth, discounted, to the end of the episode."""
    targets: Floats
    """[T]: what the critic is taught, which leans on its own later values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """One host from its first epoch to its end."""

    host: int
    """Its number among the hosts that were asked for; the same in every draw."""
    draw: int
    """Which play of the same hosts it belongs to."""
    started: HostStarted
    steps: tuple[Step, ...]
    result: HostFinished
    mind: Mind | None = None

    @property
    def budget(self) -> int:
        """Epochs in all."""
        return self.started.epochs


@dataclass(slots=True)
class _Seen:
    """A step that is not over."""

    observation: Observation
    decision: Decision
    reward: float = 0.0


class Watcher:
    """Stands between a play and whoever decides, and listens to the events, so that nothing of the episodes is lost. A Decider, a Sink."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self._steps: dict[int, list[_Seen]] = {}
        self._events: dict[tuple[int, int], list[Event]] = {}

    # As a Decider

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """Hosts begin, with nothing seen of them yet."""
        self._steps = {place: [] for place in started}
        self._events = {}
        return self.decider.begin(started)

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """What the one behind decides."""
        decisions = self.decider.decide(seen)
        for place, observation in seen.items():
            self._steps[place].append(_Seen(observation, decisions[place]))
        return decisions

    def thought(self, place: int) -> Thought | None:
        """What the one behind decided from."""
        return self.decider.thought(place)

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """What the last decisions earned."""
        for place, reward in rewards.items():
            self._steps[place][-1].reward = reward.total
        self.decider.earned(rewards, ended)

    # As a Sink

    def write(self, envelope: Envelope) -> None:
        """Keep an event with the epoch of its host."""
        if envelope.host is not None and envelope.epoch is not None:
            self._events.setdefault((envelope.host, envelope.epoch), []).append(envelope.event)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to put away."""

    def episode(self, place: int, draw: int, started: HostStarted, result: HostFinished) -> Episode:
        """The whole episode of the host at a place."""
        steps = tuple(_step(seen, tuple(self._events.get((place, seen.observation.report.epoch), ()))) for seen in self._steps[place])
        return Episode(host=place, draw=draw, started=started, steps=steps, result=result)


def _step(seen: _Seen, events: tuple[Event, ...]) -> Step:
    observation, report = seen.observation, seen.observation.report
    return Step(
        epoch=report.epoch,
        legal=tuple(bool(each) for each in observation.masks.ops()),
        decision=seen.decision,
        reward=seen.reward,
        trend=observation.host_value("val_loss_trend") if report.epoch >= TREND_EPOCHS else None,
        val_accuracy=report.val_accuracy,
        bare_accuracy=report.bare_accuracy,
        seeds=report.seeds,
        gradients=report.gradients,
        operations=sum(report.flops.values()),
        events=events,
    )
