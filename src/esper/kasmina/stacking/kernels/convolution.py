"""Convolutions of many hosts in one kernel, one for the gradient of the input, and two for that of the weights.

There are two kernels forward. Where pixels are many and channels few, a thread holds all outputs of some pixels, P = S * H * W of them side
by side, and goes through the places of the window and the channels. Where pixels are few, a product is taken of (O, K) and (K, P), with
K = C * kernel height * kernel width. The gradient of the input is the same with weights that are transposed and flipped. That of the
weights is a product, (O, P) by (P, K), over parts of P, which are then summed.

Products of float32 are as exact as float32 is, each as three of TF32: hosts in a fleet are to learn what they learn alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.kasmina.stacking.kernels.sums import summed

MANY = 2048
"""Pixels of a host, from which on each is computed by itself. Forward on an H200, 32 hosts, 64 samples, microseconds by itself and as a
product: 8 to 8 channels at 8x8 23 and 38, 8 to 16 at 4x4 31 and 11, 16 to 32 at 2x2 45 and 10."""
PARTS = 64
"""How many parts the gradient of the weights is taken over, or fewer."""
STEPS = 8
"""Blocks of pixels in a part, at least."""

OUTSIDE = tl.constexpr(-(1 << 29))
"""A place that is in no map, not even if two of them are added."""
SIZES = ["hosts", "inputs", "outputs", "height", "width", "out_height", "out_width"]
SIZES += ["kernel_height", "kernel_width", "top", "left", "samples"]
ARGUMENTS = ["x", "weight", "bias", "out", *SIZES, "out_stride", "in_stride", "place_stride", "weight_first", "has_bias"]


@triton.jit(do_not_specialize=ARGUMENTS)
def _by_pixel(
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
    DTYPE: tl.constexpr,
) -> None:
    """A block of pixels of a host, for a block of output channels."""
    host = tl.program_id(1)
    area, plane = out_height * out_width, height * width
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[None, :]
    output = tl.program_id(2) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[:, None]
    sample, at = pixel // area, pixel % area
    row, column, valid = at // out_width - top, at % out_width - left, pixel < samples * area
    # Offsets of pixels and outputs are kept, in 32 bits, and one address for all of them moves: registers are what is scarce.
    corner = sample * hosts * inputs * plane + row * width + column
    x += host * inputs * plane
    weight += host * inputs * outputs * kernel_height * kernel_width + weight_first
    acc = tl.zeros((BLOCK_OUT, BLOCK_PIXELS), tl.float32)
    for place in range(kernel_height * kernel_width):
        below, right = place // kernel_width, place % kernel_width
        # As unsigned numbers, those below zero are large.
        inside = valid & ((row + below).to(tl.uint32) < height) & ((column + right).to(tl.uint32) < width)
        x_at, weight_at = x + below * width + right, weight + place * place_stride
        for _ in range(inputs):
            seen = tl.load(x_at + corner, mask=inside, other=0.0).to(DTYPE).to(tl.float32)
            w = tl.load(weight_at + output * out_stride, mask=output < outputs, other=0.0).to(DTYPE).to(tl.float32)
            acc += w * seen
            x_at += plane
            weight_at += in_stride
    if has_bias != 0:
        acc += tl.load(bias + host * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)
    where = (sample * hosts + host) * outputs * area + at + output * area
    tl.store(out + where, acc, mask=(output < outputs) & valid)


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
    mask = (row[None, :] + below[:, None]).to(tl.uint32) < height
    mask &= (column[None, :] + right[:, None]).to(tl.uint32) < width
    offset = (first + sample * sample_stride + row * width + column)[None, :] + ((channel * height + below) * width + right)[:, None]
    return tl.load(x + offset, mask=mask, other=0.0)


@triton.jit(do_not_specialize=ARGUMENTS)
def _by_product(
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
) -> None:
    """The same, as a product with the windows of the pixels."""
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
        acc = tl.dot(w.to(DTYPE), seen.to(DTYPE), acc, input_precision="tf32x3")
    if has_bias != 0:
        acc += tl.load(bias + host * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
    where = ((sample * hosts + host) * outputs * area + at)[None, :] + output[:, None] * area
    tl.store(out + where, acc, mask=(output < outputs)[:, None] & valid[None, :])


@triton.jit(do_not_specialize=["x", "gradient", "out", *SIZES, "together", "steps"])
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
    together: int,
    steps: int,
    HAS_BIAS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    DTYPE: tl.constexpr,
) -> None:
    """The gradient of a block of a host's weights over a part of the pixels; that of the bias as if it were one more weight, for a one.

    A part is a block of pixels of a sample, or of as many whole samples as fit in, and that for some steps, so that where pixels lie is
    found out once. together: samples in a block. steps: blocks of samples in a part.
    """
    host = tl.program_id(1)
    area, size, plane = out_height * out_width, kernel_height * kernel_width, height * width
    weights = inputs * size
    blocks = tl.cdiv(outputs, BLOCK_OUT)
    output = (tl.program_id(2) % blocks * BLOCK_OUT + tl.arange(0, BLOCK_OUT))[:, None]
    place = (tl.program_id(2) // blocks * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES))[:, None]
    area_blocks = tl.cdiv(area, BLOCK_PIXELS)
    pixel = (tl.program_id(0) % area_blocks * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS))[None, :]
    nth, at = pixel // area, pixel % area
    row, column = at // out_width - top, at % out_width - left
    channel, inside = place // size, place % size
    below, right = inside // kernel_width, inside % kernel_width
    mask = (place < weights) & ((row + below).to(tl.uint32) < height)
    mask &= (column + right).to(tl.uint32) < width
    of_x = nth * hosts * inputs * plane + (row + below) * width + column + right + channel * plane
    of_gradient = nth * hosts * outputs * area + at + output * area
    one = (place == weights) & (pixel >= 0)
    acc = tl.zeros((BLOCK_OUT, BLOCK_PLACES), tl.float32)
    first = tl.program_id(0) // area_blocks * steps * together
    for sample in range(first, min(first + steps * together, samples), together):
        # A block holds so many samples and no more, or one of several blocks of a sample.
        valid = (nth < together) & (nth < samples - sample)
        g = tl.load(gradient + (sample * hosts + host) * outputs * area + of_gradient, mask=(output < outputs) & valid, other=0.0)
        seen = tl.load(x + (sample * hosts + host) * inputs * plane + of_x, mask=mask & valid, other=0.0)
        if HAS_BIAS:
            seen = tl.where(one, 1.0, seen)
        acc = tl.dot(g.to(DTYPE), tl.trans(seen.to(DTYPE)), acc, input_precision="tf32x3")
    place, row_of = tl.trans(place), host * outputs + output
    where = tl.where(place < weights, row_of * weights + place, hosts * outputs * weights + row_of)
    columns = hosts * outputs * (weights + HAS_BIAS)
    mask = (output < outputs) & (place < weights + HAS_BIAS)
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
        _convolve(x, weight, bias, out, top, left, dtype)
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
            _convolve(gradient, weight, None, of_x, top, left, ctx.dtype, flipped=True)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_weight, of_bias = _gradients(x, gradient, weight, ctx.needs_input_grad[2], ctx.top, ctx.left, ctx.dtype)
        return of_x, of_weight, of_bias, None, None


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, top: int, left: int, dtype: torch.dtype, *, flipped: bool = False
) -> None:
    """Fill `out`; flipped: with the weights of the other direction, from output to input channels."""
    samples, hosts, inputs, height, width = x.shape
    outputs, (out_height, out_width), (kernel_height, kernel_width) = out.shape[2], out.shape[3:], weight.shape[3:]
    size = kernel_height * kernel_width
    # Of a weight: how far apart those of two outputs, two inputs and two places are, and where the first is.
    strides = (size, outputs * size, -1, size - 1) if flipped else (inputs * size, size, 1, 0)
    pixels = samples * out_height * out_width
    arguments = (
        x,
        weight,
        weight if bias is None else bias.contiguous(),
        out,
        *(hosts, inputs, outputs, height, width, out_height, out_width, kernel_height, kernel_width, top, left, samples),
        *strides,
        int(bias is not None),
    )
    with torch.cuda.device_of(x):
        if pixels >= MANY:
            block = min(16, max(4, triton.next_power_of_2(outputs)))
            pixel_block = 512 if block == 16 or pixels < 1 << 14 else 1024
            grid = triton.cdiv(pixels, pixel_block), hosts, triton.cdiv(outputs, block)
            _by_pixel[grid](*arguments, block, pixel_block, _in(dtype))
        else:
            block, pixel_block = _channel_block(outputs), 64
            grid = triton.cdiv(pixels, pixel_block), hosts, triton.cdiv(outputs, block)
            _by_product[grid](*arguments, block, pixel_block, 16 if inputs * size <= 16 else 32, _in(dtype))


def _gradients(
    x: Tensor, gradient: Tensor, weight: Tensor, has_bias: bool, top: int, left: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Of the weights and of the bias."""
    samples, hosts, inputs, height, width = x.shape
    outputs, (out_height, out_width), (kernel_height, kernel_width) = gradient.shape[2], gradient.shape[3:], weight.shape[3:]
    area, places = out_height * out_width, inputs * kernel_height * kernel_width
    block, pixel_block = _channel_block(outputs), 64
    place_block = min((16, 32, 64), key=lambda each: triton.cdiv(places + has_bias, each) * (each + block))  # that which reads least
    together, area_blocks = max(1, pixel_block // area), triton.cdiv(area, pixel_block)
    sample_blocks = triton.cdiv(samples, together)
    steps = max(STEPS, triton.cdiv(area_blocks * sample_blocks, PARTS))
    parts = area_blocks * triton.cdiv(sample_blocks, steps)
    partial = x.new_empty(parts, hosts * outputs * (places + has_bias), dtype=torch.float32)
    with torch.cuda.device_of(x):
        _weigh[(parts, hosts, triton.cdiv(outputs, block) * triton.cdiv(places + has_bias, place_block))](
            x,
            gradient,
            partial,
            *(hosts, inputs, outputs, height, width, out_height, out_width, kernel_height, kernel_width, top, left, samples),
            together,
            steps,
            has_bias,
            block,
            pixel_block,
            place_block,
            _in(dtype),
        )
    flat = partial[0].to(weight.dtype) if parts == 1 else summed(partial, weight.dtype)
    return flat[: weight.numel()].view(weight.shape), flat[weight.numel() :].view(hosts, outputs) if has_bias else None


def _channel_block(outputs: int) -> int:
    """Output channels in a block of a product, which takes 16 at least."""
    return min(64, max(16, triton.next_power_of_2(outputs)))


def _in(dtype: torch.dtype) -> tl.dtype:
    """As Triton calls it."""
    return tl.float32 if dtype is torch.float32 else tl.bfloat16
