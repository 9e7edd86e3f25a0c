"""Stacking rules: how a layer computes for many hosts at once, each with tensors of its own.

Hosts are in the batch, samples first: a batch of S samples of each of N hosts has rows s * N + n, so that (S * N, C, H, W) is in memory
what a grouped convolution takes, (S, N * C, H, W). Whatever holds no tensors runs on that batch as it is. A layer that does has a rule,
which sees its input as (S, N, ...), the layer with its tensors stacked, (N, *shape), and returns (S, N, ...):

    @stacking_rule(Scale)
    def scale(layer: Scale, x: Tensor) -> Tensor:
        return x * layer.weight
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from esper.kasmina.blueprints import Seed
from esper.kasmina.hosts import GPTHost
from esper.kasmina.stacking.errors import Unstackable
from esper.leyline.errors import in_a_line

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

RULES: dict[type[nn.Module], Rule] = {}
"""The rule of each class of layers."""


def stacking_rule(*kinds: type[nn.Module]) -> Callable[[R], R]:
    """Register how layers of these classes compute for many hosts; the later of two rules for one class counts.

    The rule is called with the layer, its tensors stacked as (hosts, *shape), and with what its forward pass gets: tensors of a batch as
    (samples, hosts, ...). It returns the same layout. Modules inside the layer are called with the two leading dimensions as one. A
    layer without a rule runs through `torch.vmap`, which is slower.
    """

    def register(rule: R) -> R:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


KERNEL_DTYPES = (torch.float32, torch.bfloat16)
"""What our own kernels compute in; anything else is left to torch."""
LARGEST = 2**31
"""Elements of a tensor, below which our kernels count."""
SMALL = 2**27
"""Multiplications of a convolution of all hosts, up to which ours is faster than cuDNN's."""
FEW = 8
"""Hosts up to which cuDNN's grouped convolution in float32 is faster with the channels last, which it would have to turn itself."""


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of the module's class, or of one that it inherits its forward pass from."""
    for kind in type(module).__mro__:
        if kind in RULES:
            return RULES[kind] if type(module).forward is kind.forward else None
    return None


@stacking_rule(nn.Linear)
def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    samples, hosts = x.shape[:2]
    columns = x.transpose(0, 1).reshape(hosts, -1, x.shape[-1]).transpose(1, 2)
    # With the weight on the left, its gradient is laid out as it is itself, and need not be copied.
    out = torch.bmm(layer.weight, columns) if layer.bias is None else torch.baddbmm(layer.bias.unsqueeze(2), layer.weight, columns)
    return out.transpose(1, 2).unflatten(1, (samples, *x.shape[2:-1])).transpose(0, 1)


@stacking_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    zeros, channels_last = _zeros_around(layer), _with_channels_last(layer, x)
    if zeros is not None and (dtype := _kernel_dtype(x, layer.weight)) is not None and _pays(layer, x, zeros, channels_last):
        from esper.kasmina.stacking.kernels.convolution import convolved

        return convolved(x, layer.weight, layer.bias, zeros, dtype)
    if x.is_cuda and _pointwise(layer):
        return _mixed(layer, x)
    hosts, merged, padding = x.shape[1], x.flatten(1, 2), layer.padding
    if layer.padding_mode != "zeros":
        merged, padding = F.pad(merged, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), 0  # type: ignore[assignment]
    if channels_last:
        merged = merged.contiguous(memory_format=torch.channels_last)
    bias = None if layer.bias is None else layer.bias.flatten()
    convolve: Any = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[merged.dim()]
    out = convolve(merged, layer.weight.flatten(0, 1), bias, layer.stride, padding, layer.dilation, layer.groups * hosts)
    return out.contiguous().unflatten(1, (hosts, -1))


