"""A fleet: hosts of one architecture, trained and measured as one program.

Every host keeps its own data order, augmentation, labels, amount of data, learning rate, decay and momentum, and its own seeds; what it
learns does not depend on the others. Nothing here waits for the device but the one read at the end of an epoch, which the engine does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.attach.probe import evaluating, modes_kept
from esper.kasmina.norms import recalibrated, tracked_norms
from esper.kasmina.stacking.check import Checked, check_stackable
from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.growables import StackedGrowables, View, bare_host
from esper.kasmina.stacking.learning import Learner, Rates
from esper.kasmina.stacking.stacked import Streams
from esper.leyline.stages import Stage
from esper.tolaria.data import Split, stream_seed
from esper.tolaria.data.streams import draws_from
from esper.tolaria.tasks.registry import augment_stream
from esper.tolaria.training.attribution import Configuration
from esper.tolaria.training.host import EpochPlan, Host, batch_sizes
from esper.tolaria.training.validation import Array, Scores, wanted_of

CHECK_SAMPLES = 6
"""Samples, of two hosts together, that an architecture is tried on."""


def fleet_key(host: Host) -> Hashable:
    """Hosts with the same key can be in one fleet."""
    member, slots = host.member, tuple((slot.id, slot.place.path) for slot in host.model.slots.values())
    kind = (member.optimizer, member.momentum > 0, member.batch, member.augment)
    return (host.task.name, host.architecture, slots, kind, host.split.x.device)


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
            both = _losses(host, logits, y, 2)
        except Exception as error:
            reason = str(error).split("\n", 1)[0]
            raise Unstackable(f"the task's loss does not run for several hosts at once: {type(error).__name__}: {reason}") from error
        alone = torch.stack([host.task.loss(logits[i::2], y[i::2]) for i in range(2)])
        if both.shape != alone.shape or not torch.allclose(both, alone, rtol=1e-3, atol=1e-5):
            raise Unstackable("the task's loss is another for two hosts at once than one by one")
    return checked


def _losses(host: Host, logits: Tensor, y: Tensor, hosts: int) -> Tensor:
    """The loss of each host, (hosts,), from logits and targets of all, samples first."""
    losses: Tensor = torch.vmap(host.task.loss, in_dims=1)(logits.unflatten(0, (-1, hosts)), y.unflatten(0, (-1, hosts)))
    return losses


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that a range of the hosts takes together, with batches of one size."""

    start: int
    end: int
    size: int
    first: int
    """Samples of the epoch that are done before."""
    steps: int


def segments(sizes: Sequence[tuple[int, ...]]) -> list[Segment]:
    """The steps of hosts with these batches, so that each host's come in order. Hosts with like batches are neighbours, most batches first."""
    found: list[Segment] = []
    for step in range(max(map(len, sizes))):
        start = 0
        while start < len(sizes) and step < len(sizes[start]):
            size, end = sizes[start][step], start
            while end < len(sizes) and step < len(sizes[end]) and sizes[end][step] == size:
                end += 1
            first = sum(sizes[start][:step])
            last = next((each for each in reversed(found) if (each.start, each.end) == (start, end)), None)
            if last is not None and last.size == size and last.first + last.steps * size == first:
                found[found.index(last)] = Segment(start, end, size, last.first, last.steps + 1)
            else:
                found.append(Segment(start, end, size, first, 1))
            start = end
    return found


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
    return different[0] if len(different) == 1 else torch.cat(different), torch.tensor(starts, device=tensors[0].device)


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

    plans: list[EpochPlan]
    sums: Tensor
    """(hosts, 2): loss and targets predicted, summed over the samples."""
    measured: Measured
    figures: Tensor

    def tensors(self) -> list[Tensor]:
        """All that has to be read, in the order in which `results` takes it."""
        return [self.sums, self.figures, *self.measured.tensors()]

    def results(self, sums: Array, figures: Array, *values: Array) -> Iterator[tuple[EpochPlan, Array, Scores, list[float]]]:
        """For each host what `Host.conclude` takes."""
        return zip(self.plans, sums, self.measured.scores(*values), figures.tolist(), strict=True)


