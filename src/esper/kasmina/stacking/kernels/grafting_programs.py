"""The programs behind `grafting`, which a GPU runs: each computes a chunk of one row, or of one place.

Who is where is read from tables inside of the programs, so that a captured step serves while seeds come and go. Outputs of branches are
given by address, because there are as many as stacks of seeds, of several types. All is computed in float32 and rounded at the end.
Arguments are many because kernels take no records.
"""

from __future__ import annotations

import triton
import triton.language as tl

from esper.kasmina.blending import BOOST_STEP
from esper.kasmina.stacking.needs import Kind

MOST = tl.constexpr(16)
"""Stacks of seeds at a slot."""
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
def take_rows(
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
def take_back(
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
def put_rows(
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
def squares_of(
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
def put_back(
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
