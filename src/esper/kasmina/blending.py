"""How a seed's output is combined with the host's features: isolated while it trains, blended by alpha later.

h: the host's features at the slot. s: the seed's output, of the same shape. a: alpha.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.layout import Layout
from esper.leyline.actions import Style
from esper.leyline.reports import Topology

ADDITIVE = frozenset({Style.LINEAR_ADD, Style.SIGMOID_ADD})
"""Styles in which a seed at full influence simply takes the place of the host's features."""

BOOST_STEP = 1.0
"""How far a boosted seed aims to move the features, as a share of their size."""

GATE_BIAS = 2.0
"""A new gate is nearly open: sigmoid(2) = 0.88."""


class StraightThrough(torch.autograd.Function):
    """The value of h, with the gradient of h + (s - stop_gradient(s)).

    The seed learns from the gradient at the host's output and changes nothing: the value is h bit for bit, -0.0 and all,
    so a NaN seed cannot reach the host. The copy lets a host overwrite its own features in place afterwards.
    """

    @staticmethod
    def forward(h: Tensor, s: Tensor, hosts: bool) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        ctx.seed_dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        return grad, grad.to(ctx.seed_dtype), None


class Boost(StraightThrough):
    """Straight through, with a pull that gives the seed's objective a minimum.

    The seed gets g + l (s - h), g being the gradient at the host's output and l = rms(g) / (BOOST_STEP rms(h)). It descends
    <g, s - h> + l/2 |s - h|^2, whose minimum s = h - g / l is a step down the host's own gradient, as long as BOOST_STEP of the features.
    So the seed learns to take that step for every input, which is gradient boosting, and cannot run away.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        h, s, ctx.hosts = inputs
        ctx.save_for_backward(h, s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        h, s = ctx.saved_tensors
        pull = _rms(grad, ctx.hosts) / (BOOST_STEP * _rms(h, ctx.hosts)).clamp(min=1e-12)
        return grad, (grad + pull * (s - h)).to(s.dtype), None


def _rms(x: Tensor, hosts: bool) -> Tensor:
    """Root mean square of a host's features; with `hosts` of each host's by itself, (S, N, ...) to (1, N, 1, ...)."""
    squares = x.to(torch.promote_types(x.dtype, torch.float32)).square()
    return (squares.mean([0, *range(2, x.dim())], keepdim=True) if hosts else squares.mean()).sqrt()


def isolated(h: Tensor, s: Tensor, *, pull: bool, hosts: bool = False) -> Tensor:
    """h, with the output's gradient handed to both h and s, and to s with a pull towards h if so asked. Shapes: all equal.

    hosts: whether these are the features of many hosts, (samples, hosts, ...).
    """
    result: Tensor = (Boost if pull else StraightThrough).apply(h, s, hosts)
    return result


class Gating(nn.Module):
    """A small learned gate: one value in (0, 1) for each position, from the features there.

    Per position rather than pooled, so that in a language model no token's gate can see a later token.
    """

    def __init__(self, topology: Topology, width: int) -> None:
        super().__init__()
        convolution = {Topology.MAP2D: nn.Conv2d, Topology.MAP1D: nn.Conv1d}
        self.score: nn.Module = convolution[topology](width, 1, 1) if topology in convolution else nn.Linear(width, 1)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.constant_(self.score.bias, GATE_BIAS)  # type: ignore[arg-type]

    def forward(self, h: Tensor) -> Tensor:
        return torch.sigmoid(self.score(h))


def combine(style: Style, h: Tensor, s: Tensor, a: Tensor | float) -> Tensor:
    """Blend s into h by `a`: h + a (s - h), or h (1 + a tanh(s - h)) for the multiplying style. GATED passes a * gate(h) as `a`."""
    if style is Style.LINEAR_MULTIPLY:
        return h * (1.0 + a * torch.tanh(s - h))
    return h + a * (s - h)


class Graft(nn.Module):
    """A seed as a permanent part of a network: what a slot computes at a fixed alpha, without any lifecycle.

    Harvest traces this into a plain graph module.
    """

    def __init__(self, seed: nn.Module, gating: nn.Module | None, style: Style, alpha: float, layout: Layout) -> None:
        super().__init__()
        self.seed, self.gating, self.style, self.alpha, self.layout = seed, gating, style, alpha, layout

    def forward(self, h: Tensor) -> Tensor:
        return graft(h, self.seed, self.gating, self.style, self.alpha, self.layout)


def graft(h: Tensor, seed: nn.Module, gating: nn.Module | None, style: Style, alpha: Tensor | float, layout: Layout) -> Tensor:
    """h with the seed blended in. An additive seed at alpha 1.0, given as a plain number, is the seed's output itself."""
    arranged = layout.arrange(h)
    s = layout.restore(seed(arranged), h)
    if gating is not None:
        return combine(style, h, s, alpha * layout.restore(gating(arranged), h))
    if style in ADDITIVE and isinstance(alpha, float) and alpha == 1.0:
        return s
    return combine(style, h, s, alpha)
