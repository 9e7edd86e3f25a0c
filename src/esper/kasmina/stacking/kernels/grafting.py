"""Seeds and hosts put together: one kernel takes the rows that run through seeds out of a batch, one puts what becomes of them back.

What they do is limited by memory, so that every number is read and written as few times as can be. Forward, `take` copies rows into a
buffer in which the rows of each stack of seeds are side by side, and `put` writes the batch anew, each row as its kind has it. Back, the
gradient of the batch is that of the features but for what comes through the seeds; `put` gives the gradients of the branches, gammas
and gates, and `take` adds what comes back through the branches, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.stacking.kernels.grafting_programs import MOST, put_back, put_rows, squares_of, take_back, take_rows
from esper.kasmina.stacking.kernels.sums import summed
from esper.kasmina.stacking.tables import Tables

TILE, SMALL_TILE = 2048, 1024
"""Numbers of a row that a program computes, so that there are programs enough where rows are small."""
SMALL = 1 << 17
"""Numbers of a row, up to which it is small."""
LARGEST = 2**31
"""Numbers in a buffer, below which our kernels count."""
ALIGNED = 16
"""Bytes that addresses are multiples of."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A row of a batch as our kernels see it: samples, and the two dimensions of each."""

    samples: int
    outer: int
    inner: int
    last: bool
    """Whether channels are the inner dimension. All of them are in one block."""

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Samples, outer and inner places in a block."""
        tile = SMALL_TILE if self.samples * self.outer * self.inner <= SMALL else TILE
        outer, inner = triton.next_power_of_2(self.outer), triton.next_power_of_2(self.inner)
        if self.last:
            outer = min(outer, max(1, tile // inner))
        else:
            inner = min(inner, max(1, tile // outer))
        return min(triton.next_power_of_2(self.samples), max(1, tile // (outer * inner))), outer, inner

    @property
    def chunks(self) -> int:
        samples, outer, inner = self.blocks
        return triton.cdiv(self.samples, samples) * triton.cdiv(self.outer, outer) * triton.cdiv(self.inner, inner)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.samples, self.outer, self.inner, self.chunks

    @property
    def warps(self) -> int:
        """So that a thread has eight numbers: with more, what it holds leaves room for few others."""
        return min(8, max(1, math.prod(self.blocks) // 256))


def _layout(x: Tensor, gamma: Tensor) -> _Layout | None:
    """Of (S, N, C, ...) with gammas (n, C, 1, ...), or (S, N, ..., C) with (n, C); None if channels are amid other dimensions."""
    trailing = gamma.dim() - 2
    before, after = math.prod(x.shape[2 : x.dim() - 1 - trailing]), math.prod(x.shape[x.dim() - trailing :])
    if before == 1 and after > 1:
        return _Layout(len(x), gamma.shape[1], after, last=False)
    return _Layout(len(x), before, gamma.shape[1], last=True) if after == 1 else None


def _flat(x: Tensor) -> _Layout:
    """Where channels do not matter. One block holds no more than a tile of a sample."""
    return _Layout(len(x), 1, math.prod(x.shape[2:]), last=False)


def fits(h: Tensor, gamma: Tensor, tables: Tables) -> bool:
    """Whether our kernels do what there is to do at a slot with such features, (S, N, ...)."""
    layout = _layout(h, gamma)
    if layout is None or len(tables.sizes) > MOST.value:
        return False
    channels = layout.inner if layout.last else layout.outer
    return channels <= TILE and max(len(tables.source), tables.seconds) * h[:, 0].numel() < LARGEST


@dataclass(slots=True, eq=False)
class Taken:
    """What was taken out of a batch."""

    h: Tensor
    """All of it, to be put back into."""
    parts: list[Tensor]
    """The rows of each stack of seeds, (S, n, ...)."""
    gated: Tensor | None
    """Those with a gate."""
    second: Tensor | None
    """What has the second gradient of rows, and is not to be read."""
    buffer: Tensor
    """In which the rows are."""


def take(h: Tensor, tables: Tables) -> Taken:
    """Rows of h, (S, N, ...), for seeds and gates."""
    h = h.contiguous()
    if tables.closed:
        buffer = _filled(h.detach(), tables)
        return Taken(h, _parts(buffer, h, tables)[: len(tables.sizes)], None, None, buffer)
    passed, buffer, second, *parts = _Take.apply(h, tables)
    gated = parts.pop() if tables.gated else None
    return Taken(passed, parts, gated, second, buffer)


def _filled(h: Tensor, tables: Tables) -> Tensor:
    """The buffer, (rows, ...)."""
    layout, places = _flat(h), len(tables.source)
    buffer = h.new_empty(len(h) * places, *h.shape[2:])
    with torch.cuda.device_of(h):
        take_rows[(places * layout.chunks,)](
            h, buffer, tables.source, tables.block, h.shape[1], *layout.sizes, *layout.blocks, num_warps=layout.warps
        )
    return buffer


def _parts(buffer: Tensor, h: Tensor, tables: Tables) -> list[Tensor]:
    """The buffer's blocks, (S, n, ...) each, as tensors that are no views: a seed may overwrite its input."""
    samples, shape = len(h), h.shape[2:]
    parts, first = [], 0
    for size in [*tables.sizes, tables.gated] if tables.gated else tables.sizes:
        like = buffer[first * samples : (first + size) * samples].view(samples, size, *shape)
        parts.append(buffer.new_empty(0).set_(buffer.untyped_storage(), like.storage_offset(), like.shape, like.stride()))
        first += size
    return parts


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, tables: Tables) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.tables = tables
        buffer = _filled(h, tables)
        # Seeds read it in their backward pass, on streams of their own. What follows here waits for them, so it is kept until then.
        ctx.save_for_backward(buffer)
        ctx.mark_non_differentiable(buffer)
        second = h.new_empty(()).expand(len(h), tables.seconds, *h.shape[2:]) if tables.seconds else None
        return h, buffer, second, *_parts(buffer, h, tables)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None, second: Tensor | None, *parts: Tensor | None) -> tuple[Tensor, None]:
        tables: Tables = ctx.tables
        gated = parts[-1] if tables.gated else None
        found = [None if part is None else _whole(part) for part in parts[: len(tables.sizes)]]
        given = sum(1 << number for number, part in enumerate(found) if part is not None)
        given |= (gated is not None) << MOST.value | (second is not None) << MOST.value + 1
        gradient = gradient.contiguous()
        if not given:
            return gradient, None
        out, layout = torch.empty_like(gradient), _flat(gradient)
        with torch.cuda.device_of(gradient):
            take_back[(gradient.shape[1] * layout.chunks,)](
                gradient,
                out,
                _addresses([gradient if part is None else part for part in found]),
                gradient if second is None else second.contiguous(),
                gradient if gated is None else gated.contiguous(),
                *(tables.block, tables.place, tables.kind, tables.nth),
                *(given, int(tables.cut), gradient.shape[1], tables.seconds, tables.gated),
                *layout.sizes,
                int(gradient.dtype is torch.bfloat16),
                *layout.blocks,
                num_warps=layout.warps,
            )
        return out, None


