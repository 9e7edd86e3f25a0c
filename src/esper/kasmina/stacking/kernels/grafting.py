"""Seeds and hosts put together: one kernel takes the rows that run through seeds out of a batch, one puts what becomes of them back.

What they do is limited by memory, so that every number is read and written as few times as can be. Forward, `take` copies rows into a
buffer in which the rows of each stack of seeds are side by side, and `put` writes the batch anew, each row as its kind has it. Back, the
gradient of the batch is that of the features but for what comes through the seeds; `put` gives the gradients of the branches, gammas
and gates, and `take` adds what comes back through the branches, once.

Who is where is read from tables inside of the kernels, so that a captured step serves while seeds come and go. Outputs of branches are
given by address, because there are as many as stacks of seeds, of several types. All is computed in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.blending import BOOST_STEP
from esper.kasmina.stacking.kernels.sums import summed
from esper.kasmina.stacking.needs import Kind
from esper.kasmina.stacking.tables import Tables

TILE, SMALL_TILE = 2048, 1024
"""Numbers of a row that a program computes, so that there are programs enough where rows are small."""
SMALL = 1 << 17
"""Numbers of a row, up to which it is small."""
MOST = tl.constexpr(16)
"""Stacks of seeds at a slot."""
LARGEST = 2**31
"""Numbers in a buffer, below which our kernels count."""
ALIGNED = 16
"""Bytes that addresses are multiples of."""

ISOLATED, FULL = tl.constexpr(Kind.ISOLATED.value), tl.constexpr(Kind.FULL.value)
MULTIPLY, GATED = tl.constexpr(Kind.MULTIPLY.value), tl.constexpr(Kind.GATED.value)
STEP, LEAST = tl.constexpr(BOOST_STEP), tl.constexpr(1e-12)


@triton.jit
def _turn(chunks):  # type: ignore[no-untyped-def]
    """The row, or place, and the chunk of a program: what is side by side in memory is computed at the same time."""
    count = tl.num_programs(0) // chunks
    return tl.program_id(0) % count, tl.program_id(0) // count


@triton.jit
def _tile(chunk, samples, outer, inner, BLOCK_SAMPLES: tl.constexpr, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which numbers of a row are in a chunk of it: samples, places in the two dimensions of a sample, and what of the block there is."""
    wide, high = tl.cdiv(inner, BLOCK_INNER), tl.cdiv(outer, BLOCK_OUTER)
    sample = chunk // (wide * high) * BLOCK_SAMPLES + tl.arange(0, BLOCK_SAMPLES)[:, None, None]
    above = chunk // wide % high * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)[None, :, None]
    along = chunk % wide * BLOCK_INNER + tl.arange(0, BLOCK_INNER)[None, None, :]
    return sample, above, along, (sample < samples) & (above < outer) & (along < inner)


@triton.jit
def _at(table, index):  # type: ignore[no-untyped-def]
    return tl.load(table + index).to(tl.int32)


@triton.jit
def _address(addresses, number):  # type: ignore[no-untyped-def]
    found = addresses[0]
    for other in tl.static_range(1, MOST):
        found = tl.where(number == other, addresses[other], found)
    return found


@triton.jit
def _load(address, narrow, where, mask):  # type: ignore[no-untyped-def]
    """Numbers at an address, bfloat16 or float32, as float32."""
    if narrow != 0:
        values = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16) + where, mask=mask, other=0.0).to(tl.float32)
    else:
        values = tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16) + where, mask=mask, other=0.0)
    return values


