"""Convolutions of many hosts in one kernel, and as many for each gradient: products of weights with the windows of the pixels.

P = S * H * W pixels of the output lie side by side, so that reading and writing is coalesced, and a product is (O, K) by (K, P) with
K = C * kernel height * kernel width. The gradient of the input is the same product with weights that are transposed and flipped; that of
the weights, (O, P) by (P, K), is taken over parts of P, which are then summed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.stacking.kernels.sums import summed

BLOCK_OUT = 64
"""Most output channels in a block; as few as 16, which is the least that a product takes."""
PARTS = 64
"""How many parts the gradient of the weights is taken over, at most."""
PART = 512
"""Pixels in a part, at least."""

OUTSIDE = tl.constexpr(-(1 << 29))
"""A place that is in no map, not even if two of them are added."""
SIZES = ["hosts", "inputs", "outputs", "height", "width", "out_height", "out_width"]
SIZES += ["kernel_height", "kernel_width", "top", "left", "samples"]


@triton.jit
def _windows(x, sample, row, column, place, valid, first, inputs, sample_stride, height, width, kernel_height, kernel_width):  # type: ignore[no-untyped-def]
    """What the pixels of the output see: (K, P), zero outside of the map.

    sample, row, column: (P,) of the pixel's window, its upper left corner. place: (K,) channel, row and column in the window as one number.
    """
    size = kernel_height * kernel_width
    channel, inside = place // size, place % size
    below, right = inside // kernel_width, inside % kernel_width
    below = tl.where(place < inputs * size, below, OUTSIDE)
    row = tl.where(valid, row, OUTSIDE)
    # As unsigned numbers, those below zero are large.
    mask = (row[None, :] + below[:, None]).to(tl.uint32) < height.to(tl.uint32)
    mask &= (column[None, :] + right[:, None]).to(tl.uint32) < width.to(tl.uint32)
    offset = (first + sample * sample_stride + row * width + column)[None, :] + ((channel * height + below) * width + right)[:, None]
    return tl.load(x + offset, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["x", "weight", "bias", "out", *SIZES, "out_stride", "in_stride", "place_stride", "weight_first", "has_bias"])
def _convolve(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    hosts: int,
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    kernel_height: int,
    kernel_width: int,
    top: int,
    left: int,
    samples: int,
    out_stride: int,
    in_stride: int,
    place_stride: int,
    weight_first: int,
    has_bias: int,
    BLOCK_OUT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A block of pixels of a host, for a block of output channels."""
    host = tl.program_id(1)
    area, size = out_height * out_width, kernel_height * kernel_width
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    output = tl.program_id(2) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    sample, at = pixel // area, pixel % area
    row, column, valid = at // out_width - top, at % out_width - left, pixel < samples * area
    first, stride = host * inputs * height * width, hosts * inputs * height * width
    weights = weight + host * inputs * outputs * size + weight_first + output[:, None] * out_stride
    acc = tl.zeros((BLOCK_OUT, BLOCK_PIXELS), tl.float32)
    for begin in range(0, inputs * size, BLOCK_PLACES):
        place = begin + tl.arange(0, BLOCK_PLACES)
        mask = (output < outputs)[:, None] & (place < inputs * size)[None, :]
        w = tl.load(weights + (place // size * in_stride + place % size * place_stride)[None, :], mask=mask, other=0.0)
        seen = _windows(x, sample, row, column, place, valid, first, inputs, stride, height, width, kernel_height, kernel_width)
        acc = tl.dot(w.to(DTYPE), seen.to(DTYPE), acc, input_precision=PRECISION)
    if has_bias != 0:
        acc += tl.load(bias + host * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
    where = ((sample * hosts + host) * outputs * area + at)[None, :] + output[:, None] * area
    tl.store(out + where, acc, mask=(output < outputs)[:, None] & valid[None, :])


@triton.jit(do_not_specialize=["x", "gradient", "out", *SIZES, "part", "has_bias"])
def _weigh(
    x: tl.tensor,
    gradient: tl.tensor,
    out: tl.tensor,
    hosts: int,
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    kernel_height: int,
    kernel_width: int,
    top: int,
    left: int,
    samples: int,
    part: int,
    has_bias: int,
    BLOCK_OUT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """The gradient of a block of a host's weights over a part of the pixels; that of the bias as if it were one more weight, for a one."""
    host = tl.program_id(1)
    area, size = out_height * out_width, kernel_height * kernel_width
    blocks = tl.cdiv(outputs, BLOCK_OUT)
    output = tl.program_id(2) % blocks * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    place = tl.program_id(2) // blocks * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)
    first, stride = host * inputs * height * width, hosts * inputs * height * width
    one = (place == inputs * size)[:, None]
    acc = tl.zeros((BLOCK_OUT, BLOCK_PLACES), tl.float32)
    begin = tl.program_id(0) * part
    for begin_block in range(begin, min(begin + part, samples * area), BLOCK_PIXELS):
        pixel = begin_block + tl.arange(0, BLOCK_PIXELS)
        sample, at = pixel // area, pixel % area
        row, column, valid = at // out_width - top, at % out_width - left, pixel < samples * area
        where = ((sample * hosts + host) * outputs * area + at)[None, :] + output[:, None] * area
        g = tl.load(gradient + where, mask=(output < outputs)[:, None] & valid[None, :], other=0.0)
        seen = _windows(x, sample, row, column, place, valid, first, inputs, stride, height, width, kernel_height, kernel_width)
        seen = tl.where(one, 1.0, seen.to(tl.float32))
        acc = tl.dot(g.to(DTYPE), tl.trans(seen.to(DTYPE)), acc, input_precision=PRECISION)
    weights, row_of = inputs * size, (host * outputs + output)[:, None]
    where = tl.where(place[None, :] < weights, row_of * weights + place[None, :], hosts * outputs * weights + row_of)
    columns = hosts * outputs * (weights + has_bias)
    mask = (output < outputs)[:, None] & (place < weights + has_bias)[None, :]
    tl.store(out + tl.program_id(0).to(tl.int64) * columns + where, acc, mask=mask)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    """Convolutions with stride one of (S, N, C, H, W) by (N, O, C, kernel height, kernel width), as (S, N, O, ...).

    padding: rows and columns of zeros to the left, right, top and bottom. dtype: float32 or bfloat16, what products are taken in; sums
    are taken in float32. The result has that dtype, gradients have that of their tensors.
    """
    out: Tensor = _Convolution.apply(x, weight, bias, padding, dtype)
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        left, right, top, bottom = padding
        ctx.save_for_backward(x, weight)
        ctx.top, ctx.left, ctx.dtype = top, left, dtype
        space = (x.shape[3] + top + bottom - weight.shape[3] + 1, x.shape[4] + left + right - weight.shape[4] + 1)
        out = x.new_empty(*x.shape[:2], weight.shape[1], *space, dtype=dtype)
        _launch_convolve(x, weight, bias, out, top, left, dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(x)
            top, left = weight.shape[3] - 1 - ctx.top, weight.shape[4] - 1 - ctx.left
            _launch_convolve(gradient, weight, None, of_x, top, left, ctx.dtype, flipped=True)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_weight, of_bias = _gradients(x, gradient, weight, ctx.needs_input_grad[2], ctx.top, ctx.left, ctx.dtype)
        return of_x, of_weight, of_bias, None, None


def _launch_convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, top: int, left: int, dtype: torch.dtype, *, flipped: bool = False
) -> None:
    """Fill `out`; flipped: with the weights of the other direction, from output to input channels."""
    samples, hosts, inputs, height, width = x.shape
    outputs, (out_height, out_width), (kernel_height, kernel_width) = out.shape[2], out.shape[3:], weight.shape[3:]
    size = kernel_height * kernel_width
    # Of a weight: how far apart those of two outputs, two inputs and two places are, and where the first is.
    strides = (size, outputs * size, -1, size - 1) if flipped else (inputs * size, size, 1, 0)
    pixels = samples * out_height * out_width
    block, pixel_block, place_block, warps = _forward_blocks(outputs, pixels, inputs * size)
    with torch.cuda.device_of(x):
        _convolve[(triton.cdiv(pixels, pixel_block), hosts, triton.cdiv(outputs, block))](
            x,
            weight,
            weight if bias is None else bias.contiguous(),
            out,
            *(hosts, inputs, outputs, height, width, out_height, out_width, kernel_height, kernel_width, top, left, samples),
            *strides,
            int(bias is not None),
            block,
            pixel_block,
            place_block,
            *_product(dtype),
            num_warps=warps,
        )


def _gradients(
    x: Tensor, gradient: Tensor, weight: Tensor, has_bias: bool, top: int, left: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Of the weights and of the bias."""
    samples, hosts, inputs, height, width = x.shape
    outputs, (out_height, out_width), (kernel_height, kernel_width) = gradient.shape[2], gradient.shape[3:], weight.shape[3:]
    pixels, places = samples * out_height * out_width, inputs * kernel_height * kernel_width
    part = max(PART, triton.next_power_of_2(triton.cdiv(pixels, PARTS)))
    parts = triton.cdiv(pixels, part)
    block, pixel_block, place_block, warps = _gradient_blocks(outputs, places + has_bias)
    partial = x.new_empty(parts, hosts * outputs * (places + has_bias), dtype=torch.float32)
    with torch.cuda.device_of(x):
        _weigh[(parts, hosts, triton.cdiv(outputs, block) * triton.cdiv(places + has_bias, place_block))](
            x,
            gradient,
            partial,
            *(hosts, inputs, outputs, height, width, out_height, out_width, kernel_height, kernel_width, top, left, samples),
            part,
            int(has_bias),
            block,
            pixel_block,
            place_block,
            *_product(dtype),
            num_warps=warps,
        )
    flat = partial[0].to(weight.dtype) if parts == 1 else summed(partial, weight.dtype)
    return flat[: weight.numel()].view(weight.shape), flat[weight.numel() :].view(hosts, outputs) if has_bias else None


def _forward_blocks(outputs: int, pixels: int, places: int) -> tuple[int, int, int, int]:
    """Channels, pixels and places in a block, and warps."""
    block = min(BLOCK_OUT, max(16, triton.next_power_of_2(outputs)))
    return block, 128 if pixels >= 1 << 14 else 64, 16 if places <= 16 else 32, 4


def _gradient_blocks(outputs: int, places: int) -> tuple[int, int, int, int]:
    """Channels, pixels and places in a block, and warps: with the places that read least."""
    block = min(BLOCK_OUT, max(16, triton.next_power_of_2(outputs)))
    return block, 64, min((16, 32, 64), key=lambda each: triton.cdiv(places, each) * (each + block)), 4


def _product(dtype: torch.dtype) -> tuple[tl.dtype, str]:
    """What products are taken in, and how exactly."""
    if dtype is torch.float32:
        return tl.float32, "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    return tl.bfloat16, "ieee"
