"""Blueprints for token features (B, T, d) and, attention aside, plain vectors (B, d).

Each branch normalises first, without parameters of its own, so that its size does not depend on the scale of the host's features.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import SlotShape, blueprint
from esper.leyline.reports import Topology

TOKENS_AND_VECTORS = (Topology.TOKENS, Topology.VECTOR)
HEAD_COUNTS = (8, 6, 4, 3, 2)
"""Numbers of attention heads to choose from, most first."""
LEAST_HEAD_WIDTH = 16
"""Features that a head has at least; a narrower slot gets a single head."""


class SelfAttention(nn.Module):
    """Multi-head self-attention over (B, T, d) by torch's fused kernel; with `causal` a token sees itself and those before it."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.split = (3, heads, width // heads)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        # Queries, keys and values, each (B, heads, T, d / heads).
        stacked = self.qkv(x).unflatten(-1, self.split).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(stacked[0], stacked[1], stacked[2], is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


def head_count(width: int) -> int:
    """The largest usual number of heads that divides `width` and leaves each at least `LEAST_HEAD_WIDTH` features; else 1."""
    return next((heads for heads in HEAD_COUNTS if width % heads == 0 and width // heads >= LEAST_HEAD_WIDTH), 1)


def _normed(width: int, *layers: nn.Module) -> nn.Sequential:
    """A LayerNorm without parameters in front of `layers`."""
    return nn.Sequential(nn.LayerNorm(width, elementwise_affine=False), *layers)


def _lora(width: int, rank: int) -> nn.Module:
    """d -> rank -> d without biases: 2 * d * rank parameters. Both matrices are random, as gamma makes the birth an identity."""
    return _normed(width, nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))


def _mlp(width: int, expansion: int) -> nn.Module:
    """d -> e * d -> d with biases and a GELU: 2ed^2 + ed + d parameters."""
    return _normed(width, nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))


@blueprint("norm", TOKENS_AND_VECTORS, purpose="a layer norm: rescales the features, next to free")
def norm(shape: SlotShape) -> nn.Module:
    """The branch has 2d parameters."""
    return nn.LayerNorm(shape.width)


@blueprint("lora8", TOKENS_AND_VECTORS, purpose="a linear map of rank 8: a small correction")
def lora8(shape: SlotShape) -> nn.Module:
    """The branch has 16d parameters."""
    return _lora(shape.width, 8)


@blueprint("lora32", TOKENS_AND_VECTORS, purpose="a linear map of rank 32: a larger correction")
def lora32(shape: SlotShape) -> nn.Module:
    """The branch has 64d parameters."""
    return _lora(shape.width, 32)


@blueprint("attention", Topology.TOKENS, purpose="self-attention: moves information between tokens")
def attention(shape: SlotShape) -> nn.Module:
    """The branch has 4d^2 + 4d parameters."""
    return _normed(shape.width, SelfAttention(shape.width, head_count(shape.width), causal=shape.causal))


@blueprint("mlp_small", TOKENS_AND_VECTORS, purpose="an MLP of twice the width: new features from old ones")
def mlp_small(shape: SlotShape) -> nn.Module:
    """The branch has 4d^2 + 3d parameters."""
    return _mlp(shape.width, 2)


@blueprint("mlp", TOKENS_AND_VECTORS, purpose="an MLP of four times the width, as in a transformer block")
def mlp(shape: SlotShape) -> nn.Module:
    """The branch has 8d^2 + 5d parameters."""
    return _mlp(shape.width, 4)
