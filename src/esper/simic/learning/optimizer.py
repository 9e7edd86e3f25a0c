"""The optimiser's step of every way to learn: each network's gradient is clipped by itself, and one that is not finite is not taken.

What is not finite is a FloatingPointError here; whoever knows which update or epoch it was makes a LearningError of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_optimizer(groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Adam over named groups of parameters, each with its own weight decay."""
    return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-5, fused=True)


def minimise(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float) -> None:
    """One step down the gradient of a loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    gradients = [[each.grad for each in group["params"] if each.grad is not None] for group in optimizer.param_groups]
    clipped_step(optimizer, [nn.utils.get_total_norm(each) for each in gradients], max_norm)


def clipped_step(optimizer: torch.optim.Optimizer, norms: Sequence[Tensor], max_norm: float) -> None:
    """One step with the gradients that the parameters have; `norms` holds that of each group's gradient, and none is stepped by more."""
    check_finite({f"the gradient of the {group['name']}": norm for group, norm in zip(optimizer.param_groups, norms, strict=True)})
    for group, norm in zip(optimizer.param_groups, norms, strict=True):
        nn.utils.clip_grads_with_norm_(group["params"], max_norm, norm)
    optimizer.step()


def check_finite(values: Mapping[str, Tensor]) -> None:
    """Raise FloatingPointError unless all values, of any shape, by what they are called, are finite. A device is waited for once."""
    finite = torch.stack([torch.isfinite(each).all() for each in values.values()]).tolist()
    for what, fine in zip(values, finite, strict=True):
        if not fine:
            raise FloatingPointError(f"{what} is not finite")
