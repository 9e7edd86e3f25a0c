"""Playing: every host acts once per epoch, all at once, under a controller or a policy; what happens is recorded as it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from esper.leyline.actions import Decision
from esper.leyline.events import Event, HostFinished, HostStarted, Rewarded
from esper.nissa import Hub
from esper.simic.growth.environment import Environment, Start
from esper.simic.growth.episode import decided, epoch_events
from esper.simic.growth.recording import EpisodeRecorder
from esper.simic.rewards import RewardStep
from esper.tamiyo import Controller, Observation

Progress = Callable[[float], None]
"""Told what share of the whole is done, from 0 to 1."""


class Decider(Protocol):
    """Who decides for the hosts of a play, each known by its place."""

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """These hosts are about to begin; what whoever decides for each is called."""

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """One decision for each host, after an epoch of all."""

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """What the last decision of each of these hosts earned, and whether that was the end."""


class ControllerDecider:
    """Controllers, one for each host; what they remember is kept here."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self.controllers = controllers
        self.memory: dict[int, Any] = {}

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """Start a memory for each host; the names of the controllers."""
        self.memory = {place: self.controllers[place].start(host.seed) for place, host in started.items()}
        return {place: self.controllers[place].name for place in started}

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """Ask each host's controller."""
        decisions = {}
        for place, observation in seen.items():
            decisions[place], self.memory[place] = self.controllers[place].decide(observation, self.memory[place])
        return decisions

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Controllers do not learn."""


class Play:
    """One episode of every start, an epoch at a time.

    hub: takes the events. first: the number of the first host in the record; the others follow.
    recorders: by place, of the hosts whose episodes are kept for imitation and offline learning.
    about: what every HostStarted says besides its host: the round, the arm of an examination.
    """

    def __init__(
        self,
        environment: Environment,
        decider: Decider,
        starts: Sequence[Start],
        *,
        hub: Hub | None = None,
        first: int = 0,
        recorders: Mapping[int, EpisodeRecorder] | None = None,
        **about: Any,
    ) -> None:
        self.environment, self.decider, self.first = environment, decider, first
        self.hub, self.recorders = hub or Hub(), recorders or {}
        started = environment.begin(dict(enumerate(starts)))
        names = decider.begin(started)
        self.started = [
            replace(started[place], controller=names[place], twin_of=None if start.twin_of is None else first + start.twin_of, **about)
            for place, start in enumerate(starts)
        ]
        self.results: dict[int, HostFinished] = {}
        self.epoch = 0

    @property
    def done(self) -> bool:
        """Whether every host has ended."""
        return len(self.results) == len(self.started)

    def announce(self) -> None:
        """Record that the hosts begin."""
        for place, host in enumerate(self.started):
            self._emit(place, 0, host)

    def run_epoch(self, progress: Callable[[int], None] | None = None) -> None:
        """Train every host that has not ended for an epoch, decide, act, and record all of it. progress: told how many are trained."""
        trained = self.environment.train(progress)
        self.epoch += 1
        self._earned({place: each.reward for place, each in trained.items() if each.reward is not None}, self.epoch - 1, ended=False)
        seen = {place: each.observation for place, each in trained.items()}
        decisions = self.decider.decide(seen)
        for place, recorder in self.recorders.items():
            if place in seen:
                recorder.decided(seen[place], decisions[place])
        acted = self.environment.act(decisions)
        if self.hub.on:
            for place, each in acted.items():
                events = [*epoch_events(seen[place].report), *trained[place].events, decided(decisions[place], seen[place]), *each.events]
                self._emit(place, self.epoch, *events)
        self._earned({place: each.reward for place, each in acted.items() if each.reward is not None}, self.epoch, ended=True)
        for place, each in acted.items():
            if each.result is not None:
                self.results[place] = each.result
                self._emit(place, self.epoch, each.result)

    def through(self, progress: Progress | None = None) -> list[HostFinished]:
        """All epochs from the first to the last; how each host ended."""
        self.announce()
        total = sum(host.epochs for host in self.started)
        while not self.done:
            before = sum(min(host.epochs, self.epoch) for host in self.started)
            self.run_epoch(None if progress is None else lambda done, before=before: progress((before + done) / total))  # type: ignore[misc]
        return [self.results[place] for place in range(len(self.started))]

    def _earned(self, rewards: dict[int, RewardStep], epoch: int, ended: bool) -> None:
        self.decider.earned(rewards, ended)
        for place, reward in rewards.items():
            if place in self.recorders:
                self.recorders[place].earned(reward.total)
            if self.hub.on and self.started[place].twin_of is None:
                self._emit(place, epoch, Rewarded(total=reward.total, components=dict(reward.components)))

    def _emit(self, place: int, epoch: int, *events: Event) -> None:
        if self.hub.on:
            for event in events:
                self.hub.emit(event, host=self.first + place, epoch=epoch)
