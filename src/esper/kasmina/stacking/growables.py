"""Growing models of one architecture as one: hosts in the batch, and at each slot the seeds of one blueprint together.

However differently the hosts grow, they stay together: at a slot, the rows of hosts that have a seed of the same blueprint are taken out
of the batch, run through these seeds at once, and put back, each in the form that its own slot has.

Everything is a row of some storage, and which rows take part is written in tensors, so that a captured step serves for as long as the
storage has room. Room that is not used belongs to a host that does not exist, the last row: whatever is computed there reaches no other.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn, optim

from esper.kasmina.blueprints import Seed, names
from esper.kasmina.counterfactuals import Configuration
from esper.kasmina.gradients import SUMS
from esper.kasmina.growable import Growable
from esper.kasmina.norms import Norm, tracked_norms
from esper.kasmina.slot import FIGURES, Form
from esper.kasmina.stacking.beside import Beside
from esper.kasmina.stacking.check import Checked, check_stackable
from esper.kasmina.stacking.errors import Unstackable, UnstackableSeed
from esper.kasmina.stacking.needs import Part, Role, SeedKey, Seeds, needs_of, parts_of
from esper.kasmina.stacking.room import AHEAD_SEEDS, Room
from esper.kasmina.stacking.rows import Rows, sent
from esper.kasmina.stacking.stacked import StackedModule
from esper.kasmina.stacking.storage import Storage
from esper.kasmina.stacking.views import View
from esper.leyline.actions import Style
from esper.leyline.stages import BLENDED, OCCUPIED, Stage

Places = dict[str, tuple[int, dict[int, int]]]
"""By the name of a key: rows that there are for such seeds, and the row of each host's."""