@triton.jit
def _store(address, narrow, where, values, mask):  # type: ignore[no-untyped-def]
    if narrow != 0:
        tl.store(tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16) + where, values.to(tl.bfloat16), mask=mask)
    else:
        tl.store(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16) + where, values, mask=mask)


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    """To about 1e-7, not relative: it is added to one, and its square taken from it."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit(do_not_specialize=["source", "block", "rows", "samples", "outer", "chunks"])
def _take(
    h: tl.tensor,
    buffer: tl.tensor,
    source: tl.tensor,
    block: tl.tensor,
    rows: int,
    samples: int,
    outer: int,
    inner: int,
    chunks: int,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
) -> None:
    """A chunk of a place, from its row."""
    place, chunk = _turn(chunks)
    sample, above, along, mask = _tile(chunk, samples, outer, inner, BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER)
    row, first, size = _at(source, place), _at(block, 3 * place + 1), _at(block, 3 * place + 2)
    within, step = above * inner + along, outer * inner
    values = tl.load(h + (sample * rows + row) * step + within, mask=mask, other=0.0)
    tl.store(buffer + (samples * first + sample * size + place - first) * step + within, values, mask=mask)


@triton.jit(
    do_not_specialize=["block", "place_of", "kind_of", "nth_of", "given", "cut", "rows", "seconds", "gates", "samples", "outer", "chunks"]
)
def _take_back(
    gradient: tl.tensor,
    out: tl.tensor,
    parts: tl.tuple,
    second: tl.tensor,
    gated: tl.tensor,
    block: tl.tensor,
    place_of: tl.tensor,
    kind_of: tl.tensor,
    nth_of: tl.tensor,
    given: int,
    cut: int,
    rows: int,
    seconds: int,
    gates: int,
    samples: int,
    outer: int,
    inner: int,
    chunks: int,
    NARROW: tl.constexpr,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
) -> None:
    """A chunk of the gradient of a row, with what comes through its seed, its gate, and of it twice.

    given: a bit for each part that has a gradient, then for the gates' and for the second ones.
    """
    row, chunk = _turn(chunks)
    sample, above, along, mask = _tile(chunk, samples, outer, inner, BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER)
    within, step = above * inner + along, outer * inner
    whole = (sample * rows + row) * step + within
    values = tl.load(gradient + whole, mask=mask, other=0.0).to(tl.float32)
    kind = _at(kind_of, row)
    if kind != 0:
        place, nth = _at(place_of, row), _at(nth_of, row)
        number, first, size = _at(block, 3 * place), _at(block, 3 * place + 1), _at(block, 3 * place + 2)
        closed = (kind == ISOLATED) & (cut != 0)
        if (closed == 0) & ((given >> number) & 1 != 0):
            values += _load(_address(parts, number), NARROW, (sample * size + place - first) * step + within, mask)
        if (kind == GATED) & ((given >> MOST) & 1 != 0):
            values += tl.load(gated + (sample * gates + nth) * step + within, mask=mask, other=0.0).to(tl.float32)
        if ((kind == MULTIPLY) | ((kind == ISOLATED) & (cut == 0))) & ((given >> (MOST + 1)) & 1 != 0):
            values += tl.load(second + (sample * seconds + nth) * step + within, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + whole, values, mask=mask)


FIXED = ["gamma", "block", "place_of", "kind_of", "nth_of", "alpha_of", "narrow", "boost", "rows", "gates", "samples", "outer", "chunks"]


@triton.jit(do_not_specialize=FIXED)
def _put(
    h: tl.tensor,
    out: tl.tensor,
    branches: tl.tuple,
    gamma: tl.tensor,
    gate: tl.tensor,
    squares: tl.tensor,
    block: tl.tensor,
    place_of: tl.tensor,
    kind_of: tl.tensor,
    nth_of: tl.tensor,
    alpha_of: tl.tensor,
    narrow: int,
    boost: int,
    rows: int,
    gates: int,
    samples: int,
    outer: int,
    inner: int,
    chunks: int,
    LAST: tl.constexpr,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
) -> None:
    """A chunk of a row of the batch, as its kind has it. narrow: a bit for each branch whose output is bfloat16.

    LAST: whether channels are the inner of the two dimensions. squares: (2, places, chunks), of which the first half is for the features.
    """
    row, chunk = _turn(chunks)
    sample, above, along, mask = _tile(chunk, samples, outer, inner, BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER)
    within, step = above * inner + along, outer * inner
    whole = (sample * rows + row) * step + within
    features = tl.load(h + whole, mask=mask, other=0.0)
    kind, place = _at(kind_of, row), _at(place_of, row)
    if kind <= ISOLATED:
        tl.store(out + whole, features, mask=mask)  # as it is, bit for bit
        if (kind == ISOLATED) & (boost != 0):
            x = features.to(tl.float32)
            tl.store(squares + place * chunks + chunk, tl.sum(tl.sum(tl.sum(x * x, 2), 1), 0))
    else:
        x = features.to(tl.float32)
        number, first, size = _at(block, 3 * place), _at(block, 3 * place + 1), _at(block, 3 * place + 2)
        branch = _load(_address(branches, number), (narrow >> number) & 1, (sample * size + place - first) * step + within, mask)
        channel, channels, position, positions = above, outer, along, inner
        if LAST:
            channel, channels, position, positions = along, inner, above, outer
        scale = tl.load(gamma + place * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)
        s = x + scale * branch
        if kind == FULL:
            tl.store(out + whole, s, mask=mask)
        else:
            open_at = (sample * gates + _at(nth_of, row)) * positions + position
            open_mask = (sample < samples) & (position < tl.where(kind == GATED, positions, 0))
            a = tl.load(alpha_of + row).to(tl.float32) * tl.load(gate + open_at, mask=open_mask, other=1.0).to(tl.float32)
            if kind == MULTIPLY:
                tl.store(out + whole, x * (1.0 + a * _tanh(s - x)), mask=mask)
            else:
                tl.store(out + whole, x + a * (s - x), mask=mask)


@triton.jit(do_not_specialize=["source", "place_of", "kind_of", "places", "rows", "samples", "outer", "chunks"])
def _squares(
    gradient: tl.tensor,
    squares: tl.tensor,
    source: tl.tensor,
    place_of: tl.tensor,
    kind_of: tl.tensor,
    places: int,
    rows: int,
    samples: int,
    outer: int,
    inner: int,
    chunks: int,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
) -> None:
    """The sum of squares of a chunk of the gradient of a row that is isolated, into the second half of `squares`."""
    place, chunk = _turn(chunks)
    row = _at(source, place)
    if (_at(place_of, row) == place) & (_at(kind_of, row) == ISOLATED):
        sample, above, along, mask = _tile(chunk, samples, outer, inner, BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER)
        g = tl.load(gradient + (sample * rows + row) * outer * inner + above * inner + along, mask=mask, other=0.0).to(tl.float32)
        tl.store(squares + (places + place) * chunks + chunk, tl.sum(tl.sum(tl.sum(g * g, 2), 1), 0))


@triton.jit
def _size(squares, chunks, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Root mean square, from the sums of chunks."""
    acc = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, chunks, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        acc += tl.load(squares + chunk, mask=chunk < chunks, other=0.0)
    return tl.sqrt(tl.sum(acc, 0) / count)


