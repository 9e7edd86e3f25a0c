"""The settings of learning by forked search. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from esper.leyline.config import Count, NonNegative, Range, Share, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """Everything that can be set about learning from forks."""

    temperature: Annotated[float, Range(0.01)] = 2.0
    """Points of score by which one decision has to be ahead of another to be wanted e times as much as it was. Differences much smaller
    than this are taken for noise."""
    learning_rate: NonNegative = 1e-3
    """Of Adam; it falls to a tenth over the run."""
    epochs: Count = 4
    """Passes over the searches that are kept, after each round."""
    batch: Count = 64
    """Hosts in a step of the optimizer."""
    window: Count = 8
    """Rounds whose searches are learned from, the newest. Older ones were made where the policy no longer goes."""
    anchor: NonNegative = 0.1
    """How strongly the policy is held to what it did before the update, everywhere: the weight of KL(before || now)."""
    held_out: Share = 0.1
    """Share of each round's hosts that nothing is learned from, so that what is gained on them is no flattery. With a pool a host comes
    again, and in that round may be one to learn from."""
    gamma: Share = 0.995
    """Discount of the returns that the critic learns to expect."""
    weight_decay: NonNegative = 0.01
    """Of the critic alone."""
    max_gradient_norm: Annotated[float, Range(1e-6)] = 0.5
    """Largest norm of the actor's gradient, and of the critic's, each by itself; larger ones are clipped to it."""

    def __post_init__(self) -> None:
        check_ranges(self)
