"""PopArt: the critic learns returns of mean 0 and std 1, whatever the reward's scale, and its values do not jump when that changes.

After van Hasselt and others, "Learning values across many orders of magnitude" (2016): when the statistics move, the last layer is
corrected so that every value, brought back to the reward's scale, stays what it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.tamiyo.policy.network import ValueHead

MIN_STD = 0.01
"""Least standard deviation that returns are scaled by. Rewards are of order 1, so that a smaller one is noise."""


@torch.no_grad()
def follow_returns(head: ValueHead, returns: Tensor, weight: Tensor, rate: float) -> None:
    """Move the statistics towards those of the returns (weighted, any shape) and correct the head's output.

    rate: share of the new returns in the statistics; the first few updates count equally instead.
    """
    real = weight.double() / weight.double().sum()
    returns = returns.double()
    share = torch.clamp(1.0 / (head.updates + 1.0), min=rate)
    mean = head.mean + share * ((real * returns).sum() - head.mean)
    second_moment = head.second_moment + share * ((real * returns.square()).sum() - head.second_moment)
    std = (second_moment - mean.square()).clamp(min=MIN_STD**2).sqrt()
    weights, bias = head.output.weight, head.output.bias
    bias.copy_((bias * head.std + head.mean - mean) / std)
    weights.mul_((head.std / std).to(weights.dtype))
    head.mean.copy_(mean)
    head.second_moment.copy_(second_moment)
    head.std.copy_(std)
    head.updates.add_(1)