def put(taken: Taken, branches: Sequence[Tensor], gamma: Tensor, gate: Tensor | None, tables: Tables) -> Tensor:
    """The batch with what seeds make of their rows in the place of these, (S, N, ...).

    branches: the outputs of each stack of seeds, (S, n, ...). gamma: of all seeds. gate: a value for each position of the rows with one.
    """
    known = [branch if branch.dtype in (torch.float32, torch.bfloat16) else branch.float() for branch in branches]
    out: Tensor = _Put.apply(taken.h, taken.second, gamma, gate, tables, *known)
    return out


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, second: Tensor | None, gamma: Tensor, gate: Tensor | None, tables: Tables, *branches: Tensor
    ) -> Tensor:
        layout = _layout(h, gamma)
        assert layout is not None
        ctx.shape, ctx.gate_shape = gamma.shape, None if gate is None else gate.shape
        gamma, gate = gamma.contiguous(), None if gate is None else gate.contiguous()
        found = [_whole(branch) for branch in branches]
        places, out = sum(tables.sizes), torch.empty_like(h)
        squares = h.new_empty(2, places, layout.chunks, dtype=torch.float32) if tables.boost else None
        with torch.cuda.device_of(h):
            put_rows[(h.shape[1] * layout.chunks,)](
                h,
                out,
                _addresses(found),
                gamma,
                h if gate is None else gate,
                h if squares is None else squares,
                *(tables.block, tables.place, tables.kind, tables.nth, tables.alpha),
                *(_narrow(found), int(tables.boost), h.shape[1], tables.gated),
                *layout.sizes,
                layout.last,
                *layout.blocks,
                num_warps=layout.warps,
            )
        ctx.tables, ctx.layout, ctx.has_second = tables, layout, second is not None
        # The features are read again for rows that are multiplied alone.
        ctx.save_for_backward(h if tables.seconds else None, gamma, gate, squares, *found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        h, gamma, gate, squares, *branches = ctx.saved_tensors
        tables: Tables = ctx.tables
        layout: _Layout = ctx.layout
        _, needs_second, needs_gamma, needs_gate, _, *needed = ctx.needs_input_grad
        needs_second = needs_second and ctx.has_second
        gradient = gradient.contiguous()
        rows, places, channels = gradient.shape[1], sum(tables.sizes), gamma.shape[1]
        # Rows to spare are no row's: nobody reads their second gradient, but a gate does its own.
        second = gradient.new_empty(len(gradient), tables.seconds, *gradient.shape[2:]) if needs_second else None
        of_gate = torch.zeros_like(gate) if gate is not None else None
        of_branches = [torch.empty_like(branch) if need else None for branch, need in zip(branches, needed, strict=True)]
        partial = gradient.new_empty(layout.chunks, places * channels, dtype=torch.float32) if needs_gamma else None
        if not (needs_gamma or needs_second or needs_gate or any(needed)):
            return gradient, None, None, None, None, *of_branches
        with torch.cuda.device_of(gradient):
            if squares is not None:
                squares_of[(places * layout.chunks,)](
                    gradient,
                    squares,
                    *(tables.source, tables.place, tables.kind, places, rows),
                    *layout.sizes,
                    *layout.blocks,
                    num_warps=layout.warps,
                )
            put_back[(places * layout.chunks,)](
                gradient,
                gradient if h is None else h,
                _addresses(branches),
                _addresses([branch if of is None else of for branch, of in zip(branches, of_branches, strict=True)]),
                gamma,
                gamma if partial is None else partial,
                gradient if gate is None else gate,
                gradient if of_gate is None else of_gate,
                gradient if second is None else second,
                gradient if squares is None else squares,
                *(tables.source, tables.block, tables.place, tables.kind, tables.nth, tables.alpha),
                _narrow(branches),
                sum(1 << number for number, need in enumerate(needed) if need),
                *(int(needs_gamma), int(needs_second), int(tables.cut), int(tables.boost)),
                *(places, rows, tables.gated, tables.seconds),
                *layout.sizes,
                layout.last,
                *layout.blocks,
                num_warps=layout.warps,
            )
        of_gamma = None if partial is None else summed(partial, gamma.dtype).view(ctx.shape)
        return gradient, second, of_gamma, None if of_gate is None else of_gate.view(ctx.gate_shape), None, *of_branches


def _whole(x: Tensor) -> Tensor:
    """In one piece, where several numbers can be read at once."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNED == 0 else x.clone()


def _addresses(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Of so many, always, so that one kernel is compiled for any number of them."""
    found = [each.data_ptr() for each in tensors]
    return (*found, *[found[0]] * (MOST.value - len(found)))


def _narrow(tensors: Sequence[Tensor]) -> int:
    """A bit for each that is bfloat16."""
    return sum(1 << number for number, each in enumerate(tensors) if each.dtype is torch.bfloat16)
