"""Growing models of one architecture as one: hosts in the batch, and at each slot the seeds of one blueprint together.

However differently the hosts grow, they stay together: at a slot, the rows of hosts that have a seed of the same blueprint are taken out
of the batch, run through these seeds at once, and put back, each in the form that its own slot has.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim

from esper.kasmina.blending import ADDITIVE, combine, isolated
from esper.kasmina.growable import Growable
from esper.kasmina.norms import Norm, tracked_norms
from esper.kasmina.slot import FIGURES, Form, Slot
from esper.kasmina.stacking.check import Checked, check_stackable
from esper.kasmina.stacking.errors import Unstackable, UnstackableSeed
from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.stacked import StackedModule, Streams
from esper.leyline.actions import Style
from esper.leyline.stages import BLENDED, OCCUPIED, Stage

Configuration = frozenset[str]


class Kind(Enum):
    """What a row of the batch does at a slot with a seed."""

    ISOLATED = auto()
    FULL = auto()
    """The seed's output takes the place of the features."""
    ADD = auto()
    MULTIPLY = auto()
    GATED = auto()


class Part(NamedTuple):
    """What one row does at one slot: which kind, at which alpha."""

    kind: Kind
    alpha: float = 1.0


class Role(Enum):
    """How a seed, or a gate, takes part in training."""

    LEARNS = auto()
    """With its host."""
    ALONE = auto()
    """In a pass of its own, as seeds in TRAINING do in shadow isolation."""
    IDLE = auto()
    """Not yet: straight through, a gate learns once it is blended in."""


class SeedKey(NamedTuple):
    """Which seeds of a slot are stacked together."""

    slot: str
    blueprint: str
    """Empty for gates, which are alike whatever they belong to."""
    role: Role


@dataclass(slots=True, eq=False)
class Seeds:
    """Like seeds at one slot, or like gates, of several hosts."""

    module: StackedModule
    rows: Rows
    hosts: list[int]
    """Of each row its host, in ascending order."""
    row_of: dict[int, int]

    def between(self, start: int, end: int) -> tuple[int, int]:
        """The rows whose hosts are in a range."""
        return bisect_left(self.hosts, start), bisect_left(self.hosts, end)


@dataclass(slots=True, eq=False)
class Learning:
    """Rows that learn in a view: their values are leaves, which a gradient can be taken for."""

    rows: Rows
    start: int
    end: int
    values: dict[str, Tensor]
    hosts: Tensor
    """int64 (end - start,): of each, the place of its host in the range that trains."""
    slot: str | None = None
    """None for the hosts themselves."""
    gate: bool = False


@dataclass(slots=True, eq=False)
class _Bound:
    """Like seeds as a view runs them."""

    module: StackedModule
    values: dict[str, Tensor]
    places: list[int]
    positions: Tensor
    isolated: Tensor | None
    """bool (n,): rows whose features are cut off from the gradient; None for none of them."""


@dataclass(slots=True, eq=False)
class _Gates:
    """The gates of some rows, from several stacks: those that learn and those that do not."""

    module: StackedModule
    parts: list[dict[str, Tensor]]
    back: Tensor
    """Where each row's gate is among those of the parts, one after another."""
    places: list[int]

    def values(self) -> dict[str, Tensor]:
        """Tensors of the gates in the order of the rows."""
        if len(self.parts) == 1:
            return self.parts[0]
        return {name: torch.cat([part[name] for part in self.parts]).index_select(0, self.back) for name in self.parts[0]}


@dataclass(slots=True, eq=False)
class _Group:
    """Rows of a slot that do the same with their seeds' outputs."""

    kind: Kind
    among: Tensor
    """Where they are among all rows that have a seed here."""
    alpha: Tensor
    gate: _Gates | None


@dataclass(slots=True, eq=False)
class _SlotView:
    """What happens at one slot of a view."""

    seeds: list[_Bound] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)
    positions: Tensor | None = None
    """Rows of the batch in the order of `groups`."""


