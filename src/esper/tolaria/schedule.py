"""The learning rate of an epoch."""

from __future__ import annotations

import math

from esper.tolaria.tasks import Member


def learning_rate(member: Member, epoch: int) -> float:
    """The rate during `epoch` (0 for the first of the budget): constant, then falling over the last `decay` share of the budget.

    Decay from the start starves seeds that begin late; a constant rate while growing, then decay, does not.
    """
    start = (1.0 - member.decay) * member.epochs
    if member.schedule == "constant" or epoch < start:
        return member.learning_rate
    left = (member.epochs - epoch) / (member.epochs - start)
    if member.schedule == "linear":
        return member.learning_rate * left
    return member.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))
