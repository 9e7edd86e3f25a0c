"""The optimiser's step of every way to learn: each network's gradient is clipped by itself, and one that is not finite is not taken.

What is not finite is a FloatingPointError here; whoever knows which update or epoch it was makes a LearningError of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_optimizer(groups: list[dict[str, Any]], learning_rate: float, *, captured: bool = False) -> torch.optim.Optimizer:
    """Adam over named groups of parameters, each with its own weight decay. captured: its steps are, see `clipped_step`."""
    if not captured:
        return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-5, fused=True)
    # On the device, where what was captured finds one that has changed; in single precision, which is how the kernel reads it.
    rate = torch.tensor(learning_rate, dtype=torch.float32, device=groups[0]["params"][0].device)
    return torch.optim.AdamW(groups, lr=rate, eps=1e-5, fused=True, capturable=True)


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """From here on the optimiser steps at this rate."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state as a checkpoint holds it: the same whether steps are captured or not."""
    state = optimizer.state_dict()
    return state | {"param_groups": [group | {"lr": float(group["lr"]), "capturable": False} for group in state["param_groups"]]}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Go on from a saved state, on whatever device it was made."""
    own = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, (rate, capturable) in zip(optimizer.param_groups, own, strict=True):
        if isinstance(rate, Tensor):
            group["lr"] = rate.fill_(group["lr"])
        group["capturable"] = capturable


def minimise(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float) -> None:
    """One step down the gradient of a loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    gradients = [[each.grad for each in group["params"] if each.grad is not None] for group in optimizer.param_groups]
    clipped_step(optimizer, [nn.utils.get_total_norm(each) for each in gradients], max_norm)


def clipped_step(optimizer: torch.optim.Optimizer, norms: Sequence[Tensor], max_norm: float) -> None:
    """One step with the gradients that the parameters have; `norms` holds that of each group's gradient, and none is stepped by more.

    A step that is captured cannot wait for the device: if a norm is not finite it is left out there, and `check_gradients` tells later.
    """
    found = torch.stack(list(norms))
    if optimizer.param_groups[0]["capturable"]:
        optimizer.found_inf = (~found.isfinite().all()).float()  # type: ignore[attr-defined]  # read by torch's step
    else:
        check_gradients(optimizer, found)
    for group, norm in zip(optimizer.param_groups, norms, strict=True):
        nn.utils.clip_grads_with_norm_(group["params"], max_norm, norm)
    optimizer.step()


def check_gradients(optimizer: torch.optim.Optimizer, norms: Tensor) -> None:
    """Raise FloatingPointError unless the norms [..., groups] of each group's gradient are finite."""
    names = (group["name"] for group in optimizer.param_groups)
    check_finite({f"the gradient of the {name}": own for name, own in zip(names, norms.unbind(-1), strict=True)})


def check_finite(values: Mapping[str, Tensor]) -> None:
    """Raise FloatingPointError unless all values, of any shape, by what they are called, are finite. A device is waited for once."""
    finite = torch.stack([torch.isfinite(each).all() for each in values.values()]).tolist()
    for what, fine in zip(values, finite, strict=True):
        if not fine:
            raise FloatingPointError(f"{what} is not finite")