class StackedGrowables:
    """Growing models of one architecture, a row each, that run as one.

    The storage is here; each model's tensors are views of it. `sync` takes in what has happened to the models since the last time.

    checked: what `check_stackable` found for this architecture.
    """

    def __init__(self, models: Sequence[Growable], optimizers: Sequence[optim.Optimizer], checked: Checked) -> None:
        self.models, self.optimizers = list(models), list(optimizers)
        first = self.models[0]
        self.device = first.host_meter.sums.device
        self.isolation = next(iter(first.slots.values())).isolation
        self.host = StackedModule(bare_host(first), [slot.place.path for slot in first.slots.values()])
        self.rows = Rows([model.host for model in models], optimizers, checked.unused)
        self.meters = Rows([model.host_meter for model in models])
        self.slot_meters = {id: Rows([model.slots[id].meter for model in models]) for id in first.slots}
        self.seeds: dict[SeedKey, Seeds] = {}
        self._seed_checks: dict[str, Checked] = {}
        self._modules: dict[tuple[str, str], StackedModule] = {}
        self._view: View | None = None
        self._frozen: frozenset[str] | None = None
        self.network = _Network(self.host.module)
        """The stacked hosts and seeds, in one module, for their modes."""
        for id, slot in first.slots.items():
            self.host.module.get_submodule(slot.place.path).register_forward_hook(partial(self._hook, id))

    def sync(self) -> None:
        """Take in seeds that have come, gone or moved on, and tensors that were put in the place of others."""
        wanted: dict[SeedKey, list[int]] = {}
        for row, model in enumerate(self.models):
            for id, slot in model.slots.items():
                stage = slot.state.stage
                if stage in OCCUPIED and stage is not Stage.GERMINATED:
                    role = Role.ALONE if stage is Stage.TRAINING and self.isolation == "shadow" else Role.LEARNS
                    wanted.setdefault(SeedKey(id, slot.state.blueprint, role), []).append(row)
                    if slot.gating is not None:
                        role = role if stage in BLENDED or role is Role.ALONE else Role.IDLE
                        wanted.setdefault(SeedKey(id, "", role), []).append(row)
        for rows in (self.rows, self.meters, *self.slot_meters.values()):
            rows.adopt()
        before, self.seeds = self.seeds, {}
        for key, hosts in wanted.items():
            modules = [self._module_of(row, key) for row in hosts]
            known = before.get(key)
            if known is not None and known.rows.holds(modules):
                known.rows.adopt()
                known.hosts, known.row_of = hosts, {host: row for row, host in enumerate(hosts)}
                self.seeds[key] = known
            else:
                self.seeds[key] = self._stack(key, modules, hosts)

    def release(self) -> None:
        """Give every model tensors of its own again."""
        for rows in (self.rows, self.meters, *self.slot_meters.values(), *(seeds.rows for seeds in self.seeds.values())):
            rows.release()

    def figures(self) -> Tensor:
        """What `Growable.figures` gives for each model, a row each. Waits for no device."""
        parts = [self.meters.fixed["sums"]]
        for id, meters in self.slot_meters.items():
            finite = torch.ones(len(self.models), device=self.device)
            for key, seeds in self.seeds.items():
                if key.slot == id:
                    # A seed and its gate are finite together.
                    hosts = torch.tensor(seeds.hosts, device=self.device)
                    finite[hosts] = finite[hosts] * seeds.rows.flat.isfinite().all(1)
            for row, model in enumerate(self.models):
                if model.slots[id].state.stage is Stage.GERMINATED:
                    finite[row] = model.slots[id].figures()[-1]
            parts += [meters.fixed["sums"], finite[:, None]]
        figures = torch.cat(parts, 1)
        assert figures.shape[1] == self.meters.fixed["sums"].shape[1] + FIGURES * len(self.slot_meters)
        return figures

    # Views: which rows run, in which form

    def training(self, start: int, end: int, streams: Streams | None = None) -> View:
        """The models in a range as they train."""
        forms = [{id: part for id, slot in model.slots.items() if (part := _part(slot, slot.form))} for model in self.models[start:end]]
        view = View(self, list(range(start, end)), forms, streams)
        view.learn(start, end)
        return view

    def shadows(self, start: int, end: int, streams: Streams | None = None) -> View | None:
        """Those models in a range that have seeds in TRAINING, with these at their target alpha; only they learn. None if there are none."""
        hosts = [row for row in range(start, end) if self.models[row].at(Stage.TRAINING)]
        if self.isolation != "shadow" or not hosts:
            return None
        forms = []
        for row in hosts:
            slots = self.models[row].slots
            shown = {id: Form.TRIAL if slot.state.stage is Stage.TRAINING else slot.form for id, slot in slots.items()}
            forms.append({id: part for id, form in shown.items() if (part := _part(slots[id], form))})
        view = View(self, hosts, forms, streams)
        view.learn_alone(start, end)
        return view

    def showing(self, pairs: Sequence[tuple[int, Configuration]]) -> View:
        """Models with exactly some slots switched on, for a measurement; a model can be there several times. On copies of the tensors."""
        forms = []
        for row, on in pairs:
            slots = self.models[row].slots
            shown = {id: Form.TRIAL if slots[id].state.stage is Stage.TRAINING else slots[id].form for id in on}
            forms.append({id: part for id, form in shown.items() if (part := _part(slots[id], form))})
        view = View(self, [row for row, _ in pairs], forms, None)
        view.copy()
        return view

    def note_frozen(self) -> None:
        """Tell the models which batch norms their hosts keep in eval mode, now that the network is in train mode."""
        norms = {path: module for path, module in self.host.module.named_modules() if isinstance(module, Norm)}
        frozen = frozenset(path for path, norm in norms.items() if not norm.training)
        if frozen != self._frozen:
            self._frozen = frozen
            for model in self.models:
                model.note_frozen(frozen)

    def learning_norms(self) -> list[Norm]:
        """The stacked batch norms that follow the training, as `Growable.learning_norms` says of each model."""
        learning = set(self.models[0].learning_norms())
        frozen = {path for path, module in self.models[0].host.named_modules() if isinstance(module, Norm) and module not in learning}
        kept = {self.host.module.get_submodule(path) for path in frozen}
        return [norm for norm in tracked_norms(self.network) if norm not in kept]

    # Inside

    def _hook(self, id: str, module: nn.Module, args: Any, output: Any) -> Any:
        assert self._view is not None
        view = self._view.slots.get(id)
        if view is None:
            return None
        if isinstance(output, Tensor):
            return self._view.blend(view, output)
        items = (self._view.blend(view, output[0]), *output[1:])
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)

    def _module_of(self, row: int, key: SeedKey) -> nn.Module:
        slot = self.models[row].slots[key.slot]
        module = slot.seed if key.blueprint else slot.gating
        assert module is not None
        return module

    def _stack(self, key: SeedKey, modules: list[nn.Module], hosts: list[int]) -> Seeds:
        name = (key.slot, key.blueprint)
        if name not in self._modules:
            self._modules[name] = StackedModule(modules[0])
            self.network.parts.append(self._modules[name].module)
        checked = self._check_seed(key, modules[0])
        rows = Rows(modules, [self.optimizers[host] for host in hosts], checked.unused)
        return Seeds(self._modules[name], rows, hosts, {host: row for row, host in enumerate(hosts)})

    def _check_seed(self, key: SeedKey, module: nn.Module) -> Checked:
        known = f"{key.slot}/{key.blueprint}"
        if known not in self._seed_checks:
            slot = self.models[0].slots[key.slot]
            shape = slot.place.example_shape[1:]
            features = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).to(slot.alpha)
            try:
                self._seed_checks[known] = check_stackable(module, features)
            except Unstackable as error:
                raise UnstackableSeed(key.slot, key.blueprint, str(error)) from error
        return self._seed_checks[known]


