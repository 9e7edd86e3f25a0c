"""Sums of partial results, in an order that does not depend on how many there are beside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_PARTS, BLOCK_COLUMNS = 32, 64


@triton.jit(do_not_specialize=["parts", "columns"])
def _sum(partial: tl.tensor, out: tl.tensor, parts: int, columns: int, BLOCK_PARTS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr) -> None:
    column = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    acc = tl.zeros((BLOCK_PARTS, BLOCK_COLUMNS), tl.float32)
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)
        mask = (part < parts)[:, None] & (column < columns)[None, :]
        acc += tl.load(partial + part.to(tl.int64)[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(out + column, tl.sum(acc, 0), mask=column < columns)


def summed(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of partial results, float32 (parts, columns), over the parts."""
    parts, columns = partial.shape
    out = partial.new_empty(columns, dtype=dtype)
    with torch.cuda.device_of(partial):
        _sum[(triton.cdiv(columns, BLOCK_COLUMNS),)](partial, out, parts, columns, BLOCK_PARTS, BLOCK_COLUMNS)
    return out
