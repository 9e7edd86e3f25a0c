"""A fleet: hosts of one architecture, trained and measured as one program.

Every host keeps its own data order, augmentation, labels, amount of data, learning rate, decay and momentum, and its own seeds; what it
learns does not depend on the others. Nothing here waits for the device but the one read at the end of an epoch, which the engine does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.counterfactuals import Configuration
from esper.kasmina.stacking.check import Checked
from esper.kasmina.stacking.growables import Places, StackedGrowables
from esper.kasmina.stacking.learning import Learner, Rates
from esper.kasmina.stacking.needs import Role
from esper.kasmina.stacking.room import Room
from esper.kasmina.stacking.rows import sent
from esper.kasmina.stacking.stacked import Streams, draws_at_random
from esper.kasmina.stacking.views import View
from esper.leyline.stages import Stage
from esper.tolaria.data import Split, stream_seed
from esper.tolaria.data.streams import draws_from
from esper.tolaria.tasks.registry import augment_stream
from esper.tolaria.training.captured import GraphPool
from esper.tolaria.training.config import Precision
from esper.tolaria.training.fleet_work import Measurement, Phase, Step, phases_of
from esper.tolaria.training.host import EpochPlan, Host, batch_sizes
from esper.tolaria.training.stackable import is_short
from esper.tolaria.training.validation import Array, Scores, read_all, wanted_of

MEASURED_BYTES = 2**29
"""Memory on a GPU that one pass of a measurement may take, roughly. Every fleet keeps what it captured, and some dozens share a GPU."""


def measured_bytes(host: Host) -> int:
    """What a sample takes in a pass of a measurement, roughly: 32 times its size, eight times that of its largest features at a slot, or
    four times that of its logits. Tokens become features and logits that are many times their size, pixels do not."""
    sample, logits = host.split.x[0], host.split.y[0].numel() * host.data.classes
    # A task's example has two samples.
    features = max(math.prod(slot.place.example_shape) // 2 * slot.place.dtype.itemsize for slot in host.model.slots.values())
    return max(32 * sample.numel() * sample.element_size(), 8 * features, 4 * logits * torch.float32.itemsize)


class _Pool:
    """The training data of all hosts in one place, however many of them share it."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.x, self.x_first = _pooled([split.x for split in splits])
        self.y, self.y_first = _pooled([split.y for split in splits])