class View:
    """Some models, or copies of them, in certain forms, ready to run. `slots` says what happens at each slot that has a seed here."""

    def __init__(self, stack: StackedGrowables, hosts: list[int], forms: list[dict[str, Part]], streams: Streams | None) -> None:
        self.stack, self.hosts, self.forms, self.streams = stack, hosts, forms, streams
        self.learning: list[Learning] = []
        self.slots: dict[str, _SlotView] = {}
        self.values: dict[str, Tensor] = {}
        self._copied: list[tuple[Rows, Tensor, dict[str, Tensor]]] = []

    def __len__(self) -> int:
        return len(self.hosts)

    def run(self, x: Tensor) -> Any:
        """The models on a batch, (samples * models, ...), samples first."""
        return self.bound()(x)

    def bound(self) -> nn.Module:
        """The stacked network, with this view's tensors in it until another view is run."""
        self.stack._view = self
        self.stack.host.bind(self.values, len(self.hosts), self.streams, self.hosts)
        return self.stack.network

    # What learns, and what is a copy

    def learn(self, start: int, end: int) -> None:
        """A range of the models, whose tensors are the storage itself; their seeds learn with them."""
        device = self.stack.device
        self.values = self.stack.rows.values(start, end)
        self.learning.append(Learning(self.stack.rows, start, end, self.values, torch.arange(end - start, device=device)))
        self._arrange(self._leaves(Role.LEARNS, start, end))

    def learn_alone(self, start: int, end: int) -> None:
        """Models of which only the seeds in TRAINING learn; everything else is a copy."""
        self.values = self._copies(self.stack.rows, self.hosts)
        self._arrange(self._leaves(Role.ALONE, start, end))

    def copy(self) -> None:
        """Copies of everything: nothing that is computed here leaves a trace."""
        self.values = self._copies(self.stack.rows, self.hosts)
        self._arrange({})

    def refresh(self) -> None:
        """Copy everything that is a copy again."""
        for rows, which, values in self._copied:
            values.update(rows.copies(which))

    def _copies(self, rows: Rows, which: list[int]) -> dict[str, Tensor]:
        chosen = torch.tensor(which, device=self.stack.device)
        values = rows.copies(chosen)
        self._copied.append((rows, chosen, values))
        return values

    def _leaves(self, role: Role, start: int, end: int) -> dict[SeedKey, dict[str, Tensor]]:
        leaves = {}
        for key, seeds in self.stack.seeds.items():
            first, last = seeds.between(start, end)
            if key.role is role and first < last:
                values = seeds.rows.values(first, last)
                hosts = torch.tensor([host - start for host in seeds.hosts[first:last]], device=self.stack.device)
                self.learning.append(Learning(seeds.rows, first, last, values, hosts, key.slot, gate=not key.blueprint))
                leaves[key] = values
        return leaves

    def _arrange(self, leaves: dict[SeedKey, dict[str, Tensor]]) -> None:
        """Sort out which rows of the batch go through which seeds, and what is done with their outputs."""
        device = self.stack.device
        for id in self.stack.slot_meters:
            here = {place: part for place, parts in enumerate(self.forms) if (part := parts.get(id)) is not None}
            if not here:
                continue
            view, order = _SlotView(), []
            for key, seeds in self.stack.seeds.items():
                if key.slot != id or not key.blueprint:
                    continue
                places = [place for place in here if self.hosts[place] in seeds.row_of]
                if not places:
                    continue
                cut = [here[place].kind is Kind.ISOLATED and self.stack.isolation != "none" for place in places]
                view.seeds.append(
                    _Bound(
                        module=seeds.module,
                        values=self._values_of(key, seeds, places, leaves),
                        places=[self.hosts[place] for place in places],
                        positions=torch.tensor(places, device=device),
                        isolated=torch.tensor(cut, device=device) if any(cut) else None,
                    )
                )
                order += places
            among = {place: at for at, place in enumerate(order)}
            positions: list[int] = []
            for kind in Kind:
                places = sorted(place for place in order if here[place].kind is kind)
                if places:
                    view.groups.append(self._group(id, kind, places, [here[place].alpha for place in places], among, leaves))
                    positions += places
            view.positions = torch.tensor(positions, device=device)
            self.slots[id] = view

    def _group(
        self, id: str, kind: Kind, places: list[int], alphas: list[float], among: dict[int, int], leaves: dict[SeedKey, dict[str, Tensor]]
    ) -> _Group:
        device, gate = self.stack.device, None
        if kind is Kind.GATED:
            gate = self._gates(id, places, leaves)
        dtype = next(iter(self.stack.models[0].slots.values())).alpha.dtype
        return _Group(kind, torch.tensor([among[place] for place in places], device=device), torch.tensor(alphas, device=device, dtype=dtype), gate)

    def _gates(self, id: str, places: list[int], leaves: dict[SeedKey, dict[str, Tensor]]) -> _Gates:
        parts, order = [], []
        module = None
        for role in Role:
            key = SeedKey(id, "", role)
            seeds = self.stack.seeds.get(key)
            mine = [place for place in places if seeds is not None and self.hosts[place] in seeds.row_of]
            if seeds is not None and mine:
                parts.append(self._values_of(key, seeds, mine, leaves))
                order += mine
                module = seeds.module
        assert module is not None
        back = torch.tensor([order.index(place) for place in places], device=self.stack.device)
        return _Gates(module, parts, back, [self.hosts[place] for place in places])

    def _values_of(self, key: SeedKey, seeds: Seeds, places: list[int], leaves: dict[SeedKey, dict[str, Tensor]]) -> dict[str, Tensor]:
        if key in leaves:
            return leaves[key]
        return self._copies(seeds.rows, [seeds.row_of[self.hosts[place]] for place in places])

    # The forward pass at a slot

    def blend(self, view: _SlotView, features: Tensor) -> Tensor:
        """The features that the hosts see in place of theirs, (S * N, ...)."""
        assert view.positions is not None
        h = features.unflatten(0, (-1, len(self.hosts)))
        taken, outputs = [], []
        for bound in view.seeds:
            x = h.index_select(1, bound.positions)
            into = x if bound.isolated is None else torch.where(bound.isolated.view(-1, *[1] * (x.dim() - 2)), x.detach(), x)
            bound.module.bind(bound.values, x.shape[1], self.streams, bound.places)
            outputs.append(bound.module.module(into.flatten(0, 1)).view(x.shape))
            taken.append(x)
        x, s = (each[0] if len(each) == 1 else torch.cat(each, 1) for each in (taken, outputs))
        results = [self._blended(group, x.index_select(1, group.among), s.index_select(1, group.among)) for group in view.groups]
        result = results[0] if len(results) == 1 else torch.cat(results, 1)
        return h.index_copy(1, view.positions, result.to(h.dtype)).flatten(0, 1)

    def _blended(self, group: _Group, h: Tensor, s: Tensor) -> Tensor:
        if group.kind is Kind.ISOLATED:
            return isolated(h, s, pull=self.stack.isolation == "boost", hosts=True)
        if group.kind is Kind.FULL:
            return s
        alpha: Tensor = group.alpha.view(-1, *[1] * (h.dim() - 2))
        if group.gate is not None:
            module = group.gate.module
            module.bind(group.gate.values(), h.shape[1], self.streams, group.gate.places)
            alpha = alpha * module.module(h.flatten(0, 1)).unflatten(0, h.shape[:2])
        return combine(Style.LINEAR_MULTIPLY if group.kind is Kind.MULTIPLY else Style.LINEAR_ADD, h, s, alpha)


class _Network(nn.Module):
    """The stacked hosts, and beside them the seeds that run at their slots."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host
        self.parts = nn.ModuleList()

    def forward(self, x: Tensor) -> Any:
        return self.host(x)


def _part(slot: Slot, form: Form) -> Part | None:
    """What a slot in that form does to its rows; None if nothing."""
    if form is Form.ABSENT:
        return None
    if form is Form.ISOLATED:
        return Part(Kind.ISOLATED)
    if form is Form.FOSSIL:
        return Part(Kind.FULL)
    alpha = slot.state.alpha_target if form is Form.TRIAL else slot.state.alpha
    if slot.gating is not None:
        return Part(Kind.GATED, alpha)
    if form is Form.TRIAL and alpha == 1.0 and slot.state.style in ADDITIVE:
        return Part(Kind.FULL)
    return Part(Kind.MULTIPLY if slot.state.style is Style.LINEAR_MULTIPLY else Kind.ADD, alpha)


def bare_host(model: Growable) -> nn.Module:
    """A copy of the host without its slots."""
    host, handles = copy.deepcopy((model.host, model._handles))
    for handle in handles:
        handle.remove()
    return host
