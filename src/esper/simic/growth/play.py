"""Playing: every host acts once per epoch, all at once, under a controller or a policy; what happens is recorded as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from esper.leyline.actions import Decision
from esper.leyline.events import Event, HostFinished, HostStarted, Note, Rewarded, RolledBack
from esper.nissa import Hub
from esper.simic.growth.environment import Environment, Start
from esper.simic.growth.episode import Thought, decided, epoch_events, hosts_trained, observed
from esper.simic.growth.host_run import Acted, Trained
from esper.simic.growth.recording import EpisodeRecorder
from esper.simic.rewards import RewardStep
from esper.tamiyo import Controller, Observation

Given = TypeVar("Given")
Answer = TypeVar("Answer")

Progress = Callable[[float], None]
"""Told what share of the whole is done, from 0 to 1."""


class Decider(Protocol):
    """Who decides for the hosts of a play, each known by its place."""

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """These hosts are about to begin; what whoever decides for each is called."""

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """One decision for each host, after an epoch of all."""

    def thought(self, place: int) -> Thought | None:
        """What the last decision for that host was drawn from; None where a rule decided."""

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

    def thought(self, place: int) -> None:
        """Controllers give their reasons in words, with the decision."""

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Controllers do not learn."""


class DecidersAbreast:
    """Several deciders in one play, each for hosts of its own: the first ones are those of the first.

    parts: deciders, each with the number of its hosts, which it knows by places of its own, from 0 on.
    """

    def __init__(self, parts: Sequence[tuple[Decider, int]]) -> None:
        self.deciders = [decider for decider, _ in parts]
        self.of = [(number, own) for number, (_, hosts) in enumerate(parts) for own in range(hosts)]
        """By place, the decider and the place that it knows."""

    def begin(self, started: Mapping[int, HostStarted]) -> dict[int, str]:
        """Begin with each; the names of all."""
        return self._each(started, lambda decider, mine: decider.begin(mine))

    def decide(self, seen: Mapping[int, Observation]) -> dict[int, Decision]:
        """Ask each for its hosts."""
        return self._each(seen, lambda decider, mine: decider.decide(mine))

    def thought(self, place: int) -> Thought | None:
        """What the decider of the host's says."""
        number, own = self.of[place]
        return self.deciders[number].thought(own)

    def earned(self, rewards: Mapping[int, RewardStep], ended: bool) -> None:
        """Tell each what its hosts earned."""
        for number, places in self._shared(rewards).items():
            self.deciders[number].earned({self.of[place][1]: rewards[place] for place in places}, ended)

    def _each(self, given: Mapping[int, Given], ask: Callable[[Decider, dict[int, Given]], dict[int, Answer]]) -> dict[int, Answer]:
        """What every decider that has hosts among these answers, by place."""
        answers: dict[int, Answer] = {}
        for number, places in self._shared(given).items():
            own = {self.of[place][1]: place for place in places}
            found = ask(self.deciders[number], {mine: given[place] for mine, place in own.items()})
            answers |= {own[mine]: answer for mine, answer in found.items()}
        return answers

    def _shared(self, places: Iterable[int]) -> dict[int, list[int]]:
        """Places by decider."""
        shares: dict[int, list[int]] = {}
        for place in places:
            shares.setdefault(self.of[place][0], []).append(place)
        return shares


class Play:
    """One episode of every start, an epoch at a time.

    hub: takes the events. first: the number of the first host in the record; the others follow.
    recorders: by place, of the hosts whose episodes are kept for imitation and offline learning.
    round, arm: of which round of the run, and of which arm of an examination, or each host's; told with every host.
    recorded: how many of the hosts the record tells of, the first ones; None for all.
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
        round: int = 0,
        arm: str | Sequence[str] = "",
        recorded: int | None = None,
    ) -> None:
        self.environment, self.decider, self.first, self.round = environment, decider, first, round
        self.recorded = len(starts) if recorded is None else recorded
        self.hub, self.recorders = hub or Hub(), recorders or {}
        started = environment.begin(dict(enumerate(starts)))
        names = decider.begin(started)
        self.started = [
            replace(
                started[place],
                controller=names[place],
                twin_of=None if start.twin_of is None else first + start.twin_of,
                round=round,
                arm=arm if isinstance(arm, str) else arm[place],
            )
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
            if self._tells(place):
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
        self._tell(seen, trained, decisions, acted)
        self._earned({place: each.reward for place, each in acted.items() if each.reward is not None}, self.epoch, ended=True)
        for place, each in acted.items():
            if each.result is not None:
                self.results[place] = each.result
                if self._tells(place):
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
            if self.started[place].twin_of is None and self._details(place):
                self._emit(place, epoch, Rewarded(total=reward.total, components=dict(reward.components)))

    # The record

    def _tell(
        self,
        seen: Mapping[int, Observation],
        trained: Mapping[int, Trained],
        decisions: Mapping[int, Decision],
        acted: Mapping[int, Acted],
    ) -> None:
        """An epoch: the course of all hosts, the whole of some, and what must never go unseen of the others."""
        if not self.hub.on:
            return
        if self.hub.details(self.round, 0):
            reports = {self.first + place: each.report for place, each in seen.items() if place < self.recorded}
            if reports:
                self.hub.emit(hosts_trained(reports), epoch=self.epoch)
        for place, each in acted.items():
            if place >= self.recorded:
                continue
            before, after = trained[place].events, each.events
            if self._details(place):
                thought = self.decider.thought(place)
                events = [*epoch_events(seen[place].report), *before, decided(decisions[place], seen[place], thought), *after]
                if self.hub.observes:
                    events.insert(-1 - len(after), observed(seen[place]))
                self._emit(place, self.epoch, *events)
            else:
                self._emit(place, self.epoch, *(event for event in before if isinstance(event, RolledBack | Note)))

    def _tells(self, place: int) -> bool:
        """Whether beginning and end of a host are told: those of all hosts, until the record has its size."""
        return place < self.recorded and self.hub.tells(self.round) and (not self.hub.full or self._details(place))

    def _details(self, place: int) -> bool:
        """Whether a host is told of in full: a twin as the host that it is the control of."""
        if place >= self.recorded:
            return False
        twin_of = self.started[place].twin_of
        return self.hub.details(self.round, place if twin_of is None else twin_of - self.first)

    def _emit(self, place: int, epoch: int, *events: Event) -> None:
        for event in events:
            self.hub.emit(event, host=self.first + place, epoch=epoch)
