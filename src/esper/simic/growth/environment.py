"""Many hosts as one environment: they begin from their seeds, take a decision each per epoch, and are rewarded for what happened.

The time of an epoch: `train` trains every host and shows what can be seen of it, with the reward of the decision before; `act` carries
out a decision for each. The decision after the last epoch of a budget ends the host; its reward is that of the network harvested then.
Runs under a controller, learning, examinations, twins and the Gymnasium environments all drive this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from esper.leyline.actions import WAIT, Decision
from esper.leyline.errors import unknown
from esper.leyline.events import HostStarted, Note
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.dealing import Load
from esper.simic.growth.host_run import Acted, HostRun, Start, Trained
from esper.simic.growth.static import sized
from esper.simic.growth.twins import TwinCache
from esper.simic.plugins import load_plugins
from esper.simic.rewards import Twin
from esper.tamiyo import Rules
from esper.tolaria.data import Data
from esper.tolaria.tasks import Family, Member, Task
from esper.tolaria.tasks import get as get_task
from esper.tolaria.training.cost import epoch_cost
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import ENGINES, choose
from esper.tolaria.training.host import Host
from esper.tolaria.training.stackable import key_of, kind_of


class Environment(Protocol):
    """Whatever grows several hosts side by side, each at a place: in this process, or in workers."""

    def expect(self, starts: Mapping[int, Start]) -> None:
        """The hosts that will begin next, told early by one who has something else to do until then."""

    def begin(self, starts: Mapping[int, Start]) -> dict[int, HostStarted]:
        """A new host at each of these places; the others stay as they are."""

    def train(self, progress: Callable[[int], None] | None = None) -> dict[int, Trained]:
        """One epoch of every host that has not ended and waits for no decision; `progress` is told how many are done."""

    def act(self, decisions: Mapping[int, Decision]) -> dict[int, Acted]:
        """Carry out one decision for each host that was trained."""

    def engines(self) -> list[dict[str, Any]]:
        """The state of the engine in each process, after all hosts have acted."""

    def load_engines(self, states: list[dict[str, Any]]) -> None:
        """Let the engines go on from these states, once the hosts are here; those of another number of processes change nothing."""

    def close(self) -> None:
        """Let go of everything."""


class Growth:
    """The environment in this process.

    test: whether hosts are scored on the untouched split when they end.
    """

    def __init__(self, config: GrowthConfig, *, test: bool = False) -> None:
        self.config, self.test = config, test
        self.devices = [device_named(name) for name in config.every_device]
        load_plugins(config.plugins)
        self.choice = choose(config.engine, config.training, self.devices[0])
        self.engine = ENGINES[self.choice.engine]()
        self.hosts: dict[int, HostRun] = {}
        """By place, those that have ended too."""
        self._data: dict[tuple[str, torch.device], Data] = {}
        self._families: dict[str, Family] = {}
        self._twins = TwinCache(config)

    def data(self, task: Task, place: int = 0) -> Data:
        """The task's data on the device of the host at a place, loaded once for each device."""
        key = (task.name, self.devices[place % len(self.devices)])
        if key not in self._data:
            self._data[key] = task.open_data(self.config.data, key[1])
        return self._data[key]

    def expect(self, starts: Mapping[int, Start]) -> None:
        """Nothing yet: a single process does one thing after another."""

    def begin(self, starts: Mapping[int, Start]) -> dict[int, HostStarted]:
        """A new host at each of these places; the others stay as they are."""
        begun = {place: self.make(start, place if start.twin_of is None else start.twin_of) for place, start in starts.items()}
        self.hosts |= begun
        beside = {start.twin_of: begun[place] for place, start in starts.items() if start.twin_of is not None}
        alone = {}
        for place, start in starts.items():
            if start.twin_of is not None:
                begun[place].twin = begun[place]
            elif place in beside:
                begun[place].twin = beside[place]
            elif self.config.control and start.control:
                alone[place] = start
        starts_of = {begun[place].host: start for place, start in alone.items()}
        twins = self._twins.get(list(starts_of), lambda hosts: self._courses([starts_of[host] for host in hosts]))
        for place, twin in zip(alone, twins, strict=True):
            begun[place].twin = twin
        return {place: run.started() for place, run in begun.items()}

    def make(self, start: Start, place: int = 0) -> HostRun:
        """One host, new, on the device of a place."""
        config, (task, member) = self.config, self._chosen(start)
        host = Host(task, self.data(task, place), member, start.seed, config.training)
        for slot in config.slots:
            if slot not in host.model.slot_ids:
                raise unknown("slot", slot, host.model.slot_ids)
        if planted := (*start.planted, *sized(host.model, start.size, config.slots or host.model.slot_ids, config.max_seeds)):
            host.plant(planted)
        return HostRun(start, host, Rules(max_seeds=config.max_seeds, enabled=config.slots or None), config.reward)

    def weigh(self, start: Start) -> Load:
        """What a host would ask for, estimated before it is made."""
        task, member = self._chosen(start)
        data, config = self.data(task), self.config.training
        prepared = task.prepare(data, member, start.seed)
        if self.choice.engine == "fleet":
            key = key_of(task, config, member, prepared.architecture, prepared.slots, prepared.split)
            return Load(1.0, member.epochs, kind_of(key))
        return Load(epoch_cost(prepared, data, member, config), member.epochs)

    def _chosen(self, start: Start) -> tuple[Task, Member]:
        """The task and the member that a start stands for; torch has the threads that suit them from here on."""
        task = get_task(start.task)
        threads = self.config.threads or task.threads
        if threads:
            torch.set_num_threads(threads)
        if task.name not in self._families:
            self._families[task.name] = self.config.fixed_family(task.family)
        drawn = start.seed if start.member_of is None else start.member_of
        member = self.config.member_of(self._families[task.name], drawn)
        return task, member if start.epochs is None else replace(member, epochs=start.epochs)

    def train(self, progress: Callable[[int], None] | None = None) -> dict[int, Trained]:
        """One epoch of every host that has not ended and waits for no decision; `progress` is told how many are done."""
        running = {place: run for place, run in self.hosts.items() if run.result is None and run.observation is None}
        reports = self.engine.run_epoch([run.host for run in running.values()], progress)
        for run, report in zip(running.values(), reports, strict=True):
            run.trained(report)
        trained = {place: run.look(report) for (place, run), report in zip(running.items(), reports, strict=True)}
        if notes := self.engine.drain_notes():
            first = next(iter(trained))
            trained[first] = replace(trained[first], events=(*trained[first].events, *(Note(text=text) for text in notes)))
        return trained

    def act(self, decisions: Mapping[int, Decision]) -> dict[int, Acted]:
        """Carry out one decision for each host that was trained."""
        steps = {place: self.hosts[place].act(decision) for place, decision in decisions.items()}
        ended = [self.hosts[place] for place in steps if self.hosts[place].host.done]
        for run, score in zip(ended, self.engine.score([run.host for run in ended], lambda host: host.data.val), strict=True):
            run.harvest(score)
        acted = {}
        for place, step in steps.items():
            reward, result = self.hosts[place].end(self.test) if self.hosts[place] in ended else (None, None)
            acted[place] = Acted(refused=step.refused, events=step.events, reward=reward, result=result)
        return acted

    def _courses(self, starts: Sequence[Start]) -> list[Twin]:
        """The courses of hosts when nothing grows, all trained side by side, in an environment of their own on the same data."""
        alone = Growth(replace(self.config, control=False))
        alone._data = self._data
        alone.begin({place: replace(start, planted=(), size=0.0) for place, start in enumerate(starts)})
        while trained := alone.train():
            alone.act(dict.fromkeys(trained, WAIT))
        return [twin.as_twin() for twin in alone.hosts.values()]

    def close(self) -> None:
        """Let go of hosts and data."""
        self._data, self.hosts = {}, {}

    # Saving

    def state(self) -> list[dict[str, Any]]:
        """Every host after it has acted, in the order of places."""
        return [self.hosts[place].state() for place in sorted(self.hosts)]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Put the hosts that have begun here into their saved states."""
        for place, saved in zip(sorted(self.hosts), state, strict=True):
            self.hosts[place].load_state(saved)

    def engines(self) -> list[dict[str, Any]]:
        """The state of the engine, after all hosts have acted."""
        return [self.engine.state([self.hosts[place].host for place in sorted(self.hosts)])]

    def load_engines(self, states: list[dict[str, Any]]) -> None:
        """Let the engine go on from its state, once the hosts are here; those of several engines change nothing."""
        if len(states) == 1:
            self.engine.load_state(states[0], [self.hosts[place].host for place in sorted(self.hosts)])

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy, at any moment between two calls: the hosts by what they have learned, data by its name."""
        hosts = {
            place: {
                "start": replace(run.start, twin_of=None),
                "state": run.state(),
                "twin": next((other for other, each in self.hosts.items() if each is run.twin), run.twin),
                "observation": run.observation,
                "measurement": run.host.measurement,
            }
            for place, run in self.hosts.items()
        }
        return {"config": self.config, "test": self.test, "hosts": hosts, "engines": self.engines()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["config"], test=state["test"])  # type: ignore[misc]
        self.hosts = {place: self.make(saved["start"], place) for place, saved in state["hosts"].items()}
        for place, saved in state["hosts"].items():
            run, observation, twin = self.hosts[place], saved["observation"], saved["twin"]
            run.load_state(saved["state"])
            run.twin = self.hosts[twin] if isinstance(twin, int) else twin
            run.observation, run.host.measurement = observation, saved["measurement"]
        self.load_engines(state["engines"])