def _pooled(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All different tensors one after another, and where each one's rows begin, int64 (tensors,)."""
    first: dict[tuple[int, int], int] = {}
    different: list[Tensor] = []
    starts = []
    for tensor in tensors:
        key = (tensor.data_ptr(), len(tensor))
        if key not in first:
            first[key] = sum(map(len, different))
            different.append(tensor)
        starts.append(first[key])
    return different[0] if len(different) == 1 else torch.cat(different), sent(torch.tensor(starts), tensors[0].device)


@dataclass(slots=True, eq=False)
class Measured:
    """Configurations of several hosts on a split, as sums on the device not yet waited for."""

    wanted: list[Sequence[Configuration]]
    """Of each host."""
    losses: Tensor
    """(pairs,): one pair for each host and configuration."""
    hits: Tensor
    """(pairs, samples)."""
    right: Tensor
    """(pairs, classes): samples of each class that were predicted."""
    total: Tensor
    """(classes,): all of them."""
    targets: int

    def tensors(self) -> list[Tensor]:
        """What has to be read, in the order in which `scores` takes it."""
        return [self.losses, self.hits, self.right, self.total]

    def scores(self, losses: Array, hits: Array, right: Array, total: Array) -> Iterator[Scores]:
        """The scores of each host, once they have been read."""
        at = 0
        for wanted in self.wanted:
            part = slice(at, at + len(wanted))
            yield Scores.of(wanted, losses[part], hits[part], np.stack((right[at], total)), self.targets)
            at += len(wanted)


@dataclass(slots=True, eq=False)
class Pending:
    """An epoch of a fleet whose figures are still on the device."""

    plans: dict[int, EpochPlan]
    """By row."""
    sums: Tensor
    """(rows, 2): loss and targets predicted, summed over the samples."""
    measured: Measured
    figures: Tensor

    def tensors(self) -> list[Tensor]:
        """All that has to be read, in the order in which `results` takes it."""
        return [self.sums, self.figures, *self.measured.tensors()]

    def results(self, sums: Array, figures: Array, *values: Array) -> Iterator[tuple[int, tuple[EpochPlan, Array, Scores, list[float]]]]:
        """For each host its row, and what `Host.conclude` takes."""
        for (row, plan), scores in zip(self.plans.items(), self.measured.scores(*values), strict=True):
            yield row, (plan, sums[row], scores, figures[row].tolist())


@dataclass(frozen=True, slots=True)
class FleetPlaces:
    """Where hosts and their seeds are in a fleet."""

    rows: dict[Host, int]
    seeds: Places


class Fleet:
    """Hosts of one architecture on one device, with the same number of samples, or in short epochs any number.

    like: one of them. rows: how many there can be. On a GPU there is one row more than hosts, and room for seeds to come, so that what was
    captured serves as long as possible. room: of the fleet. seeds_checked: see StackedGrowables.
    """

    def __init__(self, like: Host, checked: Checked, rows: int, room: Room, seeds_checked: dict[Hashable, Checked] | None = None) -> None:
        self.task, self.config, self.device = like.task, like.config, like.split.x.device
        self.member = like.member
        ahead = room.spare and is_short(like.split, like.member)
        self.stack = StackedGrowables(like.model, like.optimizer, checked, rows, room, ahead=ahead, seeds_checked=seeds_checked)
        self.hosts: list[Host | None] = [None] * rows
        self.row_of: dict[Host, int] = {}
        dtype, device = self.stack.rows.flat.dtype, self.device
        self._figures = torch.zeros(3, rows, device=device, dtype=dtype)
        self.rates = Rates(*self._figures.unbind())
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        """Rows that take part in the current step."""
        self.sums = torch.zeros(rows, 2, device=device)
        self.cap = max(self.config.eval_batch, like.member.batch * rows)
        """Samples of all hosts in one pass of a measurement: as many as in a step, or more if they are small."""
        if device.type == "cuda":
            self.cap = max(self.cap, MEASURED_BYTES // measured_bytes(like))
        self.pool: _Pool | None = None
        self.graphs = GraphPool() if device.type == "cuda" and room.spare else None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._view: View | None = None
        self._shadow: View | None = None
        self._learner: Learner | None = None
        self._steps: dict[int, Step] = {}
        self._measurements: dict[str, Measurement] = {}
        self._counted: dict[int, tuple[Tensor, Tensor]] = {}
        """Samples of each class, by the targets that were counted."""
        self._reference: dict[tuple[Host, int], Tensor] = {}
        """Where the inputs are that batch norms are made anew from, by host and number."""

    # Who is here

    def update(self, hosts: Sequence[Host], before: FleetPlaces | None = None) -> None:
        """Let hosts go that are not among these, and take in those that are new. before: where some of them were when they were saved."""
        wanted = set(hosts)
        gone = [row for row, host in enumerate(self.hosts) if host is not None and host not in wanted]
        for row in gone:
            self.stack.leave(row)
            self.hosts[row] = None
        new = [host for host in hosts if host not in self.row_of]
        places = {} if before is None else {host: row for host, row in before.rows.items() if host in wanted}
        taken = set(places.values())
        free = (row for row, host in enumerate(self.hosts) if host is None and row not in taken)
        for host in new:
            row = places[host] if host in places else next(free)
            self.stack.join(row, host.model, host.optimizer)
            self.hosts[row] = host
        self.row_of = {host: row for row, host in enumerate(self.hosts) if host is not None}
        if before is not None:
            seeds = before.seeds.items()
            self.stack.before = {key: (size, {host: row for host, row in rows.items() if host in taken}) for key, (size, rows) in seeds}
        if gone or new:
            self._reference = {key: value for key, value in self._reference.items() if key[0] in wanted}
        if new:
            self.pool = _Pool([(new[0] if host is None else host).split for host in self.hosts])

    def release(self) -> None:
        """Give every host tensors of its own again."""
        self.update([])

    def on_stream(self) -> AbstractContextManager[Any]:
        """Work in here runs beside that of other fleets; `read` waits for it."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def read(self, tensors: Sequence[Tensor]) -> list[Array]:
        """The values of what was computed here, fetched in one go: the fleet's one wait of an epoch."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return read_all(tensors)

    # One epoch

    def run_epoch(self) -> Pending:
        """Train and measure every host. Waits for no device. `stack.sync` has been called."""
        running = {row: host for row, host in enumerate(self.hosts) if host is not None}
        plans = {row: host.begin_epoch() for row, host in running.items()}
        self.train(plans)
        wanted = [wanted_of(host.model) for host in running.values()]
        any_host = next(iter(running.values()))
        measured = self.measure(list(running), wanted, any_host.data.val, self.config.recalibrate, self.config.precision)
        return Pending(plans, self.sums, measured, self.stack.figures())

    def score(self, hosts: Sequence[Host], split: Split) -> Measured:
        """What `Host.score` gives, for several hosts of the fleet. Waits for no device. `stack.sync` has been called."""
        wanted = [[frozenset(host.model.at(Stage.FOSSILIZED))] for host in hosts]
        return self.measure([self.row_of[host] for host in hosts], wanted, split, hosts[0].harvest_samples, "fp32")

    def train(self, plans: Mapping[int, EpochPlan]) -> None:
        """All batches of the epoch; `sums` gets loss and targets predicted, summed over the samples."""
        stack = self.stack
        learning = [(each.rows, each.row_of) for key, each in stack.seeds.items() if key.role is not Role.IDLE]
        learning.append((stack.rows, {row: row for row in plans}))
        for rows, _ in learning:
            rows.begin_steps()
        self._fill_rates(plans)
        self.sums.zero_()
        self._arrange(plans)
        drawn = self._augment_streams({row: plan.epoch for row, plan in plans.items()})
        every, phases = torch.arange(len(self.hosts), device=self.device), phases_of({row: plan.sizes for row, plan in plans.items()})
        orders = iter(sent(self._orders(plans, phases), self.device).split([phase.size for phase in phases for _ in range(phase.steps)]))
        random = draws_at_random(self.stack.network)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [], enabled=random):
            for phase in phases:
                with self._resting(plans.keys() - phase.rows):
                    for _ in range(phase.steps):
                        if phase.size not in self._steps:
                            self._steps[phase.size] = Step(self)
                        self._steps[phase.size](*self.batch(every, next(orders), drawn))
        for rows, row_of in learning:
            rows.end_steps({at: len(plans[host].sizes) for host, at in row_of.items()})

    def _orders(self, plans: Mapping[int, EpochPlan], phases: Sequence[Phase]) -> Tensor:
        """(samples, rows): of each sample of each step its position in the host's training set. Who rests sees its first sample."""
        orders = torch.zeros(sum(phase.size * phase.steps for phase in phases), len(self.hosts), dtype=torch.int64)
        first, taken = 0, dict.fromkeys(plans, 0)
        for phase in phases:
            samples = phase.size * phase.steps
            for row in phase.rows:
                orders[first : first + samples, row] = plans[row].order[taken[row] : taken[row] + samples]
                taken[row] += samples
            first += samples
        return orders

    @contextmanager
    def _resting(self, rows: Collection[int]) -> Iterator[None]:
        """Inside, everything that belongs to these hosts stays as it is, whatever runs through them."""
        assert self._learner is not None
        assert self._view is not None
        active = [host is not None and row not in rows for row, host in enumerate(self.hosts)]
        self.active.copy_(sent(torch.tensor(active), self.device))
        self._learner.activate(self.active)
        fixed = [(each, each.clone()) for each in self.stack.rows.fixed.values()] if rows else []
        seeds = [(each, each.clone(), seeds) for seeds in self.stack.seeds.values() for each in seeds.rows.fixed.values()] if rows else []
        streams = self._view.streams
        with nullcontext() if streams is None else streams.kept(rows):
            yield
        for each, before in fixed:
            each.copy_(torch.where(_beside(self.active, each), each, before))
        for each, before, part in seeds:
            mine = torch.zeros(len(each), dtype=torch.bool)
            mine[[at for host, at in part.row_of.items() if host not in rows]] = True
            each.copy_(torch.where(_beside(sent(mine, self.device), each), each, before))

    def _arrange(self, plans: Mapping[int, EpochPlan]) -> None:
        """Which rows learn, and how, in this epoch; what was captured for another arrangement is dropped."""
        view, shadow = self.stack.training(self._view), self.stack.shadows(self._shadow)
        if view is not self._view or shadow is not self._shadow:
            learning = [*view.learning, *(shadow.learning if shadow is not None else ())]
            self._learner = Learner(self.stack, learning, self.rates, self.config.clip)
            self._steps = {}
        self._view, self._shadow = view, shadow
        assert self._learner is not None
        self._learner.fill()
        streams = self._streams(plans)
        for each in (view, shadow):
            if each is not None:
                each.streams = streams

    def batch(self, rows: Tensor, positions: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Samples at these positions, (samples, hosts), of the training sets of some hosts: rows samples first, and their targets."""
        assert self.pool is not None
        x = self.pool.x[(positions + self.pool.x_first[rows]).flatten()]
        y = self.pool.y[(positions + self.pool.y_first[rows]).flatten()]
        if drawn is not None:
            x = self.task.augment(x, draws_from(positions, drawn[rows]).flatten())
        return x, y

    def _augment_streams(self, epochs: Mapping[int, int]) -> Tensor | None:
        if not self.member.augment:
            return None
        seeds = torch.zeros(len(self.hosts), dtype=torch.int64)
        for row, epoch in epochs.items():
            host = self.hosts[row]
            assert host is not None
            seeds[row] = stream_seed(*augment_stream(host.seed, epoch))
        return sent(seeds, self.device)

    def _streams(self, plans: Mapping[int, EpochPlan]) -> Streams | None:
        if not draws_at_random(self.stack.network):
            return None
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seeds = [host.dropout_stream(plans[row].epoch) if host is not None else 0 for row, host in enumerate(self.hosts)]
            return Streams(seeds, self.device)

    def _fill_rates(self, plans: Mapping[int, EpochPlan]) -> None:
        columns = torch.zeros(3, len(self.hosts), dtype=self._figures.dtype)
        for row, plan in plans.items():
            host = self.hosts[row]
            assert host is not None
            rates = [host.member.rate_at(plan.epoch), host.member.weight_decay, host.member.momentum]
            columns[:, row] = torch.tensor(rates, dtype=columns.dtype)
        self._figures.copy_(sent(columns, self.device))

    # Measurements

    def measure(
        self, rows: Sequence[int], wanted: Sequence[Sequence[Configuration]], split: Split, samples: int, precision: Precision
    ) -> Measured:
        """Configurations of some hosts on a split. Waits for no device.

        samples: training inputs that batch norms are made anew from, for each configuration of each host by itself.
        """
        pairs = [(row, on) for row, each in zip(rows, wanted, strict=True) for on in each]
        norms = self.stack.learning_norms() if self.config.recalibrate else []
        drawn = self._augment_streams({row: host.epoch for row, host in enumerate(self.hosts) if host is not None})
        parts, order = [], []
        # Hosts with fewer samples than asked for have others to make batch norms from, in number too.
        for size, mine in self._by_size(pairs, samples if norms else 0).items():
            room = max(1, self.cap // max(1, min(size, self.config.eval_batch)))
            for at in range(0, len(mine), room):
                part = mine[at : at + room]
                key = f"{size} {precision} {at // room}"
                known = self._measurements.get(key)
                view = self.stack.showing(f"showing {key}", [pairs[number] for number in part], None if known is None else known.view)
                if known is None or known.view is not view:
                    known = self._measurements[key] = Measurement(self, view, norms, precision)
                found = known.run(split, self._references(view, size, drawn))
                parts.append([values[: len(part)] for values in found])
                order += part
        losses, hits, right = (torch.cat(each) for each in zip(*parts, strict=True))
        if order != sorted(order):
            back = sent(torch.tensor(order).argsort(), self.device)
            losses, hits, right = (each.index_select(0, back) for each in (losses, hits, right))
        total = self._class_counts(split) if self.task.kind == "classification" else right.new_zeros(0)
        return Measured(list(wanted), losses, hits, right, total, targets=split.y.numel() // len(split))

    def _by_size(self, pairs: Sequence[tuple[int, Configuration]], samples: int) -> dict[int, list[int]]:
        """Numbers of pairs by how many of so many training inputs their hosts have."""
        found: dict[int, list[int]] = {}
        for number, (row, _) in enumerate(pairs):
            host = self.hosts[row]
            assert host is not None
            found.setdefault(min(samples, len(host.split)), []).append(number)
        return dict(sorted(found.items()))

    def _class_counts(self, split: Split) -> Tensor:
        """Samples of each class, counted once: counting waits for the device."""
        if id(split.y) not in self._counted:
            self._counted[id(split.y)] = (split.y, torch.bincount(split.y, minlength=self.task.classes))
        return self._counted[id(split.y)][1]

    def _references(self, view: View, size: int, drawn: Tensor | None) -> list[Tensor]:
        """Training inputs of each row's host, as its batch norms are made anew from, in batches."""
        if not size:
            return []
        columns = torch.zeros(size, len(view), dtype=torch.int64)
        for column, row in enumerate(view.hosts):
            host = self.hosts[row]
            if host is not None:
                if (host, size) not in self._reference:
                    self._reference[host, size] = host.reference_positions(size)
                columns[:, column] = self._reference[host, size]
        parts = sent(columns, self.device).split(batch_sizes(size, self.config.eval_batch))
        return [self.batch(view.which, part, drawn)[0] for part in parts]


def _beside(rows: Tensor, each: Tensor) -> Tensor:
    """(rows,) in a shape that goes with (rows, ...)."""
    return rows.view(-1, *[1] * (each.dim() - 1))
