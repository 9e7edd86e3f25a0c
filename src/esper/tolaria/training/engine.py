"""Engines train many hosts. All give the same reports; they differ in how the hosts share a machine.

An epoch of a host has three parts: the host begins it, the engine trains and evaluates, the host concludes. An engine may do the middle
for many hosts at once; it reads what came out of the device once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from esper.kasmina.stacking.check import Checked
from esper.kasmina.stacking.errors import Unstackable, UnstackableSeed
from esper.leyline.reports import EpochReport
from esper.leyline.stages import OCCUPIED
from esper.tolaria.data import Split
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.fleet import Fleet, check_fleet, fleet_key
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import Array, Score, read_all

Progress = Callable[[int], None]


class Engine(Protocol):
    """Whatever can run one epoch of some hosts, and score them."""

    def run_epoch(self, hosts: Sequence[Host], progress: Progress | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""

    def score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        """The network that would be harvested from each host now, on a split, in order."""


class SerialEngine:
    """One host after another, on any device."""

    def run_epoch(self, hosts: Sequence[Host], progress: Progress | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""
        reports = []
        for done, host in enumerate(hosts, start=1):
            plan = host.begin_epoch()
            sums = host.train(plan)
            evaluated = host.evaluate()
            read, figures, *values = read_all([sums, host.model.figures(), *evaluated.tensors()])
            reports.append(host.conclude(plan, read, evaluated.scores(*values), figures.tolist()))
            if progress is not None:
                progress(done)
        return reports

    def score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        """The network that would be harvested from each host now, on a split, in order."""
        return [host.score(split(host)) for host in hosts]


class FleetEngine:
    """Hosts of one architecture as one program. A host that cannot be one of many is trained alone; `notes` says why, once for each kind."""

    def __init__(self) -> None:
        self.serial = SerialEngine()
        self.notes: list[str] = []
        """Why some hosts are not in a fleet."""
        self._fleets: dict[Hashable, Fleet] = {}
        self._checked: dict[Hashable, Checked | None] = {}
        """By the key of a fleet; None if such hosts cannot be in one."""
        self._refused: set[tuple[Hashable, str, str]] = set()
        """Seeds that cannot be stacked: the key of the fleet, the slot, the blueprint."""

    def run_epoch(self, hosts: Sequence[Host], progress: Progress | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""
        pending = [(fleet, fleet.run_epoch()) for fleet in self._formed(hosts)]
        reports: dict[Host, EpochReport] = {}
        for (fleet, epoch), values in zip(pending, _read([epoch.tensors() for _, epoch in pending]), strict=True):
            for host, result in zip(fleet.hosts, epoch.results(*values), strict=True):
                reports[host] = host.conclude(*result)
            if progress is not None:
                progress(len(reports))
        for host in hosts:
            if host not in reports:
                (reports[host],) = self.serial.run_epoch([host])
                if progress is not None:
                    progress(len(reports))
        return [reports[host] for host in hosts]

    def score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        """The network that would be harvested from each host now, on a split, in order."""
        scores: dict[Host, Score] = {}
        by_fleet: dict[Fleet, list[Host]] = {}
        for host in hosts:
            fleet = self._fleets.get(fleet_key(host))
            if fleet is not None and host in fleet.row_of:
                by_fleet.setdefault(fleet, []).append(host)
            else:
                scores[host] = host.score(split(host))
        measured = [fleet.score(mine, split(mine[0])) for fleet, mine in by_fleet.items()]
        for mine, each, values in zip(by_fleet.values(), measured, _read([each.tensors() for each in measured]), strict=True):
            for host, found in zip(mine, each.scores(*values), strict=True):
                (scores[host],) = found.by.values()
        return [scores[host] for host in hosts]

    def _formed(self, hosts: Sequence[Host]) -> list[Fleet]:
        """Fleets of those hosts that can be in one, ready for an epoch; the same ones as before while their hosts are the same."""
        by_key: dict[Hashable, list[Host]] = {}
        for host in hosts:
            key = fleet_key(host)
            if self._can_be_stacked(key, host):
                by_key.setdefault(key, []).append(host)
        before, self._fleets = self._fleets, {}
        for key, fleet in before.items():
            if fleet.members != by_key.get(key):
                fleet.release()
        for key, mine in by_key.items():
            known, checked = before.get(key), self._checked[key]
            assert checked is not None
            self._fleets[key] = known if known is not None and known.members == mine else Fleet(mine, checked)
        try:
            for fleet in self._fleets.values():
                fleet.stack.sync()
        except UnstackableSeed as error:
            key = next(key for key, each in self._fleets.items() if each is fleet)
            self._refused.add((key, error.slot, error.blueprint))
            self.notes.append(f"hosts of task {fleet.task.name!r} are trained one by one while they hold {error}")
            return self._formed(hosts)
        return list(self._fleets.values())

    def _can_be_stacked(self, key: Hashable, host: Host) -> bool:
        if key not in self._checked:
            try:
                self._checked[key] = check_fleet(host)
            except Unstackable as error:
                self._checked[key] = None
                self.notes.append(f"hosts of task {host.task.name!r} are trained one by one: {error}")
        seeds = {(slot.id, slot.state.blueprint) for slot in host.model.slots.values() if slot.state.stage in OCCUPIED}
        return self._checked[key] is not None and not any((key, *seed) in self._refused for seed in seeds)


def _read(groups: Sequence[Sequence[Tensor]]) -> list[list[Array]]:
    """The values of several lists of tensors, fetched from each device in one go: the one wait of an epoch."""
    found: list[list[Array]] = [[] for _ in groups]
    devices = dict.fromkeys(group[0].device for group in groups)
    for device in devices:
        mine = [at for at, group in enumerate(groups) if group[0].device == device]
        values = iter(read_all([tensor for at in mine for tensor in groups[at]]))
        for at in mine:
            found[at] = [next(values) for _ in groups[at]]
    return found


ENGINES: dict[str, type[Engine]] = {"serial": SerialEngine, "fleet": FleetEngine}
"""Every engine by its name in `training.engine`."""


def choose(config: TrainingConfig, device: torch.device) -> tuple[str, str]:
    """The engine's name that a config means on a device, and why."""
    if config.engine != "auto":
        return config.engine, "as asked for"
    if config.compile:
        return "serial", "training.compile is set"
    if device.type == "cuda":
        return "fleet", "a GPU trains many hosts in the time of one"
    return "serial", "on a CPU hosts one after another are as fast, in worker processes faster"
