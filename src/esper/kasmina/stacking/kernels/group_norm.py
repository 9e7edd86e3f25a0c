"""Group norms of many hosts, a kernel forward and two back; a program holds all of a group."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.stacking.kernels.sums import summed

LARGEST = 1 << 14
"""Numbers that a program holds, at most."""


@triton.jit
def _normal(x, channels, area, epsilon, row, BLOCK_CHANNELS: tl.constexpr, BLOCK_AREA: tl.constexpr):  # type: ignore[no-untyped-def]
    """A group with mean 0 and variance 1, by what it was divided, where it lies and what of the block belongs to it."""
    channel, at = tl.arange(0, BLOCK_CHANNELS), tl.arange(0, BLOCK_AREA)
    mask = (channel < channels)[:, None] & (at < area)[None, :]
    where = row * channels * area + channel[:, None] * area + at[None, :]
    values = tl.load(x + where, mask=mask, other=0.0).to(tl.float32)
    size = channels * area * 1.0
    centred = tl.where(mask, values - tl.sum(tl.sum(values, 1), 0) / size, 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(centred * centred, 1), 0) / size + epsilon)
    return centred * scale, scale, where, mask


@triton.jit(do_not_specialize=["rows", "channels", "area", "epsilon"])
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: int,
    channels: int,
    area: int,
    epsilon: float,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_AREA: tl.constexpr,
) -> None:
    """A group of a sample of a host. rows: groups of all hosts. channels: in a group."""
    row = tl.program_id(0)
    normal, _, where, mask = _normal(x, channels, area, epsilon, row, BLOCK_CHANNELS, BLOCK_AREA)
    channel = tl.arange(0, BLOCK_CHANNELS)
    mine, valid = row % rows * channels + channel, channel < channels
    scale, shift = tl.load(weight + mine, mask=valid, other=0.0), tl.load(bias + mine, mask=valid, other=0.0)
    tl.store(out + where, normal * scale[:, None].to(tl.float32) + shift[:, None].to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["rows", "channels", "area", "epsilon", "needs_x"])
def _backward(
    x: tl.tensor,
    weight: tl.tensor,
    gradient: tl.tensor,
    of_x: tl.tensor,
    partial: tl.tensor,
    rows: int,
    channels: int,
    area: int,
    epsilon: float,
    needs_x: int,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_AREA: tl.constexpr,
) -> None:
    """Of a group of a sample of a host: the gradient of its input, and what it adds to those of its weights and biases."""
    row = tl.program_id(0)
    normal, scale, where, mask = _normal(x, channels, area, epsilon, row, BLOCK_CHANNELS, BLOCK_AREA)
    g = tl.load(gradient + where, mask=mask, other=0.0).to(tl.float32)
    channel = tl.arange(0, BLOCK_CHANNELS)
    mine, valid = row % rows * channels + channel, channel < channels
    of_weight, of_bias = tl.sum(g * normal, 1), tl.sum(g, 1)
    first = partial + (row // rows).to(tl.int64) * 2 * rows * channels
    tl.store(first + mine, of_weight, mask=valid)
    tl.store(first + rows * channels + mine, of_bias, mask=valid)
    if needs_x != 0:
        w = tl.load(weight + mine, mask=valid, other=0.0).to(tl.float32)
        size = channels * area * 1.0
        along, mean = tl.sum(w * of_weight, 0) / size, tl.sum(w * of_bias, 0) / size
        tl.store(of_x + where, (g * w[:, None] - mean - normal * along) * scale, mask=mask)


def fits(x: Tensor, groups: int) -> bool:
    """Whether a group of (S, N, C, ...) is small enough."""
    channels, area = x.shape[2] // groups, x[0, 0, 0].numel()
    return triton.next_power_of_2(channels) * triton.next_power_of_2(area) <= LARGEST


def normalised(x: Tensor, groups: int, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Group norms of (S, N, C, ...) with weights and biases (N, C), as that dtype. Statistics are float32."""
    out: Tensor = _GroupNorm.apply(x, groups, weight, bias, epsilon, dtype)
    return out


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.groups, ctx.epsilon, ctx.bias_dtype = groups, epsilon, bias.dtype
        out = torch.empty_like(x, dtype=dtype)
        sizes, blocks, warps = _sizes(x, groups)
        with torch.cuda.device_of(x):
            _forward[(x.shape[0] * sizes[0],)](x, weight, bias.contiguous(), out, *sizes, epsilon, *blocks, num_warps=warps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x = ctx.needs_input_grad[0]
        of_x = torch.empty_like(x) if needs_x else x
        partial = x.new_empty(x.shape[0], 2 * weight.numel(), dtype=torch.float32)
        sizes, blocks, warps = _sizes(x, ctx.groups)
        with torch.cuda.device_of(x):
            _backward[(x.shape[0] * sizes[0],)](
                x, weight, gradient.contiguous(), of_x, partial, *sizes, ctx.epsilon, int(needs_x), *blocks, num_warps=warps
            )
        of_weight = of_bias = None
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            of_weight, of_bias = summed(partial, weight.dtype).view(2, *weight.shape).unbind()
        return of_x if needs_x else None, None, of_weight, of_bias, None, None


def _sizes(x: Tensor, groups: int) -> tuple[tuple[int, int, int], tuple[int, int], int]:
    """Groups of all hosts, channels and places of a group; the block that holds it; warps."""
    channels, area = x.shape[2] // groups, x[0, 0, 0].numel()
    blocks = triton.next_power_of_2(channels), triton.next_power_of_2(area)
    return (x.shape[1] * groups, channels, area), blocks, min(16, max(1, blocks[0] * blocks[1] // 512))