def _with_channels_last(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether cuDNN is given the channels last.

    Forward and backward on an H200, float32, 128 samples, 3x3, microseconds, channels first and last: 2 hosts, 8 to 8 channels at 32x32 438
    and 194, 16 to 16 at 16x16 346 and 87, 32 to 32 at 8x8 196 and 73; 4 hosts 263 and 272, 406 and 151, 266 and 97; 16 hosts 611 and
    805, 351 and 456, 202 and 246. In bfloat16 they are alike.
    """
    dense = x.dim() == 5 and layer.groups == 1 and not _pointwise(layer)
    return dense and x.is_cuda and x.shape[1] <= FEW and x.dtype is torch.float32 and not torch.is_autocast_enabled("cuda")


def _zeros_around(layer: nn.Conv2d) -> tuple[int, int, int, int] | None:
    """Columns and rows of zeros to the left, right, top and bottom; None for a convolution that our kernel does not do."""
    if (
        len(layer.kernel_size) != 2
        or layer.stride != (1, 1)
        or layer.dilation != (1, 1)
        or layer.groups != 1
        or layer.padding_mode != "zeros"
    ):
        return None
    # As torch has it, "same" and an even kernel put one more to the right and to the bottom.
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    return left, right, top, bottom


def _pays(layer: nn.Conv2d, x: Tensor, zeros: tuple[int, int, int, int], channels_last: bool) -> bool:
    """Whether our kernels are faster than cuDNN's grouped convolution, which has about 80 microseconds of fixed costs, or than a product.

    Forward and backward on an H200, microseconds, theirs and ours, which is the sum of kernels measured one by one (the gradient of the
    input as long as forward, where that is a product). 32 hosts, 64 samples, 3x3: 1 to 8 channels at 8x8 37 and 24, 8 to 8 at 8x8 96 and
    82, 16 to 16 at 4x4 81 and 52, 32 to 32 at 2x2 87 and 49; 1x1, where theirs is a product: 8 to 8 at 8x8 35 and 30, 32 to 8 at 2x2 30
    and 15. 64 hosts, 128 samples, 3x3 at 32x32: 3 to 8 1853 and 1169, in bfloat16 1520 and 1023; but 8 to 8 2113 and 4115.
    """
    samples, hosts, channels, height, width = x.shape
    left, right, top, bottom = zeros
    rows, columns = height + top + bottom - layer.kernel_size[0] + 1, width + left + right - layer.kernel_size[1] + 1
    outputs = samples * hosts * layer.out_channels * rows * columns
    if not 0 < outputs < LARGEST or min(rows, columns) < 1:
        return False
    # Against channels last ours is faster only with few of them: 2 hosts as above 169 at 32x32, 137 at 16x16, 206 at 8x8.
    most = SMALL // 4 if channels_last and channels > 8 else SMALL
    small = outputs * channels * layer.kernel_size[0] * layer.kernel_size[1] <= most
    return small or (channels <= 4 and layer.out_channels <= 8 and not _pointwise(layer))


def _pointwise(layer: nn.Conv2d) -> bool:
    """Whether a convolution mixes the channels at each place and does nothing else."""
    ones, zeros = (1,) * len(layer.kernel_size), (0,) * len(layer.kernel_size)
    return layer.kernel_size == ones and layer.stride == ones and layer.padding in (zeros, "valid", "same") and layer.groups == 1


def _mixed(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A pointwise convolution as a product, which on a GPU takes a third of the kernels of a grouped convolution."""
    samples, _, _, *space = x.shape
    weight = layer.weight.flatten(2).expand(samples, *layer.weight.shape[:3])  # (S, N, O, C)
    out = torch.matmul(weight, x.flatten(3))
    if layer.bias is not None:
        out = out + layer.bias.unsqueeze(-1)
    return out.unflatten(3, space)


def _kernel_dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """What a convolution computes in, autocast or not; None if that, or where it runs, is nothing for our kernels."""
    if not has_kernels(x) or weight.dtype not in KERNEL_DTYPES:
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype if x.dtype == weight.dtype else None
    return dtype if dtype in KERNEL_DTYPES else None


def has_kernels(x: Tensor) -> bool:
    """Whether our own kernels compute with such tensors: on a GPU that can, under a torch that comes with Triton (not so on Windows)."""
    return x.is_cuda and x.dtype in KERNEL_DTYPES and 0 < x.numel() < LARGEST and _compiles(x.device)


@cache
def _compiles(device: torch.device) -> bool:
    """Whether Triton compiles for a device, which takes a C compiler too: tried once, on the smallest of our kernels."""
    if importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from esper.kasmina.stacking.kernels.sums import summed

        summed(torch.ones(2, 2, device=device), torch.float32)
    except Exception as error:  # whatever a compiler, or none, may raise
        why = f"kernels for many hosts cannot be compiled here ({in_a_line(error)})"
        warnings.warn(f"{why}; torch's own are used, which take longer", stacklevel=2)
        return False
    return True


@stacking_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    learns = layer.training and layer.track_running_stats
    if layer.momentum is None:
        raise Unstackable("it averages its statistics over all batches (momentum=None), and hosts may have seen different numbers of them")
    if learns and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    flat = [None if each is None else each.flatten() for each in (layer.running_mean, layer.running_var, layer.weight, layer.bias)]
    mean, var, weight, bias = flat
    if not learns and layer.training:
        mean = var = None
    training = layer.training or mean is None
    out = F.batch_norm(x.flatten(1, 2), mean, var, weight, bias, training, layer.momentum, layer.eps)
    return out.unflatten(1, x.shape[1:3])


@stacking_rule(nn.GroupNorm)
def group_norm(layer: nn.GroupNorm, x: Tensor) -> Tensor:
    if layer.affine and has_kernels(x):
        from esper.kasmina.stacking.kernels.group_norm import fits, normalised

        if fits(x, layer.num_groups):
            dtype = torch.float32 if torch.is_autocast_enabled("cuda") else x.dtype
            return normalised(x, layer.num_groups, layer.weight, layer.bias, layer.eps, dtype)
    weight, bias = (layer.weight.flatten(), layer.bias.flatten()) if layer.affine else (None, None)
    return F.group_norm(x.flatten(1, 2), layer.num_groups * x.shape[1], weight, bias, layer.eps).view(x.shape)


def max_pool(layer: nn.MaxPool2d, x: Tensor) -> Any:
    """A pool holds no tensors, and takes the batch as it is, (S * N, C, H, W); but that which halves a map is faster by our kernel."""
    halves = (layer.kernel_size, layer.stride, layer.padding, layer.dilation) in ((2, 2, 0, 1), ((2, 2), (2, 2), (0, 0), (1, 1)))
    if halves and not layer.return_indices and has_kernels(x) and x.shape[-1] % 2 == x.shape[-2] % 2 == 0:
        from esper.kasmina.stacking.kernels.max_pool import halved

        return halved(x)
    return nn.MaxPool2d.forward(layer, x)


@stacking_rule(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    out = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
    return _affine(out, layer.weight, layer.bias, len(layer.normalized_shape))


@stacking_rule(nn.RMSNorm)
def rms_norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    return _affine(F.rms_norm(x, layer.normalized_shape, None, layer.eps), layer.weight, None, len(layer.normalized_shape))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, trailing: int) -> Tensor:
    """x (S, N, ..., *shape) times weights (N, *shape), plus biases; `trailing` is the number of dimensions in shape."""

    def shaped(each: Tensor) -> Tensor:
        return each.view(each.shape[0], *[1] * (x.dim() - 2 - trailing), *each.shape[1:])

    if weight is not None:
        x = x * shaped(weight)
    return x if bias is None else x + shaped(bias)


@stacking_rule(nn.Embedding)
def embedding(layer: nn.Embedding, tokens: Tensor) -> Tensor:
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise Unstackable("it is an embedding with padding_idx, max_norm, scale_grad_by_freq or sparse gradients")
    hosts, vocabulary = layer.weight.shape[:2]
    first = torch.arange(0, hosts * vocabulary, vocabulary, device=tokens.device).view(-1, *[1] * (tokens.dim() - 2))
    return F.embedding(tokens + first, layer.weight.flatten(0, 1))


@stacking_rule(Seed)
def seed(layer: Seed, x: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    branch = recompute(layer.branch, rows, use_reentrant=False) if layer.checkpoint and layer.training else layer.branch(rows)
    return grown(x, layer.gamma, branch.view(x.shape))


def grown(x: Tensor, gamma: Tensor, branch: Tensor) -> Tensor:
    """What seeds make of their inputs, given the outputs of their branches, (S, N, ...) both."""
    # (N, C, 1, 1) beside (S, N, C, H, W), and (N, d) beside (S, N, T, d).
    return x + gamma.view(gamma.shape[0], *[1] * (x.dim() - 1 - gamma.dim()), *gamma.shape[1:]) * branch


@stacking_rule(GPTHost)
def gpt_host(layer: GPTHost, tokens: Tensor) -> Tensor:
    samples, hosts, length = tokens.shape
    x = layer.embedding(tokens.flatten(0, 1)).unflatten(0, (samples, hosts)) + layer.position.weight[:, :length]
    x = layer.norm(layer.blocks(layer.dropout(x.flatten(0, 1)))).unflatten(0, (samples, hosts))
    # The embedding is the head as well: (N, V, d) by (N, d, S * T).
    columns = x.transpose(0, 1).reshape(hosts, samples * length, -1).transpose(1, 2)
    logits = torch.bmm(layer.embedding.weight, columns).transpose(1, 2)
    return logits.unflatten(1, (samples, length)).transpose(0, 1)
