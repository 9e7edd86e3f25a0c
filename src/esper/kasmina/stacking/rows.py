"""Storage for many modules of one structure: a row each. The modules' own tensors are views of their rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn, optim

from esper.kasmina.stacking.errors import Unstackable

STATES: dict[type[optim.Optimizer], tuple[str, ...]] = {optim.SGD: ("momentum_buffer",), optim.AdamW: ("exp_avg", "exp_avg_sq")}
"""What each optimiser keeps of a parameter, besides its count of steps."""


class Rows:
    """Modules of one structure with their tensors in one storage, together with what their optimisers keep.

    Learning parameters are one matrix, a row for each module: an optimiser steps all of them at once, and some rows can be taken out in
    one go. A module sees its row as its own tensors; whoever changes those in place changes the storage. `adopt` takes in whatever was
    put in their place.

    optimizers: one for each module; None for modules that are not trained here. unused: parameters that never get a gradient, by name.
    """

    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[optim.Optimizer] | None = None, unused: Collection[str] = ()
    ) -> None:
        self.modules = list(modules)
        self.optimizers = list(optimizers) if optimizers is not None else []
        first = self.modules[0]
        named = dict(first.named_parameters())
        self.names = [name for name, p in named.items() if p.requires_grad and name not in unused]
        """Of the parameters that learn."""
        self.parameters = len(named)
        """Of one module, those that do not learn too."""
        self.shapes = [named[name].shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        if len({(p.dtype, p.device) for p in named.values()}) > 1:
            raise Unstackable("its parameters are of several types, or on several devices")
        self._parameters = [dict(module.named_parameters()) for module in self.modules]
        self._buffers = [dict(module.named_buffers()) for module in self.modules]
        self._check()
        self.kind = type(self.optimizers[0]) if self.optimizers else optim.Optimizer
        self.settings = self.optimizers[0].defaults if self.optimizers else {}
        self.kept = STATES[self.kind] if self.optimizers and self._keeps_state() else ()
        self.flat = self._stacked([[p[name] for p in self._parameters] for name in self.names])
        """(rows, parameters that learn)."""
        self.states = {key: self._stacked([self._state_of(name, key) for name in self.names]) for key in self.kept}
        """For each of the optimisers' figures, the same shape."""
        fixed = {name: [p[name] for p in self._parameters] for name in named if name not in self.names}
        fixed |= {name: [b[name] for b in self._buffers] for name in self._buffers[0]}
        self.fixed = {name: torch.stack([each.detach() for each in tensors]) for name, tensors in fixed.items()}
        """Everything else, (rows, *shape) by name: buffers, and parameters that do not learn."""
        self.steps = torch.zeros(len(self.modules), 1, device=self.flat.device)
        """Of each row, how often it was stepped; for optimisers that count."""
        self._view()

    def __len__(self) -> int:
        return len(self.modules)

    def holds(self, modules: Sequence[nn.Module]) -> bool:
        """Whether these are exactly its modules, in this order."""
        return len(modules) == len(self.modules) and all(a is b for a, b in zip(modules, self.modules, strict=True))

    def values(self, start: int, end: int) -> dict[str, Tensor]:
        """Tensors of some rows, by name: views of the storage, (end - start, *shape). Those that learn are leaves with a gradient."""
        learning = {name: each.detach().requires_grad_() for name, each in self._shaped(self.flat[start:end]).items()}
        return {**learning, **{name: each[start:end] for name, each in self.fixed.items()}}

    def copies(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of the tensors of these rows, int64 (n,), any of them any number of times, by name: (n, *shape)."""
        learning = self._shaped(self.flat.index_select(0, rows))
        return {**learning, **{name: each.index_select(0, rows) for name, each in self.fixed.items()}}

    def _shaped(self, matrix: Tensor) -> dict[str, Tensor]:
        """Rows of the matrix as tensors by name."""
        parts = zip(self.names, matrix.split(self.sizes, 1) if self.names else (), self.shapes, strict=True)
        return {name: part.view(len(matrix), *shape) for name, part, shape in parts}

    @torch.no_grad()
    def adopt(self) -> None:
        """Take in tensors that somebody put in the place of views: after a rollback, or a state that was loaded."""
        width, size = self.flat.shape[1], self.flat.element_size()
        flats = [self.flat.data_ptr(), *(self.states[key].data_ptr() for key in self.kept)]
        for row, parameters in enumerate(self._parameters):
            offset = row * width * size
            state = self.optimizers[row].state if self.kept else {}
            for name, length in zip(self.names, self.sizes, strict=True):
                p = parameters[name]
                if p.data_ptr() != flats[0] + offset:
                    self._put(self.flat, row, (offset // size) % width, p)
                    self._view_parameter(row, name, (offset // size) % width)
                for key, begin in zip(self.kept, flats[1:], strict=True):
                    found = state.get(p, {}).get(key)
                    if found is None or found.data_ptr() != begin + offset:
                        column = (offset // size) % width
                        self._put(self.states[key], row, column, torch.zeros_like(p) if found is None else found)
                        self._view_state(row, name, key, column)
                offset += length * size
            for name, stacked in self.fixed.items():
                mine = parameters[name] if name in parameters else self._buffers[row][name]
                if mine.data_ptr() != stacked.data_ptr() + row * stacked.stride(0) * stacked.element_size():
                    stacked[row].copy_(mine)
                    mine.data = stacked[row]

    def begin_steps(self) -> None:
        """Read the optimisers' counts of steps, if they keep any."""
        if self.kind is optim.AdamW and self.names:
            counts = [float(o.state[p[self.names[0]]]["step"]) for o, p in zip(self.optimizers, self._parameters, strict=True)]
            self.steps = torch.tensor(counts, device=self.flat.device)[:, None]

    def end_steps(self, taken: Sequence[int]) -> None:
        """Tell the optimisers how many steps each row has taken since `begin_steps`."""
        if self.kind is optim.AdamW:
            for optimizer, parameters, steps in zip(self.optimizers, self._parameters, taken, strict=True):
                for name in self.names:
                    optimizer.state[parameters[name]]["step"] += steps

    @torch.no_grad()
    def release(self) -> None:
        """Give every module tensors of its own again."""
        for row, parameters in enumerate(self._parameters):
            for name in self.names:
                p = parameters[name]
                p.data = p.data.clone()
                for key in self.kept:
                    self.optimizers[row].state[p][key] = self.optimizers[row].state[p][key].clone()
            for name in self.fixed:
                mine = parameters[name] if name in parameters else self._buffers[row][name]
                mine.data = mine.data.clone()

    # Making it

    def _check(self) -> None:
        """All modules have tensors of the same names and shapes, and learn the same ones."""
        for mine in self._parameters:
            shapes = [mine[name].shape for name in self.names if name in mine and mine[name].requires_grad]
            if shapes != self.shapes or len(mine) != self.parameters:
                raise Unstackable("its parameters differ from those of others with the same structure")

    def _keeps_state(self) -> bool:
        optimizer = self.optimizers[0]
        return not isinstance(optimizer, optim.SGD) or optimizer.defaults["momentum"] > 0

    def _state_of(self, name: str, key: str) -> list[Tensor]:
        parameters = [each[name] for each in self._parameters]
        found = [optimizer.state[p].get(key) if p in optimizer.state else None for p, optimizer in zip(parameters, self.optimizers, strict=True)]
        return [torch.zeros_like(p) if value is None else value for p, value in zip(parameters, found, strict=True)]

    def _stacked(self, tensors: list[list[Tensor]]) -> Tensor:
        """Lists of tensors, one for each name, as one matrix with a row for each module."""
        if not tensors:
            return torch.zeros(len(self.modules), 0)
        rows = len(self.modules)
        return torch.cat([torch.stack([each.detach() for each in column]).view(rows, -1) for column in tensors], 1)

    def _view(self) -> None:
        for row, parameters in enumerate(self._parameters):
            column = 0
            for name, length in zip(self.names, self.sizes, strict=True):
                self._view_parameter(row, name, column)
                for key in self.kept:
                    self._view_state(row, name, key, column)
                column += length
            for name, stacked in self.fixed.items():
                mine = parameters[name] if name in parameters else self._buffers[row][name]
                mine.data = stacked[row]

    def _view_parameter(self, row: int, name: str, column: int) -> None:
        p = self._parameters[row][name]
        p.data = self.flat[row, column : column + p.numel()].view(p.shape)

    def _view_state(self, row: int, name: str, key: str, column: int) -> None:
        p = self._parameters[row][name]
        state = self.optimizers[row].state[p]
        state[key] = self.states[key][row, column : column + p.numel()].view(p.shape)
        if isinstance(self.optimizers[row], optim.AdamW):
            state.setdefault("step", torch.zeros(()))

    def _put(self, flat: Tensor, row: int, column: int, value: Tensor) -> None:
        flat[row, column : column + value.numel()].copy_(value.flatten())
