"""Storage for many modules of one structure: a row each. The modules' own tensors are views of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn, optim

from esper.kasmina.stacking.errors import Unstackable

STATES: dict[type[optim.Optimizer], tuple[str, ...]] = {optim.SGD: ("momentum_buffer",), optim.AdamW: ("exp_avg", "exp_avg_sq")}
"""What each optimiser keeps of a parameter, besides its count of steps."""


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, for which nobody waits: from memory that may be written to again at once."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


class Rows:
    """Modules of one structure with their tensors in one storage, together with what their optimisers keep.

    Learning parameters are one vector, tensor after tensor, each with all its rows: what a layer computes with is in one piece, and an
    optimiser steps all of them at once, together with those of other structures if they share a storage. A module sees its row as its
    own tensors; whoever changes those in place changes the storage. `adopt` takes in whatever was put in their place. A row without a
    module holds the values of `like`, as far as they are finite: what runs through it means nothing, and is finite.

    like: a module of the structure. optimizer: of the kind that will step them; None if nothing will.
    unused: parameters that never get a gradient, by name. fixed: where to keep what does not learn, (rows, *shape) by name; None for
    storage of its own.
    """

    def __init__(
        self,
        like: nn.Module,
        rows: int,
        optimizer: optim.Optimizer | None = None,
        unused: Collection[str] = (),
        fixed: Mapping[str, Tensor] | None = None,
    ) -> None:
        named = dict(like.named_parameters())
        self.names = [name for name, p in named.items() if p.requires_grad and name not in unused]
        """Of the parameters that learn."""
        self.parameters = len(named)
        """Of one module, those that do not learn too."""
        self.shapes = [named[name].shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        if len({(p.dtype, p.device) for p in named.values()}) > 1:
            raise Unstackable("its parameters are of several types, or on several devices")
        self.kind: type[optim.Optimizer] = optim.Optimizer if optimizer is None else type(optimizer)
        self.settings = {} if optimizer is None else optimizer.defaults
        keeps = optimizer is not None and (not isinstance(optimizer, optim.SGD) or optimizer.defaults["momentum"] > 0)
        self.kept = STATES[self.kind] if keeps else ()
        self.modules: list[nn.Module | None] = [None] * rows
        self.optimizers: list[optim.Optimizer | None] = [None] * rows
        self._tensors: list[dict[str, Tensor]] = [{} for _ in range(rows)]
        self._empty = [finite(named[name].detach()).clone() for name in self.names]
        values = [each.expand(rows, *each.shape).reshape(-1) for each in self._empty]
        flat = torch.cat(values) if values else next(iter(named.values()), torch.zeros(0)).new_zeros(0)
        self.place(flat, {key: torch.zeros_like(flat) for key in self.kept}, torch.zeros(rows, device=flat.device))
        others = {**{name: p for name, p in named.items() if name not in self.names}, **dict(like.named_buffers())}
        self._empty_fixed = {name: finite(each.detach()).clone() for name, each in others.items()}
        self.fixed = dict(fixed) if fixed is not None else {name: each.new_empty(rows, *each.shape) for name, each in others.items()}
        """Everything else, (rows, *shape) by name: buffers, and parameters that do not learn."""
        for name, stacked in self.fixed.items():
            stacked.copy_(self._empty_fixed[name])

    def __len__(self) -> int:
        return len(self.modules)

    @torch.no_grad()
    def place(self, flat: Tensor, states: dict[str, Tensor], steps: Tensor) -> None:
        """Be in this storage from here on, which holds the values already: modules and optimisers get new views."""
        self.flat, self.states = flat, states
        """(rows * parameters that learn,) each: their values, and the optimisers' figures by name."""
        self.steps = steps
        """(rows,): how often each was stepped; for optimisers that count."""
        self.learned = self._shaped(flat)
        """The values, (rows, *shape) by name."""
        self._kept = {key: self._shaped(state) for key, state in states.items()}
        for row, _ in self.occupied():
            self._view_learned(row)

    def occupied(self) -> Iterator[tuple[int, nn.Module]]:
        """The rows that hold a module, and the modules."""
        return ((row, module) for row, module in enumerate(self.modules) if module is not None)

    @torch.no_grad()
    def put(self, row: int, module: nn.Module, optimizer: optim.Optimizer | None = None) -> None:
        """Take a module into a row: its tensors, and what the optimiser keeps of them, are views of the storage from here on."""
        assert self.modules[row] is None, f"row {row} holds a module already"
        tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        learning = [tensors.get(name) for name in self.names]
        if [None if p is None else p.shape for p in learning] != self.shapes or set(tensors) != {*self.names, *self.fixed}:
            raise Unstackable("its parameters differ from those of others with the same structure")
        self.modules[row], self.optimizers[row], self._tensors[row] = module, optimizer, tensors
        if learning:
            self._write(row, self.learned, [tensors[name] for name in self.names])
        for key in self.kept:
            assert optimizer is not None
            found = [optimizer.state.get(tensors[name], {}).get(key) for name in self.names]
            if any(each is not None for each in found):
                pairs = zip(self.names, found, strict=True)
                self._write(row, self._kept[key], [torch.zeros_like(tensors[name]) if each is None else each for name, each in pairs])
            elif found:
                torch._foreach_zero_([each[row] for each in self._kept[key].values()])
        for name, stacked in self.fixed.items():
            stacked[row].copy_(tensors[name])
        self._view(row)

    @torch.no_grad()
    def take_out(self, row: int) -> None:
        """Let a module go, with tensors of its own."""
        optimizer = self.optimizers[row]
        for name, each in self._tensors[row].items():
            each.data = each.data.clone()
            if optimizer is not None and name in self.names:
                state = optimizer.state.get(each, {})
                state.update({key: state[key].clone() for key in self.kept if key in state})
        self.forget(row)

    @torch.no_grad()
    def forget(self, row: int) -> None:
        """Let a module go that nobody needs any more."""
        self.modules[row], self.optimizers[row], self._tensors[row] = None, None, {}
        if self.names:
            self._write(row, self.learned, self._empty)
            for kept in self._kept.values():
                torch._foreach_zero_([each[row] for each in kept.values()])
        for name, stacked in self.fixed.items():
            stacked[row].copy_(self._empty_fixed[name])

    def values(self) -> dict[str, Tensor]:
        """The storage as tensors by name, (rows, *shape). Those that learn are leaves with a gradient."""
        return {**{name: each.detach().requires_grad_() for name, each in self.learned.items()}, **self.fixed}

    def copies(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of the tensors of these rows, int64 (n,), any of them any number of times, by name: (n, *shape)."""
        return {name: each.index_select(0, rows) for name, each in (*self.learned.items(), *self.fixed.items())}

    def copy(self, rows: Tensor, into: Mapping[str, Tensor]) -> None:
        """Copy the tensors of these rows again, to where they were copied before: what was captured reads them there."""
        for name, each in (*self.learned.items(), *self.fixed.items()):
            torch.index_select(each, 0, rows, out=into[name])

    def _shaped(self, flat: Tensor) -> dict[str, Tensor]:
        """A vector as tensors by name, (rows, *shape)."""
        parts = flat.split([len(self) * size for size in self.sizes]) if self.names else ()
        return {name: part.view(len(self), *shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def _write(self, row: int, into: dict[str, Tensor], values: Sequence[Tensor]) -> None:
        """Set one row of each tensor, all in one go."""
        torch._foreach_copy_([each[row] for each in into.values()], list(values))

    @torch.no_grad()
    def adopt(self) -> None:
        """Take in tensors that somebody put in the place of views: after a rollback, or a state that was loaded."""
        steps = [size * self.flat.element_size() for size in self.sizes]
        # A tensor without elements is nowhere.
        learned = [(name, self.learned[name].data_ptr(), step) for name, step in zip(self.names, steps, strict=True) if step]
        begins = {name: [self._kept[key][name].data_ptr() for key in self.kept] for name in self.names}
        fixed = [(name, each.data_ptr(), each.stride(0) * each.element_size()) for name, each in self.fixed.items() if each.numel()]
        for row, _ in self.occupied():
            tensors, optimizer = self._tensors[row], self.optimizers[row]
            for name, begin, step in learned:
                p = tensors[name]
                if p.data_ptr() != begin + row * step or (self.kept and not self._keeps(optimizer, p, begins[name], row * step)):
                    return self._adopt_row(row)
            for name, begin, step in fixed:
                if tensors[name].data_ptr() != begin + row * step:
                    return self._adopt_row(row)
        return None

    def _keeps(self, optimizer: optim.Optimizer | None, p: Tensor, begins: list[int], offset: int) -> bool:
        """Whether what the optimiser keeps of a parameter is still a view of the storage."""
        assert optimizer is not None
        state = optimizer.state.get(p)
        if state is None:
            return False
        return all(key in state and state[key].data_ptr() == begin + offset for key, begin in zip(self.kept, begins, strict=True))

    def _adopt_row(self, row: int) -> None:
        module, optimizer = self.modules[row], self.optimizers[row]
        assert module is not None
        self.take_out(row)
        self.put(row, module, optimizer)
        self.adopt()

    def _view(self, row: int) -> None:
        self._view_learned(row)
        for name, stacked in self.fixed.items():
            self._tensors[row][name].data = stacked[row]

    def _view_learned(self, row: int) -> None:
        tensors, optimizer = self._tensors[row], self.optimizers[row]
        for name, values in self.learned.items():
            p = tensors[name]
            p.data = values[row]
            if self.kept:
                assert optimizer is not None
                state = optimizer.state[p]
                state.update({key: kept[name][row] for key, kept in self._kept.items()})
                if issubclass(self.kind, optim.AdamW):
                    state.setdefault("step", torch.zeros(()))

    # Counts of steps

    def begin_steps(self) -> None:
        """Read the optimisers' counts of steps, if they keep any."""
        if issubclass(self.kind, optim.AdamW) and self.names:
            counts = [0.0] * len(self)
            for row, _ in self.occupied():
                optimizer = self.optimizers[row]
                assert optimizer is not None
                counts[row] = float(optimizer.state[self._tensors[row][self.names[0]]]["step"])
            self.steps.copy_(sent(torch.tensor(counts), self.steps.device))

    def end_steps(self, taken: Mapping[int, int]) -> None:
        """Tell the optimisers how many steps each row has taken since `begin_steps`."""
        if issubclass(self.kind, optim.AdamW):
            for row, count in taken.items():
                optimizer = self.optimizers[row]
                assert optimizer is not None
                for name in self.names:
                    optimizer.state[self._tensors[row][name]]["step"] += count


def finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 in the place of whatever is not finite."""
    return tensor.nan_to_num(0.0, 0.0, 0.0) if tensor.is_floating_point() else tensor


def stacked(modules: Sequence[nn.Module]) -> Rows:
    """These modules, in this order, that nothing steps."""
    rows = Rows(modules[0], len(modules))
    for row, module in enumerate(modules):
        rows.put(row, module)
    return rows
