"""Many hosts as one environment: they start from their seeds, take a decision each per epoch, and are rewarded for what happened.

The time of a step: the decision after epoch t is carried out, the body ticks, epoch t + 1 is trained, and its report brings
the reward and the next observation. The decision after the last epoch of a budget is carried out and ends the episode; its reward is
that of the network harvested then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from esper.leyline.actions import Decision
from esper.leyline.events import Event
from esper.leyline.reports import EpochReport
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.episode import Episode, Step
from esper.simic.growth.twins import TwinCache, final_score
from esper.simic.plugins import load_plugins
from esper.simic.rewards import RewardStep, RewardTracker, Twin
from esper.tamiyo import Observation, Rules, make
from esper.tolaria.data import Data
from esper.tolaria.tasks import Member, Task
from esper.tolaria.tasks import get as get_task
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import Engine, SerialEngine
from esper.tolaria.training.flops import FlopLedger
from esper.tolaria.training.host import Host


@dataclass(frozen=True, slots=True)
class Start:
    """Which host an episode is about: a task and a host seed."""

    task: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step of one host brought."""

    observation: Observation
    """The state reached; at the end of an episode the last one seen."""
    reward: RewardStep
    terminated: bool
    refused: str
    events: tuple[Event, ...]
    final: dict[str, float] | None
    """At the end: val accuracy, loss, parameters of the harvested network, counts of its seeds, and the control's figures."""


class Environment(Protocol):
    """Whatever runs episodes of several hosts side by side: in this process, or in workers."""

    def reset(self, starts: Sequence[Start]) -> list[Observation]:
        """Begin an episode for each start, trained for its first epoch."""
        ...

    def step(self, decisions: Sequence[Decision]) -> list[Outcome | None]:
        """One decision for each host; None for those whose episode is over."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(slots=True)
class _Play:
    host: Host
    episode: Episode
    rewards: RewardTracker
    control: Twin | None
    report: EpochReport
    observation: Observation


class Growth:
    """The environment in this process, on one engine."""

    def __init__(self, config: GrowthConfig, engine: Engine | None = None) -> None:
        self.config, self.engine = config, engine or SerialEngine()
        self.device = device_named(config.device)
        load_plugins(config.plugins)
        torch.set_num_threads(config.threads or 1)
        self.ledger = FlopLedger()
        self._data: dict[str, Data] = {}
        self._plays: list[_Play | None] = []
        self.controls = TwinCache(config)

    def data(self, task: Task) -> Data:
        """The task's data, loaded once."""
        if task.name not in self._data:
            self._data[task.name] = task.open_data(self.config.data, self.device)
        return self._data[task.name]

    def member(self, task: Task, seed: int) -> Member:
        """The member of the task's family that a seed stands for."""
        return self.config.member_for(task.family, seed)

    def reset(self, starts: Sequence[Start]) -> list[Observation]:
        """Begin an episode for each start, trained for its first epoch."""
        self._plays = [None] * len(starts)
        begun = self.restart(dict(enumerate(starts)))
        return [begun[place] for place in range(len(starts))]

    def restart(self, starts: Mapping[int, Start]) -> dict[int, Observation]:
        """Begin another episode at some places, counted as in `reset`, trained for its first epoch; the other hosts stay as they are."""
        hosts = [self._host(start) for start in starts.values()]
        controls = [self._control(start) for start in starts.values()]
        reports = self.engine.run_epoch(hosts)
        observations = {}
        for place, host, control, report in zip(starts, hosts, controls, reports, strict=True):
            rules = Rules(max_seeds=self.config.max_seeds, enabled=self.config.slots or None)
            episode = Episode(host, make("wait"), rules, seed=host.seed)
            tracker = RewardTracker(self.config.reward, host.model.slot_ids)
            observations[place] = episode.look(report)
            self._plays[place] = _Play(host, episode, tracker, control, report, observations[place])
        return observations

    def step(self, decisions: Sequence[Decision]) -> list[Outcome | None]:
        """Carry out one decision for each host, train an epoch, and reward. None for hosts whose episode is over."""
        assert len(decisions) == len(self._plays), f"{len(decisions)} decisions for {len(self._plays)} hosts"
        steps: list[Step | None] = [
            play.episode.carry_out(play.observation, decision) if play is not None else None
            for play, decision in zip(self._plays, decisions, strict=True)
        ]
        going = [play for play in self._plays if play is not None and not play.host.done]
        reports = iter(self.engine.run_epoch([play.host for play in going]))
        outcomes: list[Outcome | None] = []
        for index, (play, step) in enumerate(zip(self._plays, steps, strict=True)):
            if play is None or step is None:
                outcomes.append(None)
            elif play.host.done and play not in going:
                outcomes.append(self._last(play, step))
                self._plays[index] = None
            else:
                outcomes.append(self._next(play, step, next(reports)))
        return outcomes

    def close(self) -> None:
        """Let go of hosts and data."""
        for data in self._data.values():
            data.release()
        self._data, self._plays = {}, []

    def _host(self, start: Start) -> Host:
        task = get_task(start.task)
        return Host(task, self.data(task), self.member(task, start.seed), start.seed, self.config.training, self.ledger)

    def _control(self, start: Start) -> Twin | None:
        if not self.config.control:
            return None
        task = get_task(start.task)
        return self.controls.get(task, self.data(task), self.member(task, start.seed), start.seed)

    def _next(self, play: _Play, step: Step, report: EpochReport) -> Outcome:
        reward = play.rewards.step(
            before=play.report,
            decision=step.decision,
            refused=bool(step.refused),
            events=step.events,
            report=report,
            control=play.control,
            final=None,
        )
        play.report, play.observation = report, play.episode.look(report)
        return Outcome(observation=play.observation, reward=reward, terminated=False, refused=step.refused, events=step.events, final=None)

    def _last(self, play: _Play, step: Step) -> Outcome:
        final = final_score(play.host)
        reward = play.rewards.step(
            before=play.report,
            decision=step.decision,
            refused=bool(step.refused),
            events=step.events,
            report=play.report,
            control=play.control,
            final=final,
        )
        figures: dict[str, Any] = {
            "accuracy": final.accuracy,
            "loss": final.loss,
            "parameters": float(final.parameters),
            "host_parameters": float(play.host.start_parameters),
            "fossilized": float(play.host.fossilized),
            "germinated": float(play.host.germinated),
            "pruned": float(play.host.pruned),
            "rollbacks": float(play.host.rollbacks),
        }
        if play.control is not None:
            assert play.control.final is not None
            figures.update(control_accuracy=play.control.final.accuracy, control_loss=play.control.final.loss)
        return Outcome(
            observation=play.observation, reward=reward, terminated=True, refused=step.refused, events=step.events, final=figures
        )
