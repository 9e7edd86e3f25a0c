"""Views: which rows of stacked models run, in which form. That is written into tensors, so that a captured step serves for long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from esper.kasmina.blending import combine, isolated
from esper.kasmina.stacking.needs import Kind, Needs, Part, Role, SeedKey, Seeds
from esper.kasmina.stacking.packed import Packed
from esper.kasmina.stacking.rows import Rows, sent
from esper.kasmina.stacking.rules import grown, has_kernels
from esper.kasmina.stacking.stacked import Streams
from esper.kasmina.stacking.tables import Tables
from esper.leyline.actions import Style

if TYPE_CHECKING:
    from esper.kasmina.stacking.growables import StackedGrowables


@dataclass(slots=True, eq=False)
class Learning:
    """Rows that learn in a view: their values are leaves, which a gradient can be taken for."""

    rows: Rows
    values: dict[str, Tensor]
    hosts: list[int]
    """Of each row, its host."""
    slot: str | None = None
    """None for the hosts themselves."""
    gate: bool = False


@dataclass(slots=True, eq=False)
class _Bound:
    """Like seeds, or gates, as a view runs them: the storage itself, or copies of some rows."""

    key: SeedKey
    seeds: Seeds
    values: dict[str, Tensor]
    which: Tensor | None
    """int64 (n,): the rows that are copied; None for all of the storage."""
    places: list[int] = field(default_factory=list)
    """Of each, its host."""

    def copy(self) -> None:
        """Copy what is a copy again."""
        if self.which is not None:
            self.seeds.rows.copy(self.which, self.values)


@dataclass(slots=True, eq=False)
class _Group:
    """Rows of a slot that do the same with their seeds' outputs."""

    kind: Kind
    alpha: Tensor
    gates: list[_Bound]
    back: Tensor
    """int64 (n,): of each, where its gate is among those of `gates`, one after another."""


@dataclass(slots=True, eq=False)
class _AtSlot:
    """What happens at one slot of a view."""

    seeds: list[_Bound]
    sizes: list[int]
    """Rows of each of them."""
    taken: Tensor
    """int64: the row of the batch that runs through each of their rows, one after another."""
    isolated: Tensor | None
    """bool, of the same shape: rows whose features are cut off from the gradient. None where there cannot be any."""
    groups: list[_Group]
    counts: list[int]
    """Rows of each group."""
    among: Tensor
    """int64: where the rows of the groups, one after another, are among all of the seeds' rows."""
    positions: Tensor
    """int64: rows of the batch in the order of `groups`."""
    tables: Tables
    """The same, as our kernels read it."""


class _Numbers(NamedTuple):
    """Those of a slot's tensors, as they are packed."""

    source: int
    isolated: int
    among: int
    positions: int
    place: int
    kind: int
    nth: int
    alpha: int