class StackedGrowables:
    """Growing models of one architecture, a row each, that run as one.

    The storage is here; each model's tensors are views of it. `sync` takes in what has happened to the models since the last time.

    like: a model of the architecture. checked: what `check_stackable` found for it. rows: for models; with spare room the last one stays
    empty. room: for seeds and views. ahead: whether to make room for every blueprint at once, before any seed is there.
    seeds_checked: what was found out about seeds so far, by kind; what is found out here joins it.
    """

    def __init__(
        self,
        like: Growable,
        optimizer: optim.Optimizer,
        checked: Checked,
        rows: int,
        room: Room,
        *,
        ahead: bool = False,
        seeds_checked: dict[Hashable, Checked] | None = None,
    ) -> None:
        self.room, self.ahead = room, ahead
        self.device = like.host_meter.sums.device
        self.slots = {id: slot.place for id, slot in like.slots.items()}
        first = next(iter(like.slots.values()))
        self.isolation, self.dtype = first.isolation, first.alpha.dtype
        self.host = StackedModule(bare_host(like), [place.path for place in self.slots.values()], checked.batchless)
        self.rows = Rows(bare_host(like), rows, optimizer, checked.unused)
        self.sums = torch.zeros(1 + len(self.slots), rows, SUMS, device=self.device)
        """What the meters hold: of the hosts, then of their seeds slot by slot."""
        self.meters, *meters = [Rows(like.host_meter, rows, fixed={"sums": each}) for each in self.sums]
        self.slot_meters = dict(zip(self.slots, meters, strict=True))
        self.models: list[Growable | None] = [None] * rows
        self.seeds: dict[SeedKey, Seeds] = {}
        self.storage: Storage | None = None
        """Of all that learns, once it is known what does."""
        self.before: Places = {}
        """Where seeds of the models that join now were when they were saved; `sync` puts them there."""
        self._room_made = False
        self.beside = Beside(self.device)
        self._seeds_checked = {} if seeds_checked is None else seeds_checked
        self._modules: dict[tuple[str, str], StackedModule] = {}
        self._view: View | None = None
        self._frozen: frozenset[str] = frozenset()
        self.network = _Network(self.host.module)
        """The stacked hosts and seeds, in one module, for their modes."""
        for id, place in self.slots.items():
            self.host.module.get_submodule(place.path).register_forward_hook(partial(self._hook, id))

    @property
    def idle(self) -> int:
        """The row of the host that does not exist."""
        return len(self.rows) - 1

    # Who is here

    def join(self, row: int, model: Growable, optimizer: optim.Optimizer) -> None:
        """Take a model into a row."""
        self.rows.put(row, model.host, optimizer)
        for rows, meter in ((self.meters, model.host_meter), *((rows, model.slots[id].meter) for id, rows in self.slot_meters.items())):
            meter.settle()
            rows.put(row, meter)
        model.note_frozen(self._frozen)
        self.models[row] = model

    def leave(self, row: int, *, needed: bool = True) -> None:
        """Let a model go; with tensors of its own if somebody still needs it."""
        for seeds in self.seeds.values():
            if row in seeds.row_of:
                (seeds.rows.take_out if needed else seeds.rows.forget)(seeds.row_of.pop(row))
        for rows in (self.rows, self.meters, *self.slot_meters.values()):
            (rows.take_out if needed else rows.forget)(row)
        self.models[row] = None

    def sync(self) -> None:
        """Take in seeds that have come, gone or moved on, and tensors that were put in the place of others."""
        wanted = {**{key: {} for key in self.seeds}, **self._present()}
        if not self._room_made and any(model is not None for model in self.models):
            self._room_made = True
            self._make_room()
        before, self.before = self.before, {}
        for key, modules in wanted.items():
            if key.name in before:
                self._put_back(key, modules, *before[key.name])
        for key, modules in wanted.items():
            self._drop(key, modules)
        # After that: an optimiser has forgotten a seed that is gone, and is not to be reminded of it.
        for rows in (self.rows, self.meters, *self.slot_meters.values(), *(seeds.rows for seeds in self.seeds.values())):
            rows.adopt()
        for key, modules in wanted.items():
            self._take_in(key, modules)
        # In an order that does not depend on which came first. What learns is before what learns in a pass of its own, if that is run.
        slots = list(self.slots)
        order = sorted(self.seeds, key=lambda key: (key.role.value, slots.index(key.slot), key.blueprint))
        self.seeds = {key: self.seeds[key] for key in order}
        parts = [self.rows, *(seeds.rows for seeds in self.seeds.values())]
        if self.storage is None or not self.storage.holds(parts):
            self.storage = Storage(parts)

    def places(self) -> Places:
        """Where the seeds are that are still what they were at the last `sync`: plain data, by the keys' names."""
        found: Places = {}
        present = self._present()
        for key, seeds in self.seeds.items():
            modules = present.get(key, {})
            here = {host: row for host, row in seeds.row_of.items() if modules.get(host) is seeds.rows.modules[row]}
            if here:
                found[key.name] = (len(seeds.rows), here)
        return found

    def _present(self) -> dict[SeedKey, dict[int, nn.Module]]:
        """All seeds and gates of the models, by host."""
        present: dict[SeedKey, dict[int, nn.Module]] = {}
        for row, model in enumerate(self.models):
            if model is None:
                continue
            for id, slot in model.slots.items():
                stage = slot.state.stage
                if stage in OCCUPIED and stage is not Stage.GERMINATED:
                    assert slot.seed is not None
                    role = Role.ALONE if stage is Stage.TRAINING and self.isolation == "shadow" else Role.LEARNS
                    present.setdefault(SeedKey(id, slot.state.blueprint, role), {})[row] = slot.seed
                    if slot.gating is not None:
                        role = role if stage in BLENDED or role is Role.ALONE else Role.IDLE
                        present.setdefault(SeedKey(id, "", role), {})[row] = slot.gating
        return present

    def _make_room(self) -> None:
        """Have storage for all that there was room for before, and ahead for a share of the hosts for each blueprint and for gates."""
        share = -(-len(self.rows) // AHEAD_SEEDS) + 1 if self.ahead else 0
        like = next(model for model in self.models if model is not None)
        for id, slot in like.slots.items():
            known = names(slot.place.shape.topology)
            for blueprint, role in product((*known, ""), Role):
                key = SeedKey(id, blueprint, role)
                likely = role is Role.LEARNS or (role is Role.IDLE and not blueprint)
                size = self.room.rows(f"seeds/{key.name}", share if likely else 0)
                if size:
                    seed, gating = slot.build(blueprint or known[0], Style.GATED, stream=0)
                    assert gating is not None
                    try:
                        self.seeds[key] = self._stack(key, seed if blueprint else gating, size)
                    except UnstackableSeed:
                        continue  # told when it grows

    def _put_back(self, key: SeedKey, modules: dict[int, nn.Module], size: int, rows: Mapping[int, int]) -> None:
        """Put seeds into the rows where they were, in storage of that size."""
        here = {host: row for host, row in rows.items() if host in modules}
        if here and key not in self.seeds:
            self.seeds[key] = self._stack(key, modules[next(iter(here))], size)
        for host, row in here.items():
            self.seeds[key].rows.put(row, modules[host], self.rows.optimizers[host])
            self.seeds[key].row_of[host] = row

    def _drop(self, key: SeedKey, modules: dict[int, nn.Module]) -> None:
        """Let seeds go that are no longer here, or are something else by now."""
        seeds = self.seeds.get(key)
        for host, row in list(seeds.row_of.items()) if seeds is not None else ():
            assert seeds is not None
            if modules.get(host) is not seeds.rows.modules[row]:
                seeds.rows.take_out(row)
                del seeds.row_of[host]

    def _take_in(self, key: SeedKey, modules: dict[int, nn.Module]) -> None:
        """Make room for seeds, and take in those that are new."""
        there = self.seeds.get(key)
        # One to spare, for the host that does not exist.
        size = self.room.rows(f"seeds/{key.name}", len(modules) + self.room.spare)
        if there is None or len(there.rows) != size:
            if there is not None:
                for row in there.row_of.values():
                    there.rows.take_out(row)
            if not size:
                self.seeds.pop(key, None)
                return
            there = self.seeds[key] = self._stack(key, next(iter(modules.values())), size)
        free = (row for row, module in enumerate(there.rows.modules) if module is None)
        for host, module in modules.items():
            if host not in there.row_of:
                row = there.row_of[host] = next(free)
                there.rows.put(row, module, self.rows.optimizers[host])

    def figures(self) -> Tensor:
        """What `Growable.figures` gives for each model, a row each. Waits for no device."""
        assert self.storage is not None
        slots, first_rows = list(self.slots), dict(zip(map(id, self.storage.parts), self.storage.segments.first_row, strict=False))
        found = [
            (slots.index(key.slot), host, first_rows[id(seeds.rows)] + row)
            for key, seeds in self.seeds.items()
            for host, row in seeds.row_of.items()
        ]
        finite = torch.ones(len(self.slots), len(self.rows), 1, device=self.device)
        if found:
            # A seed and its gate are finite together.
            at, hosts, rows = sent(torch.tensor(found), self.device).unbind(1)
            broken = torch.zeros_like(finite).index_put_((at, hosts), (~self.storage.finite()[rows, None]).float(), accumulate=True)
            finite = (broken == 0).float()
        for row, model in enumerate(self.models):
            for number, slot in enumerate(model.slots.values() if model is not None else ()):
                if slot.state.stage is Stage.GERMINATED:
                    finite[number, row] = slot.figures()[-1]
        figures = torch.cat([self.sums[0], *(each for pair in zip(self.sums[1:], finite, strict=True) for each in pair)], 1)
        assert figures.shape[1] == SUMS + FIGURES * len(self.slots)
        return figures

    # Views: which rows run, in which form

    def training(self, before: View | None) -> View:
        """All models as they train."""
        forms = [{} if model is None else parts_of(model, {id: slot.form for id, slot in model.slots.items()}) for model in self.models]
        return self._fitted("training", before, list(range(len(self.rows))), forms, Role.LEARNS)

    def shadows(self, before: View | None) -> View | None:
        """Those models that have seeds in TRAINING, with these at their target alpha; only they learn. None if there are none."""
        if self.isolation != "shadow":
            return None
        hosts, forms = [], []
        for row, model in enumerate(self.models):
            if model is not None and model.at(Stage.TRAINING):
                shown = {id: Form.TRIAL if slot.state.stage is Stage.TRAINING else slot.form for id, slot in model.slots.items()}
                hosts.append(row)
                forms.append(parts_of(model, shown))
        return self._fitted("shadows", before, hosts, forms, Role.ALONE) if hosts else None

    def showing(self, name: str, pairs: Sequence[tuple[int, Configuration]], before: View | None) -> View:
        """Models with exactly some slots switched on, for a measurement; a model can be there several times. On copies of the tensors.

        name: by which room for them is remembered.
        """
        forms = []
        for row, on in pairs:
            model = self.models[row]
            assert model is not None
            slots = model.slots
            forms.append(parts_of(model, {id: Form.TRIAL if slots[id].state.stage is Stage.TRAINING else slots[id].form for id in on}))
        return self._fitted(name, before, [row for row, _ in pairs], forms, None)

    def _fitted(self, name: str, before: View | None, hosts: list[int], forms: list[dict[str, Part]], learns: Role | None) -> View:
        """The view of before if it has room for what runs now, else a new one; filled in either case."""
        size = needs_of(self, hosts, forms, learns).fitted(self.room.within(name), self)
        view = before if before is not None and before.fits(size) else View(self, size, learns)
        view.fill(hosts, forms)
        return view

    # Batch norms

    def note_frozen(self) -> None:
        """Tell the models which batch norms their hosts keep in eval mode, now that the network is in train mode."""
        norms = {path: module for path, module in self.host.module.named_modules() if isinstance(module, Norm)}
        frozen = frozenset(path for path, norm in norms.items() if not norm.training)
        if frozen != self._frozen:
            self._frozen = frozen
            for model in self.models:
                if model is not None:
                    model.note_frozen(frozen)

    def learning_norms(self) -> list[Norm]:
        """The stacked batch norms that follow the training, as `Growable.learning_norms` says of each model."""
        frozen = {self.host.module.get_submodule(path) for path in self._frozen}
        return [norm for norm in tracked_norms(self.network) if norm not in frozen]

    # Inside

    def _hook(self, id: str, module: nn.Module, args: Any, output: Any) -> Any:
        assert self._view is not None
        at = self._view.slots.get(id)
        if at is None:
            return None
        if isinstance(output, Tensor):
            return self._view.blend(at, output)
        items = (self._view.blend(at, output[0]), *output[1:])
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)

    def _stack(self, key: SeedKey, like: nn.Module, rows: int) -> Seeds:
        name = (key.slot, key.blueprint)
        checked = self._check_seed(key, like)
        if name not in self._modules:
            self._modules[name] = _stacked(like, checked)
            self.network.parts.append(self._modules[name].module)
            self.network.parts[-1].train(self.network.training)
        optimizer = next(each for each in self.rows.optimizers if each is not None)
        stacked = Rows(like, rows, optimizer, checked.unused)
        if stacked.parameters and stacked.flat.dtype is not self.rows.flat.dtype:
            raise UnstackableSeed(key.slot, key.blueprint, "its parameters are of another type than its host's")
        return Seeds(self._modules[name], stacked, checkpoint=isinstance(like, Seed) and like.checkpoint)

    def _check_seed(self, key: SeedKey, module: nn.Module) -> Checked:
        place = self.slots[key.slot]
        kind = (key.blueprint, place.shape, place.example_shape[1:], self.dtype, self.device)
        if kind not in self._seeds_checked:
            features = torch.randn(6, *place.example_shape[1:], generator=torch.Generator().manual_seed(0))
            try:
                self._seeds_checked[kind] = check_stackable(module, features.to(device=self.device, dtype=self.dtype))
            except Unstackable as error:
                raise UnstackableSeed(key.slot, key.blueprint, str(error)) from error
        return self._seeds_checked[kind]


def _stacked(like: nn.Module, checked: Checked) -> StackedModule:
    """What runs for many gates, or for the branches of many seeds: x + gamma * branch(x) is put together for all blueprints at once."""
    if not isinstance(like, Seed):
        return StackedModule(like, batchless=checked.batchless)
    return StackedModule(like.branch, batchless=[path.removeprefix("branch.") for path in checked.batchless])


class _Network(nn.Module):
    """The stacked hosts, and beside them the seeds that run at their slots."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host
        self.parts = nn.ModuleList()

    def forward(self, x: Tensor) -> Any:
        return self.host(x)


def bare_host(model: Growable) -> nn.Module:
    """A copy of the host without its slots."""
    host, handles = copy.deepcopy((model.host, model._handles))
    for handle in handles:
        handle.remove()
    return host
