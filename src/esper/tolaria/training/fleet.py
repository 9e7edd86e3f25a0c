"""A fleet: hosts of one architecture, trained and measured as one program.

Every host keeps its own data order, augmentation, labels, amount of data, learning rate, decay and momentum, and its own seeds; what it
learns does not depend on the others. Nothing here waits for the device but the one read at the end of an epoch, which the engine does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.attach.probe import evaluating, modes_kept
from esper.kasmina.norms import Norm, refit, tracked_norms
from esper.kasmina.stacking.check import Checked, check_stackable
from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.growables import StackedGrowables, bare_host
from esper.kasmina.stacking.learning import Learner, Rates
from esper.kasmina.stacking.room import Room, spare
from esper.kasmina.stacking.rows import Rows, sent
from esper.kasmina.stacking.stacked import StackedModule, Streams, draws_at_random, vmapped
from esper.kasmina.stacking.views import Role, View
from esper.leyline.errors import DeviceError
from esper.leyline.stages import Stage
from esper.tolaria.data import Split, stream_seed
from esper.tolaria.data.streams import draws_from
from esper.tolaria.tasks import Task
from esper.tolaria.tasks.registry import augment_stream
from esper.tolaria.training.attribution import Configuration
from esper.tolaria.training.config import Precision
from esper.tolaria.training.host import EpochPlan, Host, autocast, batch_sizes
from esper.tolaria.training.validation import Array, Scores, wanted_of

CHECK_SAMPLES = 6
"""Samples, of two hosts together, that an architecture is tried on."""
SEEDS_SHARE = 3
"""How many times the memory of a bare host a growing one may take."""
SHORT_EPOCH = 64
"""Steps up to which an epoch is too short to capture its step anew whenever some host grows something new: room is made ahead."""
MEASURED_BYTES = 2**31
"""Memory on a GPU that one pass of a measurement may take, roughly: 32 times the size of its inputs."""


def fleet_key(host: Host) -> Hashable:
    """Hosts with the same key can be in one fleet."""
    member, slots = host.member, tuple((slot.id, slot.place.path) for slot in host.model.slots.values())
    kind = (member.optimizer, member.momentum > 0, member.batch, member.augment)
    return (host.task.name, host.config, host.architecture, slots, kind, len(host.split), host.split.x.device)


def check_fleet(host: Host) -> Checked:
    """Raise Unstackable, with the reason, unless hosts like this one can be in a fleet."""
    if host.config.compile:
        raise Unstackable("training.compile is set, and a fleet runs as written")
    positions = torch.arange(CHECK_SAMPLES, device=host.split.x.device) % len(host.split)
    x, y = host.batch(positions, 0)
    checked = check_stackable(bare_host(host.model), x, [slot.place.path for slot in host.model.slots.values()])
    with torch.no_grad():
        logits = torch.randn(*y.shape, host.data.classes, generator=torch.Generator().manual_seed(0)).to(x.device)
        try:
            both = _losses(host.task, logits, y, 2)
        except Exception as error:
            reason = str(error).split("\n", 1)[0]
            raise Unstackable(f"the task's loss does not run for several hosts at once: {type(error).__name__}: {reason}") from error
        alone = torch.stack([host.task.loss(logits[i::2], y[i::2]) for i in range(2)])
        if both.shape != alone.shape or not torch.allclose(both, alone, rtol=1e-3, atol=1e-5):
            raise Unstackable("the task's loss is another for two hosts at once than one by one")
    return checked


def check_memory(host: Host, checked: Checked, rows: int) -> None:
    """Raise DeviceError if so many hosts like this one do not fit on its GPU, by what a step of two of them takes."""
    device = host.split.x.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    _try_step(host, checked)
    each = (torch.cuda.max_memory_allocated(device) - before) // 2
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if SEEDS_SHARE * each * rows > free:
        fits = max(0, int(free // (SEEDS_SHARE * each)) - 1)
        need, there = (f"{size / 2**30:.1f} GiB" for size in (SEEDS_SHARE * each * rows, free))
        raise DeviceError(
            f"{rows - 1} hosts of task {host.task.name!r} with batches of {host.member.batch} need about {need} on {device}, "
            f"which has {there} free: at most {fits} fit; lower --hosts, or name more --devices"
        )


def _try_step(host: Host, checked: Checked) -> None:
    """The forward and backward pass of two hosts like this one, on copies."""
    module = bare_host(host.model)
    stacked, rows = StackedModule(module, [slot.place.path for slot in host.model.slots.values()]), Rows(module, 2, None, checked.unused)
    values = rows.values()
    stacked.bind(values, 2, Streams([0, 0], host.split.x.device), [0, 1])
    x, y = host.batch(torch.arange(2 * host.member.batch, device=host.split.x.device) % len(host.split), 0)
    with autocast(host.config.precision, x.device):
        losses = _losses(host.task, stacked.module(x), y, 2)
    torch.autograd.grad(losses.sum(), [values[name] for name in rows.names], allow_unused=True)


def _losses(task: Task, logits: Tensor, y: Tensor, hosts: int) -> Tensor:
    """The loss of each host, (hosts,), from logits and targets of all, samples first."""
    if type(task).loss is Task.loss:  # as vmap would have it, in a fifth of the operations
        each = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(-1, hosts, y[0].numel())
        return each.mean((0, 2))
    losses: Tensor = vmapped(task.loss, 1, 0, logits.unflatten(0, (-1, hosts)), y.unflatten(0, (-1, hosts)))
    return losses


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


class Captured:
    """Work on the device that is done again and again on the same tensors: on a GPU it is captured the second time, then replayed.

    The first time libraries set themselves up for its shapes, which cannot be captured. pool: memory for what is captured, which work that
    never runs at the same time shares; None captures nothing.
    """

    def __init__(self, work: Callable[[], None], pool: Any) -> None:
        self.work, self.pool = work, pool
        self.begun = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.pool is None or not self.begun:
            self.begun = True
            self.work()
            return
        if self.graph is None:
            self.graph = self._captured()
        self.graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The work as a graph. Not by `torch.cuda.graph`, which collects garbage and empties caches each time.

        Nothing is collected meanwhile: a graph of before that is freed while another is captured spoils it.
        """
        graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self.work()
            finally:
                graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph


class Fleet:
    """Hosts of one architecture, with the same number of samples, on one device.

    like: one of them. rows: how many there can be. On a GPU there is one row more than hosts, and room for seeds to come, so that what was
    captured serves as long as possible. seeds_checked: see StackedGrowables.
    """

    def __init__(self, like: Host, checked: Checked, rows: int, room: Room, seeds_checked: dict[Hashable, Checked] | None = None) -> None:
        self.task, self.config, self.device = like.task, like.config, like.split.x.device
        self.member, self.sizes = like.member, batch_sizes(len(like.split), like.member.batch)
        self.short = len(self.sizes) <= SHORT_EPOCH
        """Whether an epoch is too short for rows to be dealt out anew whenever something changes."""
        ahead = room is spare and self.short
        self.stack = StackedGrowables(like.model, like.optimizer, checked, rows, room, ahead=ahead, seeds_checked=seeds_checked)
        self.hosts: list[Host | None] = [None] * rows
        self.row_of: dict[Host, int] = {}
        dtype, device = self.stack.rows.flat.dtype, self.device
        self._figures = torch.zeros(3, rows, device=device, dtype=dtype)
        self.rates = Rates(*self._figures.unbind())
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        self.sums = torch.zeros(rows, 2, device=device)
        self.cap = max(self.config.eval_batch, like.member.batch * rows)
        """Samples of all hosts in one pass of a measurement: as many as in a step, or more if they are small."""
        if device.type == "cuda":
            self.cap = max(self.cap, MEASURED_BYTES // (32 * like.split.x[0].numel() * like.split.x.element_size()))
        self.pool: _Pool | None = None
        self.graphs = torch.cuda.graph_pool_handle() if device.type == "cuda" and room is spare else None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._view: View | None = None
        self._shadow: View | None = None
        self._learner: Learner | None = None
        self._steps: dict[int, _Step] = {}
        self._measurements: dict[Hashable, _Measurement] = {}
        self._counted: dict[int, tuple[Tensor, Tensor]] = {}
        """Samples of each class, by the targets that were counted."""
        self._reference: dict[tuple[Host, int], Tensor] = {}
        """Where the inputs are that batch norms are made anew from, by host and number."""

    # Who is here

    def update(self, hosts: Sequence[Host]) -> None:
        """Let hosts go that are not among these, and take in those that are new."""
        wanted = set(hosts)
        gone = [row for row, host in enumerate(self.hosts) if host is not None and host not in wanted]
        for row in gone:
            self.stack.leave(row)
            self.hosts[row] = None
        new = [host for host in hosts if host not in self.row_of]
        free = (row for row, host in enumerate(self.hosts) if host is None)
        for host in new:
            row = next(free)
            self.stack.join(row, host.model, host.optimizer)
            self.hosts[row] = host
        self.row_of = {host: row for row, host in enumerate(self.hosts) if host is not None}
        if gone or new:
            self._reference = {key: value for key, value in self._reference.items() if key[0] in wanted}
            self.active.copy_(sent(torch.tensor([host is not None for host in self.hosts]), self.device))
        if new:
            self.pool = _Pool([(new[0] if host is None else host).split for host in self.hosts])

    def release(self) -> None:
        """Give every host tensors of its own again."""
        self.update([])

    def on_stream(self) -> AbstractContextManager[Any]:
        """Work in here runs beside that of other fleets; whoever needs its results waits with `join_stream`."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def join_stream(self) -> None:
        """Let what follows wait, on the device, for what runs here."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

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
        learning = [stack.rows, *(seeds.rows for key, seeds in stack.seeds.items() if key.role is not Role.IDLE)]
        for rows in learning:
            rows.begin_steps()
        self._fill_rates(plans)
        self.sums.zero_()
        self._arrange(plans)
        drawn = self._augment_streams({row: plan.epoch for row, plan in plans.items()})
        # (samples, rows): position of each sample of the epoch in its host's training set.
        orders = torch.zeros(sum(self.sizes), len(self.hosts), dtype=torch.int64)
        for row, plan in plans.items():
            orders[:, row] = plan.order
        every = torch.arange(len(self.hosts), device=self.device)
        random = draws_at_random(self.stack.network)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [], enabled=random):
            for positions in sent(orders, self.device).split(self.sizes):
                if len(positions) not in self._steps:
                    self._steps[len(positions)] = _Step(self)
                self._steps[len(positions)](*self.batch(every, positions, drawn))
        for rows in learning:
            rows.end_steps(len(self.sizes))

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
        size = min(samples, sum(self.sizes)) if norms else 0
        counted = self.task.kind == "classification"
        shapes = ((), (len(split),), (self.task.classes if counted else 0,))
        found = [torch.zeros(len(pairs), *shape, device=self.device) for shape in shapes]
        room = max(1, self.cap // max(1, min(size, self.config.eval_batch)))
        drawn = self._augment_streams({row: host.epoch for row, host in enumerate(self.hosts) if host is not None})
        for at in range(0, len(pairs), room):
            part = pairs[at : at + room]
            key = (size, precision, at // room)
            known = self._measurements.get(key)
            view = self.stack.showing(part, None if known is None else known.view)
            if known is None or known.view is not view:
                known = self._measurements[key] = _Measurement(self, view, norms, precision)
            for into, values in zip(found, known.run(split, self._references(view, size, drawn)), strict=True):
                into[at : at + len(part)] = values[: len(part)]
        total = self._class_counts(split) if counted else found[2].new_zeros(0)
        losses, hits, right = found
        return Measured(list(wanted), losses, hits, right, total, targets=split.y.numel() // len(split))

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


class _Step:
    """One step of all hosts on batches of one size: losses, gradients, then every row moved."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        assert fleet._view is not None
        assert fleet._learner is not None
        self.view, self.shadow, self.learner = fleet._view, fleet._shadow, fleet._learner
        self.x: Tensor | None = None
        self.y: Tensor | None = None
        self.work = Captured(self._work, None if self.view.streams is not None else fleet.graphs)

    def __call__(self, x: Tensor, y: Tensor) -> None:
        if self.x is None or self.y is None:
            self.x, self.y = x, y
        else:
            self.x.copy_(x)
            self.y.copy_(y)
        self.work()

    def _work(self) -> None:
        fleet, x, y, rows = self.fleet, self.x, self.y, len(self.view)
        assert x is not None
        assert y is not None
        fleet.stack.network.train()
        fleet.stack.note_frozen()
        logits, losses = self._forward(self.view, x, y)
        gradients = _gradients(torch.where(fleet.active, losses, 0.0), self.view)
        if self.shadow is not None:
            gradients += self._shadow_gradients(self.shadow, x, y)
        self.learner.step(gradients)
        correct = fleet.task.correct(logits.detach(), y).view(-1, rows)
        fleet.sums += torch.stack((losses.detach() * len(correct), correct.sum(0)), 1)

    def _forward(self, view: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.fleet.config.precision, self.fleet.device):
            logits = view.run(x)
            return logits, _losses(self.fleet.task, logits, y, len(view))

    def _shadow_gradients(self, view: View, x: Tensor, y: Tensor) -> list[list[Tensor]]:
        """Seeds in TRAINING, in a pass of their own: at their target alpha, with running statistics in the batch norms."""
        rows = (-1, len(self.view))
        x, y = (each.unflatten(0, rows).index_select(1, view.which).flatten(0, 1) for each in (x, y))
        view.copy()  # the hosts have moved since the step before
        stack = self.fleet.stack
        with modes_kept(stack.network), nullcontext() if view.streams is None else view.streams.kept():
            for norm in tracked_norms(stack.host.module):
                norm.training = False
            losses = self._forward(view, x, y)[1]
            return _gradients(torch.where(self.fleet.active.index_select(0, view.which), losses, 0.0), view)


class _Measurement:
    """Models of a view on a split: batch norms made anew, then losses and hits."""

    def __init__(self, fleet: Fleet, view: View, norms: list[Norm], precision: Precision) -> None:
        self.fleet, self.view, self.norms, self.precision = fleet, view, norms, precision
        self.reference: list[Tensor] = []
        classes = fleet.task.classes if fleet.task.kind == "classification" else 0
        self.losses = torch.zeros(len(view), device=fleet.device)
        self.right = torch.zeros(len(view), classes, device=fleet.device)
        self.prepare = Captured(self._prepare, fleet.graphs)
        self.passes: dict[int, _Pass] = {}

    def run(self, split: Split, reference: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (rows,) summed over the samples, hits (rows, samples), and samples predicted by class (rows, classes)."""
        if self.reference:
            for mine, new in zip(self.reference, reference, strict=True):
                mine.copy_(new)
        else:
            self.reference = reference
        hits = torch.zeros(len(self.view), len(split), device=self.fleet.device)
        self.losses.zero_()
        self.right.zero_()
        self.prepare()
        step = max(1, self.fleet.cap // len(self.view))
        for start in range(0, len(split), step):
            x, y = split.x[start : start + step], split.y[start : start + step]
            if len(x) not in self.passes:
                self.passes[len(x)] = _Pass(self, x, y)
            hits[:, start : start + len(x)] = self.passes[len(x)](x, y)
        return self.losses, hits, self.right

    def _prepare(self) -> None:
        self.view.copy()
        if self.norms:
            with evaluating(self.fleet.stack.network), autocast(self.precision, self.fleet.device):
                refit(self.view.bound(), self.norms, self.reference)


class _Pass:
    """So many samples of a split through all models of a view."""

    def __init__(self, measurement: _Measurement, x: Tensor, y: Tensor) -> None:
        self.of, self.x, self.y = measurement, x.clone(), y.clone()
        self.hits = torch.zeros(len(measurement.view), len(x), device=x.device)
        self.work = Captured(self._work, measurement.fleet.graphs)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.x.copy_(x)
        self.y.copy_(y)
        self.work()
        return self.hits

    def _work(self) -> None:
        view, task, samples = self.of.view, self.of.fleet.task, len(self.x)
        x, y = (each.unsqueeze(1).expand(samples, len(view), *each.shape[1:]).flatten(0, 1) for each in (self.x, self.y))
        with evaluating(self.of.fleet.stack.network), autocast(self.of.precision, x.device):
            logits = view.run(x)
            self.of.losses += _losses(task, logits, y, len(view)).float() * samples
        self.hits.copy_(task.correct(logits, y).view(samples, len(view)).T)
        if self.of.right.shape[1]:
            found = (logits.argmax(-1) == y).view(samples, len(view)).T.float()
            self.of.right += found @ torch.nn.functional.one_hot(self.y, self.of.right.shape[1]).float()


def _gradients(losses: Tensor, view: View) -> list[list[Tensor]]:
    """Gradients of what learns in a view, by part. The losses of different hosts have no tensor in common, so their sum does for all."""
    leaves = [[part.values[name] for name in part.rows.names] for part in view.learning]
    found = iter(torch.autograd.grad(losses.sum(), [leaf for each in leaves for leaf in each], materialize_grads=True))
    return [[next(found) for _ in each] for each in leaves]
