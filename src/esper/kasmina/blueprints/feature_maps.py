"""Blueprints for feature maps (B, C, H, W) and, with 1-d kernels, (B, C, T).

Norm and activation come before each convolution, so that a branch ends in a linear operation and can push either way.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import SlotShape, blueprint
from esper.leyline.reports import Topology

MAPS = (Topology.MAP2D, Topology.MAP1D)
GROUP_SIZE = 8
"""Channels that a group of GroupNorm holds, or a little more. A group of one value would be normalised to zero."""
REDUCTION = 4
"""How many times narrower the middle of `bottleneck` and `attention` is than the slot."""
LEAK = 0.1
"""Slope below zero of the activations that have no norm in front: a plain ReLU leaves half of the narrow `attention` seeds
(up to 4 channels) without any gradient when the features are themselves behind a ReLU, as their means are all positive."""


class GroupNorm(nn.Module):
    """GroupNorm for maps of any memory layout, with groups of about `GROUP_SIZE` channels.

    torch's GroupNorm ends the process on the CPU when the gradient of its weights is taken for a channels-last input that
    needs no gradient itself, which is what a seed in training gets. `contiguous()` does not help for one channel or 1x1 maps, whose
    strides fit both layouts. Flat maps (B, C, H*W) have one layout only.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(math.gcd(channels, max(1, channels // GROUP_SIZE)), channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(2)).view_as(x)


class SqueezeExcite(nn.Module):
    """Each channel times a weight in (0, 1) that depends on the means of all channels."""

    def __init__(self, shape: SlotShape) -> None:
        super().__init__()
        middle = max(1, shape.width // REDUCTION)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1) if shape.trailing == 2 else nn.AdaptiveAvgPool1d(1),
            _conv(shape, shape.width, middle, 1),
            nn.LeakyReLU(LEAK),
            _conv(shape, middle, shape.width, 1, bias=True),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x)


def _conv(shape: SlotShape, inputs: int, outputs: int, kernel: int, *, groups: int = 1, bias: bool = False) -> nn.Module:
    """A convolution that keeps the size of the map, with as many dimensions as the slot's features.

    Its weights keep the scale of what comes out of a ReLU. With torch's own, smaller ones a three-layer branch is born at a fifteenth of
    the size of its input, and gamma starts too small for it.
    """
    kind = nn.Conv2d if shape.trailing == 2 else nn.Conv1d
    layer = kind(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=bias)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


def _normed(width: int, *layers: nn.Module) -> nn.Sequential:
    """GroupNorm and ReLU in front of `layers`."""
    return nn.Sequential(GroupNorm(width), nn.ReLU(), *layers)


@blueprint("norm", MAPS, purpose="a group norm: rescales the features, next to free")
def norm(shape: SlotShape) -> nn.Module:
    """The branch has 2C parameters."""
    return GroupNorm(shape.width)


@blueprint("attention", MAPS, purpose="squeeze-excite: weighs channels by what the whole map shows")
def attention(shape: SlotShape) -> nn.Module:
    """The branch has 2Cr + C parameters, r = max(1, C // 4)."""
    return SqueezeExcite(shape)


@blueprint("depthwise", MAPS, purpose="a convolution for each channel, then a mix of the channels: space at a low price")
def depthwise(shape: SlotShape) -> nn.Module:
    """The branch has 9C + C^2 + 2C parameters (1-d: 3C + C^2 + 2C)."""
    width = shape.width
    return _normed(width, _conv(shape, width, width, 3, groups=width), _conv(shape, width, width, 1))


@blueprint("bottleneck", MAPS, purpose="narrow, convolve, widen: two more layers at a low price in wide slots")
def bottleneck(shape: SlotShape) -> nn.Module:
    """The branch has 2Cb + 9b^2 + 2C parameters (1-d: 3b^2), b = max(8, C // 4)."""
    width, middle = shape.width, max(8, shape.width // REDUCTION)
    return _normed(
        width,
        _conv(shape, width, middle, 1),
        nn.LeakyReLU(LEAK),
        _conv(shape, middle, middle, 3),
        nn.LeakyReLU(LEAK),
        _conv(shape, middle, width, 1),
    )


@blueprint("conv_small", MAPS, purpose="a convolution of size 1: mixes the channels at each place")
def conv_small(shape: SlotShape) -> nn.Module:
    """The branch has C^2 + 2C parameters."""
    return _normed(shape.width, _conv(shape, shape.width, shape.width, 1))


@blueprint("conv_light", MAPS, purpose="a convolution of size 3: one more ordinary layer")
def conv_light(shape: SlotShape) -> nn.Module:
    """The branch has 9C^2 + 2C parameters (1-d: 3C^2 + 2C)."""
    return _normed(shape.width, _conv(shape, shape.width, shape.width, 3))


@blueprint("conv_heavy", MAPS, purpose="two convolutions of size 3: a whole residual block")
def conv_heavy(shape: SlotShape) -> nn.Module:
    """The branch has 18C^2 + 4C parameters (1-d: 6C^2 + 4C)."""
    return nn.Sequential(conv_light(shape), conv_light(shape))