class View:
    """Some models, or copies of them, in certain forms, ready to run: the storage itself where something learns, else copies.

    What takes part is written into tensors by `fill`, so that one view serves many epochs, and a captured step as long as the view.
    """

    def __init__(self, stack: StackedGrowables, needs: Needs, learns: Role | None) -> None:
        self.stack, self.needs, self.learns = stack, needs, learns
        self.hosts: list[int] = []
        """Of each row its host."""
        self.streams: Streams | None = None
        self.learning: list[Learning] = []
        self._ints, self._bools = Packed(torch.int64, stack.device), Packed(torch.bool, stack.device)
        self._floats = Packed(stack.dtype, stack.device)
        self._build()

    def __len__(self) -> int:
        return self.needs.rows

    def fits(self, needs: Needs) -> bool:
        """Whether this is a view of that size, on the same storage."""
        return self.needs == needs

    def _build(self) -> None:
        stack, needs = self.stack, self.needs
        every = {key: size for key, size in needs.seeds.items() if size}
        ints, bools, floats = self._ints.add, self._bools.add, self._floats.add
        self._which = ints(needs.rows)
        self._copied = {key: ints(size) for key, size in every.items()}
        self._groups = {key: (floats(size), ints(size)) for key, size in needs.kinds.items()}
        self._slots: dict[str, _Numbers] = {}
        for id in stack.slots:
            seeds = sum(size for key, size in every.items() if key.slot == id and key.blueprint)
            rows = sum(size for (slot, _), size in needs.kinds.items() if slot == id)
            if rows:
                self._slots[id] = _Numbers(
                    source=ints(seeds + needs.kinds.get((id, Kind.GATED), 0)),
                    isolated=bools(seeds),
                    among=ints(rows),
                    positions=ints(rows),
                    place=ints(needs.rows),
                    kind=ints(needs.rows),
                    nth=ints(needs.rows),
                    alpha=floats(needs.rows),
                )
        self._make()

    def _make(self) -> None:
        """The tensors, now that it is known how many."""
        stack, needs = self.stack, self.needs
        ints, bools, floats = self._ints.make(), self._bools.make(), self._floats.make()
        self.which = ints[self._which]
        self.values = stack.rows.values() if self.learns is Role.LEARNS else stack.rows.copies(self.which)
        if self.learns is Role.LEARNS:
            self.learning.append(Learning(stack.rows, self.values, list(range(needs.rows))))
        self.bounds: dict[SeedKey, _Bound] = {}
        for key, copied in self._copied.items():
            seeds = stack.seeds[key]
            leaf = key.role is self.learns
            values = seeds.rows.values() if leaf else seeds.rows.copies(ints[copied])
            bound = self.bounds[key] = _Bound(key, seeds, values, which=None if leaf else ints[copied])
            if leaf:
                self.learning.append(Learning(seeds.rows, values, bound.places, key.slot, gate=not key.blueprint))
        self.slots: dict[str, _AtSlot] = {}
        for id, numbers in self._slots.items():
            mine = [(kind, self._groups[id, kind]) for kind in Kind if (id, kind) in self._groups]
            gates = [bound for key, bound in self.bounds.items() if key.slot == id and not key.blueprint]
            bounds = [bound for key, bound in self.bounds.items() if key.slot == id and key.blueprint]
            cut = self.learns is Role.LEARNS and stack.isolation != "none" and (id, Kind.ISOLATED) in needs.kinds
            sizes, counts = [needs.seeds[bound.key] for bound in bounds], {kind: needs.kinds[id, kind] for kind, _ in mine}
            gated = counts.get(Kind.GATED, 0)
            self.slots[id] = _AtSlot(
                seeds=bounds,
                sizes=sizes,
                taken=ints[numbers.source][: sum(sizes)],
                isolated=bools[numbers.isolated] if cut else None,
                groups=[_Group(kind, floats[alpha], gates if kind is Kind.GATED else [], ints[back]) for kind, (alpha, back) in mine],
                counts=list(counts.values()),
                among=ints[numbers.among],
                positions=ints[numbers.positions],
                tables=Tables(
                    source=ints[numbers.source],
                    block=sent(_blocks([*sizes, gated]), stack.device),
                    sizes=sizes,
                    gated=gated,
                    place=ints[numbers.place],
                    kind=ints[numbers.kind],
                    nth=ints[numbers.nth],
                    alpha=floats[numbers.alpha],
                    seconds=counts.get(Kind.MULTIPLY, 0) + (0 if cut else counts.get(Kind.ISOLATED, 0)),
                    cut=cut,
                    closed=cut and list(counts) == [Kind.ISOLATED],
                    boost=stack.isolation == "boost" and Kind.ISOLATED in counts,
                ),
            )

    def fill(self, hosts: list[int], forms: list[dict[str, Part]]) -> None:
        """Which models run, one for each row, and what each does at its slots."""
        idle_row = len(self) - 1
        self.hosts = hosts + [self.stack.idle] * (len(self) - len(hosts))
        for packed in (self._ints, self._bools, self._floats):
            for part in packed.staged:
                part.fill(0)
        ints, bools, floats = self._ints.staged, self._bools.staged, self._floats.staged
        ints[self._which][:] = self.hosts
        row_of = {host: row for row, host in enumerate(hosts)} if self.learns is not None else {}
        for key, bound in self.bounds.items():
            bound.places[:] = [self.stack.idle] * self.needs.seeds[key]  # those at a slot where nothing runs now too
        for id, at in self.slots.items():
            here = {row: part for row, parts in enumerate(forms) if (part := parts.get(id)) is not None}
            numbers = self._slots[id]
            place = self._fill_bounds(at.seeds, here, row_of)
            gates = self._fill_bounds([bound for key, bound in self.bounds.items() if key.slot == id and not key.blueprint], here, row_of)
            ints[numbers.source].fill(idle_row)
            for row, where in place.items():
                if row >= 0:
                    ints[numbers.source][where] = row
                    bools[numbers.isolated][where] = row in here and here[row].kind is Kind.ISOLATED
            ints[numbers.place].fill(-1)
            first = 0
            for group, size in zip(at.groups, at.counts, strict=True):
                alpha, back = self._groups[id, group.kind]
                rows = [row for row, part in here.items() if part.kind is group.kind]
                # Room to spare is filled with what belongs to the host that does not exist, if only its features.
                spares = size - len(rows)
                ints[numbers.among][first : first + size] = [place[row] for row in rows] + [place.get(-1, 0)] * spares
                ints[numbers.positions][first : first + size] = rows + [idle_row] * spares
                floats[alpha][: len(rows)] = [here[row].alpha for row in rows]
                if group.gates:
                    ints[back][:] = [gates[row] for row in rows] + [gates.get(-1, 0)] * spares
                    ints[numbers.source][sum(at.sizes) :][: len(rows)] = rows
                ints[numbers.place][rows] = [place[row] for row in rows]
                ints[numbers.kind][rows] = group.kind.value
                # Those that are multiplied come first among the rows that have a second gradient.
                before = self.needs.kinds.get((id, Kind.MULTIPLY), 0) if group.kind is Kind.ISOLATED else 0
                ints[numbers.nth][rows] = range(before, before + len(rows))
                floats[numbers.alpha][rows] = [here[row].alpha for row in rows]
                first += size
        for packed in (self._ints, self._bools, self._floats):
            packed.write()

    def _fill_bounds(self, bounds: list[_Bound], here: dict[int, Part], row_of: dict[int, int]) -> dict[int, int]:
        """Deal the rows that do something at a slot to the seeds, or gates; where each row's is among all, and under -1 one to spare."""
        idle_host = self.stack.idle
        among: dict[int, int] = {}
        first = 0
        for bound in bounds:
            seeds, size = bound.seeds, self.needs.seeds[bound.key]
            if bound.which is None:
                used = {at: row_of[host] for host, at in seeds.row_of.items()}
            else:
                gated = not bound.key.blueprint
                mine = [row for row, part in here.items() if self.hosts[row] in seeds.row_of and (not gated or part.kind is Kind.GATED)]
                used = dict(enumerate(mine))
                copied = self._ints.staged[self._copied[bound.key]]
                copied[: len(mine)] = [seeds.row_of[self.hosts[row]] for row in mine]
            spare_row = next((at for at in range(size) if at not in used), None)
            if spare_row is not None:
                among.setdefault(-1, first + spare_row)
            bound.places[:] = [idle_host] * size
            for at, row in used.items():
                among[row] = first + at
                bound.places[at] = self.hosts[row]
            first += size
        return among

    def run(self, x: Tensor) -> Any:
        """The models on a batch, (samples * rows, ...), samples first."""
        return self.bound()(x)

    def bound(self) -> nn.Module:
        """The stacked network, with this view's tensors in it until another view is run."""
        self.stack._view = self
        self.stack.host.bind(self.values, len(self), self.streams, self.hosts)
        return self.stack.network

    def copy(self) -> None:
        """Copy everything that is a copy again, in place."""
        if self.learns is not Role.LEARNS:
            self.stack.rows.copy(self.which, self.values)
        for bound in self.bounds.values():
            bound.copy()

    # The forward pass at a slot

    def blend(self, at: _AtSlot, features: Tensor) -> Tensor:
        """The features that the hosts see in place of theirs, (S * N, ...)."""
        h = features.unflatten(0, (-1, len(self)))
        gamma = _stacked([bound.values["gamma"] for bound in at.seeds])
        if has_kernels(h):
            from esper.kasmina.stacking.kernels.grafting import fits

            if fits(h, gamma, at.tables):
                return self._grafted(at, h, gamma).flatten(0, 1)
        # Everything that all seeds or all groups have in common is done for all of them at once: an operation costs more than its rows.
        x = h.index_select(1, at.taken)
        into = x if at.isolated is None else torch.where(at.isolated.view(-1, *[1] * (x.dim() - 2)), x.detach(), x)
        branches = self.stack.beside.run([partial(self._branch, *each) for each in zip(at.seeds, _split(into, at.sizes), strict=True)])
        s = grown(into, gamma, _joined(branches))
        parts = zip(at.groups, *(_split(each.index_select(1, at.among), at.counts) for each in (x, s)), strict=True)
        result = _joined([self._blended(group, mine, new) for group, mine, new in parts])
        return h.index_copy(1, at.positions, result.to(h.dtype)).flatten(0, 1)

    def _grafted(self, at: _AtSlot, h: Tensor, gamma: Tensor) -> Tensor:
        """The same by our kernels, (S, N, ...)."""
        from esper.kasmina.stacking.kernels.grafting import put, take

        taken = take(h, at.tables)
        lent = taken.buffer if torch.is_grad_enabled() and not taken.parts[0].requires_grad else None
        works = [partial(self._branch, *each) for each in zip(at.seeds, taken.parts, strict=True)]
        branches = self.stack.beside.run(works, lent)
        group = next((group for group in at.groups if group.kind is Kind.GATED), None)
        gate = None if group is None or taken.gated is None else self._gate(group, taken.gated)
        return put(taken, branches, gamma, gate, at.tables)

    def _branch(self, bound: _Bound, x: Tensor) -> Tensor:
        """The branches of seeds on their rows, (S, n, ...)."""
        stacked = bound.seeds.module

        def branch(rows: Tensor) -> Tensor:
            values = {name.removeprefix("branch."): each for name, each in bound.values.items() if name != "gamma"}
            stacked.bind(values, x.shape[1], self.streams, bound.places)
            out: Tensor = stacked.module(rows)
            return out

        checkpoint = bound.seeds.checkpoint and stacked.module.training
        rows = x.flatten(0, 1)
        return (recompute(branch, rows, use_reentrant=False) if checkpoint else branch(rows)).view(x.shape)

    def _blended(self, group: _Group, h: Tensor, s: Tensor) -> Tensor:
        if group.kind is Kind.ISOLATED:
            return isolated(h, s, pull=self.stack.isolation == "boost", hosts=True)
        if group.kind is Kind.FULL:
            return s
        alpha: Tensor = group.alpha.view(-1, *[1] * (h.dim() - 2))
        if group.kind is Kind.GATED:
            alpha = alpha * self._gate(group, h)
        return combine(Style.LINEAR_MULTIPLY if group.kind is Kind.MULTIPLY else Style.LINEAR_ADD, h, s, alpha)

    def _gate(self, group: _Group, h: Tensor) -> Tensor:
        """What the gates of these rows give, from several stacks of them: those that learn and those that do not."""
        values = [bound.values for bound in group.gates]
        gathered = {name: _stacked([each[name] for each in values]).index_select(0, group.back) for name in values[0]}
        places = [place for bound in group.gates for place in bound.places]
        module = group.gates[0].seeds.module
        module.bind(gathered, h.shape[1], self.streams, places)
        out: Tensor = module.module(h.flatten(0, 1))
        return out.unflatten(0, h.shape[:2])


# On a GPU torch.cat, which also takes a split back, is one kernel for matrices, and one for each part where there are five dimensions.


def _split(x: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Parts of (S, rows, ...) with so many rows each."""
    if len(sizes) == 1:
        return (x,)
    row = math.prod(x.shape[2:])
    parts = x.flatten(1).split([size * row for size in sizes], 1)
    return [part.unflatten(1, (size, *x.shape[2:])) for part, size in zip(parts, sizes, strict=True)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of (S, rows, ...) one after another; the inverse of `_split`."""
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1).unflatten(1, (-1, *parts[0].shape[2:]))


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of (rows, ...) one after another."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _blocks(sizes: Sequence[int]) -> Tensor:
    """Of each place of blocks of these sizes: the number of its block, its first place, its size; int64 (places, 3)."""
    found, first = [], 0
    for number, size in enumerate(sizes):
        found += [(number, first, size)] * size
        first += size
    return torch.tensor(found)
