"""Max pools that halve a map: a kernel forward and one back, with a byte for each pixel of the output to say where its value was."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024
"""Pixels of a block."""


@triton.jit
def _larger(best, index, value, at):  # type: ignore[no-untyped-def]
    """The larger of two and where it was; the first of equal ones, and NaN before all else."""
    taken = (value > best) | (value != value)
    return tl.where(taken, value, best), tl.where(taken, at, index)


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x: tl.tensor, out: tl.tensor, index: tl.tensor, rows: int, width: int, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr
) -> None:
    """Rows of the output, of all maps one after another. width: of the output."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    wide = tl.arange(0, 2 * BLOCK_WIDTH)
    mask = (row < rows)[:, None] & (wide < 2 * width)[None, :]
    where = row[:, None] * (4 * width) + wide[None, :]
    upper = tl.load(x + where, mask=mask, other=0.0).to(tl.float32)
    lower = tl.load(x + where + 2 * width, mask=mask, other=0.0).to(tl.float32)
    best, second = tl.split(tl.reshape(upper, (BLOCK_ROWS, BLOCK_WIDTH, 2)))
    third, fourth = tl.split(tl.reshape(lower, (BLOCK_ROWS, BLOCK_WIDTH, 2)))
    at = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.int32)
    best, at = _larger(best, at, second, 1)
    best, at = _larger(best, at, third, 2)
    best, at = _larger(best, at, fourth, 3)
    column = tl.arange(0, BLOCK_WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    where = row[:, None] * width + column[None, :]
    tl.store(out + where, best, mask=mask)
    tl.store(index + where, at.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    gradient: tl.tensor, index: tl.tensor, of_x: tl.tensor, rows: int, width: int, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr
) -> None:
    """Rows of the input, of all maps one after another. width: of the input."""
    row, column = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    where = (row // 2)[:, None] * (width // 2) + (column // 2)[None, :]
    g, at = tl.load(gradient + where, mask=mask, other=0.0), tl.load(index + where, mask=mask, other=0)
    mine = (row % 2)[:, None] * 2 + (column % 2)[None, :]
    tl.store(of_x + row[:, None] * width + column[None, :], tl.where(at == mine, g, 0.0), mask=mask)


def halved(x: Tensor) -> Tensor:
    """The largest of every two by two pixels of (..., H, W), both even. Equal ones: the gradient is the first's, as torch has it."""
    out: Tensor = _MaxPool.apply(x)
    return out


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
        index = torch.empty_like(out, dtype=torch.uint8)
        ctx.save_for_backward(index)
        rows, width = out.numel() // out.shape[-1], out.shape[-1]
        block = triton.next_power_of_2(width)
        block_rows = max(1, BLOCK // block)
        with torch.cuda.device_of(x):
            _forward[(triton.cdiv(rows, block_rows),)](x, out, index, rows, width, block_rows, block)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (index,) = ctx.saved_tensors
        of_x = gradient.new_empty(*index.shape[:-2], 2 * index.shape[-2], 2 * index.shape[-1])
        rows, width = of_x.numel() // of_x.shape[-1], of_x.shape[-1]
        block = triton.next_power_of_2(width)
        block_rows = max(1, BLOCK // block)
        with torch.cuda.device_of(of_x):
            _backward[(triton.cdiv(rows, block_rows),)](gradient.contiguous(), index, of_x, rows, width, block_rows, block)
        return of_x
