"""Engines train many hosts. All give the same reports; they differ in how the hosts share a machine.

An epoch of a host has three parts: the host begins it, the engine trains and evaluates, the host concludes. An engine may do the middle
for many hosts at once; it reads what came out of the device once for all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from esper.kasmina.stacking.check import Checked
from esper.kasmina.stacking.errors import Unstackable, UnstackableSeed
from esper.kasmina.stacking.room import Room, with_some_to_spare
from esper.leyline.errors import DeviceError
from esper.leyline.reports import EpochReport
from esper.leyline.stages import OCCUPIED
from esper.tolaria.data import Split
from esper.tolaria.training.config import EngineName, TrainingConfig
from esper.tolaria.training.fleet import Fleet, FleetPlaces
from esper.tolaria.training.host import Host
from esper.tolaria.training.stackable import check_fleet, check_memory, fleet_key, is_short, kind_of
from esper.tolaria.training.validation import Score, read_all

Progress = Callable[[int], None]
LEAST_FOR_NEW = 0.4
"""Share of a GPU's memory below which what was captured for hosts that are gone is let go before anything new is made."""
LEAST_FREE, MOST_CACHED = 0.3, 0.05
"""Shares of it: with less free, a process that caches more gives that back, since others may need it."""
FLEETS_KEPT = 3
"""Fleets of one kind that are kept for later, each with room for another number of hosts."""
MANY = 32
"""Hosts above which a fleet has no room for more: there, a row that is not used costs too much."""


