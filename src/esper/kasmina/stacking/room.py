"""How much room storage has: exactly what is needed, or some to spare."""

from __future__ import annotations

from collections.abc import Callable

AHEAD_SEEDS, AHEAD_KINDS = 3, 2
"""Shares of the hosts, a third and a half, for which room is made ahead: with seeds of one blueprint at a slot, of one kind there."""

Room = Callable[[int, int], int]
"""How many rows to have for so many that are needed, and so many that there are."""


def exact(needed: int, there: int) -> int:
    """As many as are needed."""
    return needed


def spare(needed: int, there: int) -> int:
    """What there is while it is enough, else some more than needed, so that it stays enough for a while."""
    if needed <= there:
        return there
    step = 1 << max(0, needed.bit_length() - 3)
    return -(-needed // step) * step
