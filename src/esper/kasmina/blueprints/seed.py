"""The seed: every blueprint's branch f, wrapped as x + gamma * f(x), so that it is born as the identity and still learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

if TYPE_CHECKING:
    from esper.kasmina.blueprints.registry import SlotShape

LAYER_SCALE = 1e-3
"""What every entry of a seed's gamma starts at: small enough for an identity, large enough for the branch to learn."""


class Seed(nn.Module):
    """A module that can grow in a slot: `x + gamma * branch(x)`, features of any shape in, the same shape out.

    gamma has one value a channel. It is small rather than zero, so that the branch has a gradient from the first step on.
    With `checkpoint` the branch's activations are not kept in training but computed again in the backward pass: less memory,
    more time, the same numbers. Tracing with torch.fx needs `checkpoint` off or the seed in eval mode.
    """

    def __init__(self, branch: nn.Module, shape: SlotShape, *, checkpoint: bool = False) -> None:
        super().__init__()
        self.branch = branch
        self.gamma = nn.Parameter(torch.full((shape.width, *[1] * shape.trailing), LAYER_SCALE))
        self.checkpoint = checkpoint

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoint and self.training:
            return x + self.gamma * recompute(self.branch, x, use_reentrant=False)
        return x + self.gamma * self.branch(x)

    def extra_repr(self) -> str:
        return f"width={self.gamma.shape[0]}" + (", checkpoint=True" if self.checkpoint else "")