class Engine(Protocol):
    """Whatever can run one epoch of some hosts, and score them."""

    def run_epoch(self, hosts: Sequence[Host], progress: Progress | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""

    def score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        """The network that would be harvested from each host now, on a split, in order."""

    def drain_notes(self) -> list[str]:
        """What people should know of how hosts were trained since the last call."""

    def state(self, hosts: Sequence[Host]) -> dict[str, Any]:
        """What another engine of this kind needs to go on with these hosts as this one would, to the last bit: plain data."""

    def load_state(self, state: dict[str, Any], hosts: Sequence[Host]) -> None:
        """Go on as the engine would whose state this is, with the same hosts in the same order. That of another kind changes nothing."""


class SerialEngine:
    """One host after another, on any device."""

    def state(self, hosts: Sequence[Host]) -> dict[str, Any]:
        """Nothing: an epoch depends on the host alone."""
        return {}

    def load_state(self, state: dict[str, Any], hosts: Sequence[Host]) -> None:
        """There is nothing to take over."""

    def drain_notes(self) -> list[str]:
        """There is nothing to remark."""
        return []

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
    """Hosts of one architecture as one program. A host that cannot be one of many is trained alone; `notes` says why, once for each kind.

    spare: whether storage has room to spare: by default on a GPU, so that captured steps serve for long, and not elsewhere. Shapes, and
    which row something is in, decide how sums are rounded, so both are part of the state.
    """

    def __init__(self, spare: bool | None = None) -> None:
        self.spare = spare
        self.serial = SerialEngine()
        self.notes: list[str] = []
        """Why some hosts are not in a fleet."""
        self._fleets: dict[Hashable, list[Fleet]] = {}
        """By key, the latest used first."""
        self._checked: dict[Hashable, Checked] = {}
        """By key."""
        self._seeds_checked: dict[Hashable, Checked] = {}
        self._kinds: dict[Hashable, str] = {}
        """By key, its name."""
        self._refused: set[tuple[str, ...]] = set()
        """What cannot be stacked: hosts by their kind; seeds by that of their hosts, the slot and the blueprint."""
        self._sizes: dict[str, int] = {}
        """Room to spare that was made so far."""
        self._rows: dict[str, list[int]] = {}
        """By kind, rows of the fleets with room to spare that are kept, the latest used first."""
        self._before: dict[tuple[str, int], FleetPlaces] = {}
        """By kind and rows, where hosts were that go on."""

    def drain_notes(self) -> list[str]:
        """Why some hosts are not in a fleet, since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def state(self, hosts: Sequence[Host]) -> dict[str, Any]:
        """How much room there is, what cannot be stacked, and where these hosts are, by their numbers."""
        fleets = []
        for key, kept in self._fleets.items():
            for fleet in kept:
                rows = {number: fleet.row_of[host] for number, host in enumerate(hosts) if host in fleet.row_of and not host.done}
                if rows:
                    fleets.append({"kind": self._kind(key), "rows": len(fleet.hosts), "hosts": rows, "seeds": fleet.stack.places()})
        return {
            "room": dict(sorted(self._sizes.items())),
            "rows": {kind: list(rows) for kind, rows in sorted(self._rows.items())},
            "refused": [list(each) for each in sorted(self._refused)],
            "fleets": sorted(fleets, key=lambda fleet: fleet["kind"]),
        }

    def load_state(self, state: dict[str, Any], hosts: Sequence[Host]) -> None:
        """Have the room that there was, and these hosts in the same rows. That of an engine of another kind changes nothing."""
        if not state:
            return
        self._sizes = dict(state["room"])
        self._rows = {kind: list(rows) for kind, rows in state["rows"].items()}
        self._refused = {tuple(each) for each in state["refused"]}
        self._before = {
            (fleet["kind"], fleet["rows"]): FleetPlaces({hosts[number]: row for number, row in fleet["hosts"].items()}, fleet["seeds"])
            for fleet in state["fleets"]
        }

    def run_epoch(self, hosts: Sequence[Host], progress: Progress | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""
        with _memory_told():
            return self._run_epoch(hosts, progress)

    def _run_epoch(self, hosts: Sequence[Host], progress: Progress | None) -> list[EpochReport]:
        if hosts and hosts[0].split.x.is_cuda:
            _give_back(hosts[0].split.x.device)
        pending = []
        for fleet in self._formed(hosts):  # one by one: the device is busy with the first while the next is put together
            with fleet.on_stream():
                pending.append((fleet, fleet.run_epoch()))
        reports: dict[Host, EpochReport] = {}
        for fleet, epoch in pending:
            for row, result in epoch.results(*fleet.read(epoch.tensors())):
                host = fleet.hosts[row]
                assert host is not None
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
        with _memory_told():
            return self._score(hosts, split)

    def _score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        scores: dict[Host, Score] = {}
        by_fleet: dict[Fleet, list[Host]] = {}
        for host in hosts:
            fleet = next((each for each in self._fleets.get(self._key(host), ()) if host in each.row_of), None)
            if fleet is not None:
                by_fleet.setdefault(fleet, []).append(host)
            else:
                scores[host] = host.score(split(host))
        for fleet in [each for each in by_fleet if not self._synced(self._key(by_fleet[each][0]), each)]:
            scores.update({host: host.score(split(host)) for host in by_fleet.pop(fleet)})
        measured = []
        for fleet, mine in by_fleet.items():
            with fleet.on_stream():
                measured.append((fleet, mine, fleet.score(mine, split(mine[0]))))
        for fleet, mine, each in measured:
            for host, found in zip(mine, each.scores(*fleet.read(each.tensors())), strict=True):
                (scores[host],) = found.by.values()
        return [scores[host] for host in hosts]

    def _key(self, host: Host) -> Hashable:
        return fleet_key(host, mixed=self.spare)

    def _formed(self, hosts: Sequence[Host]) -> Iterator[Fleet]:
        """Fleets of those hosts that can be in one, each ready for an epoch."""
        by_key: dict[Hashable, list[Host]] = {}
        for host in hosts:
            by_key.setdefault(self._key(host), []).append(host)
        for key in [key for key in self._fleets if key not in by_key]:
            self._release(key)
        for key, mine in by_key.items():
            while together := [host for host in mine if self._can_be_stacked(key, host)]:
                fleet = self._fleet_for(key, together)
                self._release(key, but=fleet)
                fleet.update(together, self._before.pop((self._kind(key), len(fleet.hosts)), None))
                self._fleets[key] = [fleet, *(each for each in self._fleets.get(key, ()) if each is not fleet)][:FLEETS_KEPT]
                if self._synced(key, fleet):
                    yield fleet
                    break
            else:
                self._release(key)
        self._before = {}  # a fleet that is not formed at once lets its hosts go

    def _release(self, key: Hashable, but: Fleet | None = None) -> None:
        """Let the hosts of all fleets of a kind go, but for those of one."""
        for fleet in self._fleets.get(key, ()):
            if fleet is not but:
                fleet.release()

    def _synced(self, key: Hashable, fleet: Fleet) -> bool:
        """Let a fleet take in what has grown in its hosts. False if it found a seed that cannot be stacked, which is noted."""
        try:
            fleet.stack.sync()
        except UnstackableSeed as error:
            self._refused.add((self._kind(key), error.slot, error.blueprint))
            self.notes.append(f"hosts of task {fleet.task.name!r} are trained one by one while they hold {error}")
            return False
        return True

    def _fleet_for(self, key: Hashable, hosts: Sequence[Host]) -> Fleet:
        """A fleet with room for these hosts and not too much of it: one that there is, or else a new one."""
        cuda = hosts[0].split.x.device.type == "cuda"
        spare = cuda if self.spare is None else self.spare
        rows = self._rows_for(self._kind(key), hosts) if spare else len(hosts)
        for fleet in self._fleets.get(key, ()):
            if len(fleet.hosts) == rows:
                return fleet
        if cuda:
            self._make_room(hosts[0].split.x.device)
            check_memory(hosts[0], self._checked[key], rows)
        room = Room(spare=spare, sizes=self._sizes).within(f"{self._kind(key)}/{rows}")
        return Fleet(hosts[0], self._checked[key], rows, room, self._seeds_checked)

    def _make_room(self, device: torch.device) -> None:
        """Where a GPU's memory is short, let fleets go that have no hosts now; they are as they were when they are made again."""
        free, total = torch.cuda.mem_get_info(device)
        if free >= LEAST_FOR_NEW * total:
            return
        self._fleets = {key: kept for key, kept in self._fleets.items() if any(fleet.row_of for fleet in kept)}
        gc.collect()
        torch.cuda.empty_cache()

    def _rows_for(self, kind: str, hosts: Sequence[Host]) -> int:
        """Rows of a fleet with room to spare for these hosts: as many as one of its kind had, if that is enough and not too much."""
        count, short, known = len(hosts), is_short(hosts[0].split, hosts[0].member), self._rows.get(kind, [])
        new = count + 1 if count > MANY else with_some_to_spare(count + 1)
        rows = next((rows for rows in known if count < rows and (short or rows <= 2 * count + 2)), new)
        self._rows[kind] = [rows, *(each for each in known if each != rows)][:FLEETS_KEPT]
        return rows

    def _kind(self, key: Hashable) -> str:
        if key not in self._kinds:
            self._kinds[key] = kind_of(key)
        return self._kinds[key]

    def _can_be_stacked(self, key: Hashable, host: Host) -> bool:
        kind = self._kind(key)
        if key not in self._checked and (kind,) not in self._refused:
            try:
                self._checked[key] = check_fleet(host)
            except Unstackable as error:
                self._refused.add((kind,))
                self.notes.append(f"hosts of task {host.task.name!r} are trained one by one: {error}")
        seeds = [(slot.id, slot.state.blueprint) for slot in host.model.slots.values() if slot.state.stage in OCCUPIED]
        return not any((kind, *each) in self._refused for each in [(), *seeds])


def _give_back(device: torch.device) -> None:
    """Give back memory that this process only caches, where a GPU has little of it left."""
    free, total = torch.cuda.mem_get_info(device)
    if free < LEAST_FREE * total and torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > MOST_CACHED * total:
        torch.cuda.empty_cache()


@contextmanager
def _memory_told() -> Iterator[None]:
    """Running out of memory is one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            "the GPU ran out of memory; what was saved is intact: go on with fewer hosts at once (--hosts, --together), a smaller "
            "--training.eval-batch, --training.precision bf16, or more --devices"
        ) from error


ENGINES: dict[str, type[Engine]] = {"serial": SerialEngine, "fleet": FleetEngine}
"""Every engine by its name; `choose` says which one is meant."""


class Choice(NamedTuple):
    """An engine, and why it was chosen."""

    engine: str
    why: str


def choose(engine: EngineName, config: TrainingConfig, device: torch.device) -> Choice:
    """The engine that is meant on a device."""
    if engine != "auto":
        return Choice(engine, "as asked for")
    if config.compile:
        return Choice("serial", "training.compile is set, and a fleet runs as written")
    if device.type == "cuda":
        return Choice("fleet", "a GPU trains many small hosts in the time of one")
    return Choice("serial", "every host as if it were alone")