class Fleet:
    """Hosts of one architecture on one device. Its hosts are in an order of its own; results come in that of `hosts`."""

    def __init__(self, hosts: Sequence[Host], checked: Checked) -> None:
        self.members = list(hosts)
        sizes = {host: batch_sizes(len(host.split), host.member.batch) for host in hosts}
        self.hosts = sorted(hosts, key=lambda host: (-len(sizes[host]), sizes[host][-1]))
        self.row_of = {host: row for row, host in enumerate(self.hosts)}
        first = self.hosts[0]
        self.task, self.config, self.device = first.task, first.config, first.split.x.device
        self.segments = segments([sizes[host] for host in self.hosts])
        self.stack = StackedGrowables([host.model for host in self.hosts], [host.optimizer for host in self.hosts], checked)
        self.pool = _Pool([host.split for host in self.hosts])
        self._reference: dict[tuple[int, int], Tensor] = {}
        """Where the inputs are that batch norms are made anew from, by row and number."""
        self.cap = max(self.config.eval_batch, first.member.batch * len(self.hosts))
        """Samples of all hosts in one pass of a measurement: as many as in a step, or what the config allows."""

    def release(self) -> None:
        """Give every host tensors of its own again."""
        self.stack.release()

    # One epoch

    def run_epoch(self) -> Pending:
        """Train and measure every host. Waits for no device."""
        self.stack.sync()
        plans = [host.begin_epoch() for host in self.hosts]
        sums = self.train(plans)
        wanted = [wanted_of(host.model) for host in self.hosts]
        with self.hosts[0].autocast():
            measured = self.measure(range(len(self.hosts)), wanted, self.hosts[0].data.val, self.config.recalibrate)
        return Pending(plans, sums, measured, self.stack.figures())

    def score(self, hosts: Sequence[Host], split: Split) -> Measured:
        """What `Host.score` gives, for several hosts of the fleet. Waits for no device."""
        self.stack.sync()
        wanted = [[frozenset(host.model.at(Stage.FOSSILIZED))] for host in hosts]
        return self.measure([self.row_of[host] for host in hosts], wanted, split, self.hosts[0].harvest_samples)

    def train(self, plans: Sequence[EpochPlan]) -> Tensor:
        """All batches of the epoch; (hosts, 2): loss and targets predicted, summed over the samples."""
        stack, device = self.stack, self.device
        stack.network.train()
        stack.note_frozen()
        every = [stack.rows, *(seeds.rows for seeds in stack.seeds.values())]
        for rows in every:
            rows.begin_steps()
        rates = self._rates(plans)
        streams = self._streams(plans)
        self._drawn = self._augment_streams([plan.epoch for plan in plans])
        sums = torch.zeros(len(self.hosts), 2, device=device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for segment in self.segments:
                self._run(segment, plans, rates, streams, sums)
        for rows, hosts in [(stack.rows, range(len(self.hosts))), *((seeds.rows, seeds.hosts) for seeds in stack.seeds.values())]:
            rows.end_steps([len(plans[host].sizes) for host in hosts])
        return sums

    def _run(self, segment: Segment, plans: Sequence[EpochPlan], rates: Rates, streams: Streams | None, sums: Tensor) -> None:
        start, end = segment.start, segment.end
        step = _Step(self, segment, rates, streams, sums[start:end])
        last = segment.first + segment.steps * segment.size
        # (hosts, steps * size) as (steps, size, hosts).
        orders = torch.stack([plan.order[segment.first : last] for plan in plans[start:end]])
        for positions in orders.view(end - start, segment.steps, segment.size).permute(1, 2, 0).to(self.device):
            step(positions)

    def batch(self, rows: slice | Tensor, positions: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Samples at these positions, (samples, hosts), of the training sets of some hosts: rows samples first, and their targets."""
        x = self.pool.x[(positions + self.pool.x_first[rows]).flatten()]
        y = self.pool.y[(positions + self.pool.y_first[rows]).flatten()]
        if drawn is not None:
            x = self.task.augment(x, draws_from(positions, drawn[rows]).flatten())
        return x, y

    def _augment_streams(self, epochs: Sequence[int]) -> Tensor | None:
        if not self.hosts[0].member.augment:
            return None
        seeds = [stream_seed(*augment_stream(host.seed, epoch)) for host, epoch in zip(self.hosts, epochs, strict=True)]
        return torch.tensor(seeds, device=self.device)

    def _streams(self, plans: Sequence[EpochPlan]) -> Streams | None:
        if not any(isinstance(module, torch.nn.modules.dropout._DropoutNd) for module in self.stack.network.modules()):
            return None
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            return Streams([host.dropout_stream(plan.epoch) for host, plan in zip(self.hosts, plans, strict=True)], self.device)

    def _rates(self, plans: Sequence[EpochPlan]) -> Rates:
        members = [host.member for host in self.hosts]
        columns = [
            [member.rate_at(plan.epoch) for member, plan in zip(members, plans, strict=True)],
            [member.weight_decay for member in members],
            [member.momentum for member in members],
        ]
        return Rates(*torch.tensor(columns, device=self.device, dtype=self.stack.rows.flat.dtype)[:, :, None].unbind())

    # Measurements

    def measure(self, rows: Sequence[int], wanted: Sequence[Sequence[Configuration]], split: Split, samples: int) -> Measured:
        """Configurations of some hosts on a split. Waits for no device.

        samples: training inputs that batch norms are made anew from, for each configuration of each host by itself.
        """
        pairs = [(row, on) for row, each in zip(rows, wanted, strict=True) for on in each]
        losses = torch.zeros(len(pairs), device=self.device)
        hits = torch.zeros(len(pairs), len(split), device=self.device)
        counted = self.task.kind == "classification"
        right = torch.zeros(len(pairs), self.task.classes if counted else 0, device=self.device)
        norms = self.stack.learning_norms() if self.config.recalibrate else []
        every = self._augment_streams([host.epoch for host in self.hosts])
        sizes = {row: min(samples, len(self.hosts[row].split)) for row in rows} if norms else dict.fromkeys(rows, 0)
        places = sorted(range(len(pairs)), key=lambda place: -sizes[pairs[place][0]])
        at = 0
        while at < len(places):
            size = sizes[pairs[places[at]][0]]
            room = max(1, self.cap // max(1, min(size, self.config.eval_batch)))
            chosen = [place for place in places[at : at + room] if sizes[pairs[place][0]] == size]
            at += len(chosen)
            self._measure([pairs[place] for place in chosen], torch.tensor(chosen, device=self.device), split, size, norms, every, losses, hits, right)
        total = torch.bincount(split.y, minlength=self.task.classes) if counted else right.new_zeros(0)
        return Measured(list(wanted), losses, hits, right, total, split.y.numel() // len(split))

    def _measure(
        self,
        pairs: list[tuple[int, Configuration]],
        places: Tensor,
        split: Split,
        size: int,
        norms: list[Any],
        drawn: Tensor | None,
        losses: Tensor,
        hits: Tensor,
        right: Tensor,
    ) -> None:
        view = self.stack.showing(pairs)
        count, host = len(pairs), self.hosts[0]
        network = view.bound()
        with evaluating(network), recalibrated(network, norms, self._references(pairs, size, drawn)) if size else nullcontext():
            step = max(1, self.cap // count)
            for start in range(0, len(split), step):
                x, y = (each[start : start + step] for each in (split.x, split.y))
                samples = len(x)
                x, y = (each.unsqueeze(1).expand(samples, count, *each.shape[1:]).flatten(0, 1) for each in (x, y))
                logits = view.run(x)
                losses.index_add_(0, places, _losses(host, logits, y, count).float() * samples)
                correct = self.task.correct(logits, y).view(samples, count)
                hits[places, start : start + samples] = correct.T.float()
                if right.shape[1]:
                    found = (logits.argmax(-1) == y).view(samples, count).T.float()
                    classes = torch.nn.functional.one_hot(split.y[start : start + samples], right.shape[1]).float()
                    right.index_add_(0, places, found @ classes)

    def _references(self, pairs: list[tuple[int, Configuration]], size: int, drawn: Tensor | None) -> list[Tensor]:
        """Training inputs of each pair's host, as its batch norms are made anew from, in batches."""
        known = self._reference
        for row in {row for row, _ in pairs}:
            if (row, size) not in known:
                known[row, size] = self.hosts[row].reference_positions(size)
        rows = torch.tensor([row for row, _ in pairs], device=self.device)
        positions = torch.stack([known[row, size] for row, _ in pairs], 1).to(self.device)
        return [self.batch(rows, part, drawn)[0] for part in positions.split(batch_sizes(size, self.config.eval_batch))]


class _Step:
    """One step of a range of hosts: samples, losses, gradients, then every row moved."""

    def __init__(self, fleet: Fleet, segment: Segment, rates: Rates, streams: Streams | None, sums: Tensor) -> None:
        self.fleet, self.segment, self.sums = fleet, segment, sums
        start, end = segment.start, segment.end
        self.rows = slice(start, end)
        self.view = fleet.stack.training(start, end, streams)
        self.shadow = fleet.stack.shadows(start, end, streams)
        learning = [*self.view.learning, *(self.shadow.learning if self.shadow is not None else ())]
        self.learner = Learner(fleet.stack, learning, start, end, rates, fleet.config.clip)

    def __call__(self, positions: Tensor) -> None:
        """positions: of the samples in each host's training set, (samples, hosts)."""
        fleet = self.fleet
        x, y = fleet.batch(self.rows, positions, fleet._drawn)
        logits, losses = self._forward(self.view, x, y)
        gradients = _gradients(losses, self.view)
        if self.shadow is not None:
            gradients += self._shadow_gradients(self.shadow, x, y)
        self.learner.step(gradients)
        correct = fleet.task.correct(logits.detach(), y).view(positions.shape).sum(0)
        self.sums += torch.stack((losses.detach() * len(positions), correct), 1)

    def _forward(self, view: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with self.fleet.hosts[0].autocast():
            logits = view.run(x)
            return logits, _losses(self.fleet.hosts[0], logits, y, len(view))

    def _shadow_gradients(self, view: View, x: Tensor, y: Tensor) -> list[list[Tensor]]:
        """Seeds in TRAINING, in a pass of their own: at their target alpha, with running statistics in the batch norms."""
        places = torch.tensor([host - self.segment.start for host in view.hosts], device=x.device)
        shape = (-1, self.segment.end - self.segment.start)
        x, y = (each.unflatten(0, shape).index_select(1, places).flatten(0, 1) for each in (x, y))
        view.refresh()  # the hosts have moved since the step before
        network = self.fleet.stack.network
        with modes_kept(network), nullcontext() if view.streams is None else view.streams.kept():
            for norm in tracked_norms(self.fleet.stack.host.module):
                norm.training = False
            return _gradients(self._forward(view, x, y)[1], view)


def _gradients(losses: Tensor, view: View) -> list[list[Tensor]]:
    """Gradients of what learns in a view, by part. The losses of different hosts have no tensor in common, so their sum does for all."""
    leaves = [[part.values[name] for name in part.rows.names] for part in view.learning]
    found = iter(torch.autograd.grad(losses.sum(), [leaf for each in leaves for leaf in each], materialize_grads=True))
    return [[next(found) for _ in each] for each in leaves]
