"""Storage for many modules of one structure: a row each. The modules' own tensors are views of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn, optim

from esper.kasmina.stacking.errors import Unstackable

STATES: dict[type[optim.Optimizer], tuple[str, ...]] = {optim.SGD: ("momentum_buffer",), optim.AdamW: ("exp_avg", "exp_avg_sq")}
"""What each optimiser keeps of a parameter, besides its count of steps."""


class Rows:
    """Modules of one structure with their tensors in one storage, together with what their optimisers keep.

    Learning parameters are one matrix, a row for each module: an optimiser steps all of them at once, and some rows can be taken out in
    one go. A module sees its row as its own tensors; whoever changes those in place changes the storage. `adopt` takes in whatever was
    put in their place. A row without a module holds the values of `like`, as far as they are finite: what runs through it means nothing,
    and is finite.

    like: a module of the structure. optimizer: of the kind that will step them; None if nothing will.
    unused: parameters that never get a gradient, by name.
    """

    def __init__(self, like: nn.Module, rows: int, optimizer: optim.Optimizer | None = None, unused: Collection[str] = ()) -> None:
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
        values = [named[name].detach().reshape(-1) for name in self.names]
        self._empty = finite(torch.cat(values)) if values else torch.zeros(0)
        self.flat = self._empty.repeat(rows, 1)
        """(rows, parameters that learn)."""
        self.states = {key: torch.zeros_like(self.flat) for key in self.kept}
        """For each of the optimisers' figures, the same shape."""
        self.steps = torch.zeros(rows, 1, device=self._empty.device, dtype=torch.float64)
        """Of each row, how often it was stepped; for optimisers that count."""
        others = {**{name: p for name, p in named.items() if name not in self.names}, **dict(like.named_buffers())}
        self._empty_fixed = {name: finite(each.detach()).clone() for name, each in others.items()}
        self.fixed = {name: each.expand(rows, *each.shape).clone() for name, each in self._empty_fixed.items()}
        """Everything else, (rows, *shape) by name: buffers, and parameters that do not learn."""
        self.modules: list[nn.Module | None] = [None] * rows
        self.optimizers: list[optim.Optimizer | None] = [None] * rows
        self._tensors: list[dict[str, Tensor]] = [{} for _ in range(rows)]

    def __len__(self) -> int:
        return len(self.modules)

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
            torch.cat([tensors[name].reshape(-1) for name in self.names], out=self.flat[row])
        for key in self.kept:
            assert optimizer is not None
            found = [optimizer.state.get(tensors[name], {}).get(key) for name in self.names]
            if any(each is not None for each in found):
                pairs = zip(self.names, found, strict=True)
                parts = [(torch.zeros_like(tensors[name]) if each is None else each).reshape(-1) for name, each in pairs]
                torch.cat(parts, out=self.states[key][row])
            else:
                self.states[key][row].zero_()
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
        self.flat[row].copy_(self._empty)
        for state in self.states.values():
            state[row].zero_()
        for name, stacked in self.fixed.items():
            stacked[row].copy_(self._empty_fixed[name])

    def values(self) -> dict[str, Tensor]:
        """The storage as tensors by name, (rows, *shape). Those that learn are leaves with a gradient."""
        return {**{name: each.detach().requires_grad_() for name, each in self._shaped(self.flat).items()}, **self.fixed}

    def copies(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of the tensors of these rows, int64 (n,), any of them any number of times, by name: (n, *shape)."""
        return {**self._shaped(self.flat.index_select(0, rows)), **{name: each.index_select(0, rows) for name, each in self.fixed.items()}}

    def _shaped(self, matrix: Tensor) -> dict[str, Tensor]:
        """Rows of the matrix as tensors by name."""
        parts = zip(self.names, matrix.split(self.sizes, 1) if self.names else (), self.shapes, strict=True)
        return {name: part.view(len(matrix), *shape) for name, part, shape in parts}

    @torch.no_grad()
    def adopt(self) -> None:
        """Take in tensors that somebody put in the place of views: after a rollback, or a state that was loaded."""
        width, size = self.flat.shape[1], self.flat.element_size()
        begins = [self.states[key].data_ptr() for key in self.kept]
        first = self.flat.data_ptr()
        # A tensor without elements is nowhere.
        fixed = [(name, each.data_ptr(), each.stride(0) * each.element_size()) for name, each in self.fixed.items() if each.numel()]
        for row, _ in self.occupied():
            tensors, optimizer, offset = self._tensors[row], self.optimizers[row], row * width * size
            for name, length in zip(self.names, self.sizes, strict=True):
                p = tensors[name]
                if length and (p.data_ptr() != first + offset or (self.kept and not self._keeps(optimizer, p, begins, offset))):
                    return self._adopt_row(row)
                offset += length * size
            for name, begin, stride in fixed:
                if tensors[name].data_ptr() != begin + row * stride:
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
        tensors, optimizer, column = self._tensors[row], self.optimizers[row], 0
        for name, length in zip(self.names, self.sizes, strict=True):
            p = tensors[name]
            part = slice(column, column + length)
            p.data = self.flat[row, part].view(p.shape)
            if self.kept:
                assert optimizer is not None
                state = optimizer.state[p]
                state.update({key: self.states[key][row, part].view(p.shape) for key in self.kept})
                if issubclass(self.kind, optim.AdamW):
                    state.setdefault("step", torch.zeros(()))
            column += length
        for name, stacked in self.fixed.items():
            tensors[name].data = stacked[row]

    # Counts of steps

    def begin_steps(self) -> None:
        """Read the optimisers' counts of steps, if they keep any."""
        if issubclass(self.kind, optim.AdamW) and self.names:
            counts = [0.0] * len(self)
            for row, _ in self.occupied():
                optimizer = self.optimizers[row]
                assert optimizer is not None
                counts[row] = float(optimizer.state[self._tensors[row][self.names[0]]]["step"])
            self.steps.copy_(torch.tensor(counts)[:, None])

    def end_steps(self, taken: int) -> None:
        """Tell the optimisers how many steps every row has taken since `begin_steps`."""
        if issubclass(self.kind, optim.AdamW):
            for row, _ in self.occupied():
                optimizer = self.optimizers[row]
                assert optimizer is not None
                for name in self.names:
                    optimizer.state[self._tensors[row][name]]["step"] += taken


def finite(tensor: Tensor) -> Tensor:
    """The tensor with 0 in the place of whatever is not finite."""
    return tensor.nan_to_num(0.0, 0.0, 0.0) if tensor.is_floating_point() else tensor


def stacked(modules: Sequence[nn.Module]) -> Rows:
    """These modules, in this order, that nothing steps."""
    rows = Rows(modules[0], len(modules))
    for row, module in enumerate(modules):
        rows.put(row, module)
    return rows