@triton.jit(do_not_specialize=[*FIXED, "places", "source", "of_gamma", "needs_gamma", "wanted", "cut", "seconds", "needs_second"])
def _put_back(
    gradient: tl.tensor,
    h: tl.tensor,
    branches: tl.tuple,
    of_branches: tl.tuple,
    gamma: tl.tensor,
    of_gamma: tl.tensor,
    gate: tl.tensor,
    of_gate: tl.tensor,
    second: tl.tensor,
    squares: tl.tensor,
    source: tl.tensor,
    block: tl.tensor,
    place_of: tl.tensor,
    kind_of: tl.tensor,
    nth_of: tl.tensor,
    alpha_of: tl.tensor,
    narrow: int,
    wanted: int,
    needs_gamma: int,
    needs_second: int,
    cut: int,
    boost: int,
    places: int,
    rows: int,
    gates: int,
    seconds: int,
    samples: int,
    outer: int,
    inner: int,
    chunks: int,
    LAST: tl.constexpr,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
) -> None:
    """A chunk of a place: gradients of its branch's output and its gate, a second one of its row, and what it adds to that of its gamma.

    wanted: a bit for each branch that needs a gradient.
    """
    place, chunk = _turn(chunks)
    sample, above, along, mask = _tile(chunk, samples, outer, inner, BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER)
    within, step = above * inner + along, outer * inner
    row, number, first, size = _at(source, place), _at(block, 3 * place), _at(block, 3 * place + 1), _at(block, 3 * place + 2)
    mine, is_narrow = (sample * size + place - first) * step + within, (narrow >> number) & 1
    channel, channels, position, positions = above, outer, along, inner
    if LAST:
        channel, channels, position, positions = along, inner, above, outer
    of_branch = tl.zeros((BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER), tl.float32)
    of_scale = tl.zeros((BLOCK_SAMPLES, BLOCK_OUTER, BLOCK_INNER), tl.float32)
    if _at(place_of, row) == place:  # else there is no seed here, and its gradient is zero
        kind, nth = _at(kind_of, row), _at(nth_of, row)
        g = tl.load(gradient + (sample * rows + row) * step + within, mask=mask, other=0.0).to(tl.float32)
        branch = _load(_address(branches, number), is_narrow, mine, mask)
        scale = tl.load(gamma + place * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)
        moved = scale * branch  # s - h
        alpha = tl.load(alpha_of + row).to(tl.float32)
        of_s = g
        if kind == ISOLATED:
            if boost != 0:
                count = 1.0 * samples * outer * inner
                length = STEP * _size(squares + place * chunks, chunks, count, 256)
                length = tl.where(length < LEAST, LEAST, length)
                of_s = g + _size(squares + (places + place) * chunks, chunks, count, 256) / length * moved
            if (cut == 0) & (needs_second != 0):
                tl.store(second + (sample * seconds + nth) * step + within, g, mask=mask)
        elif kind == MULTIPLY:
            x = tl.load(h + (sample * rows + row) * step + within, mask=mask, other=0.0).to(tl.float32)
            t = _tanh(moved)
            of_s = g * x * alpha * (1.0 - t * t)
            if needs_second != 0:
                tl.store(second + (sample * seconds + nth) * step + within, g * alpha * t, mask=mask)
        elif kind == GATED:
            open_at = (sample * gates + nth) * positions + position
            open_mask = (sample < samples) & (position < positions)
            of_s = alpha * tl.load(gate + open_at, mask=open_mask, other=0.0).to(tl.float32) * g
            if LAST:
                tl.store(of_gate + open_at, alpha * tl.sum(g * moved, 2, keep_dims=True), mask=open_mask)
            else:
                tl.store(of_gate + open_at, alpha * tl.sum(g * moved, 1, keep_dims=True), mask=open_mask)
        elif kind != FULL:
            of_s = alpha * g
        of_branch = scale * of_s
        of_scale = branch * of_s
    if (wanted >> number) & 1 != 0:
        _store(_address(of_branches, number), is_narrow, mine, of_branch, mask)
    if needs_gamma != 0:
        to = of_gamma + (chunk.to(tl.int64) * places + place) * channels + channel
        if LAST:
            tl.store(to, tl.sum(tl.sum(of_scale, 1, keep_dims=True), 0, keep_dims=True), mask=channel < channels)
        else:
            tl.store(to, tl.sum(tl.sum(of_scale, 2, keep_dims=True), 0, keep_dims=True), mask=channel < channels)


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
        _take[(places * layout.chunks,)](
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
            _take_back[(gradient.shape[1] * layout.chunks,)](
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
            _put[(h.shape[1] * layout.chunks,)](
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
                _squares[(places * layout.chunks,)](
                    gradient,
                    squares,
                    *(tables.source, tables.place, tables.kind, places, rows),
                    *layout.sizes,
                    *layout.blocks,
                    num_warps=layout.warps,
                )
            _put_back[(places * layout.chunks,)](
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
