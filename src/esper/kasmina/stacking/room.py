"""How much room storage has: exactly what is needed, or some to spare, which is remembered: shapes decide how sums are rounded."""

from __future__ import annotations

AHEAD_SEEDS, AHEAD_KINDS = 3, 2
"""Shares of the hosts, a third and a half, for which room is made ahead: with seeds of one blueprint at a slot, of one kind there."""


class Room:
    """Says how many rows to have, by name, for so many that are needed.

    spare: whether to have what there was while it is enough, else some more than needed, so that it stays enough for a while; otherwise
    exactly what is needed, and nothing is remembered. sizes: what was said so far, by full name: plain data, to be saved with a run.
    """

    def __init__(self, *, spare: bool, sizes: dict[str, int] | None = None, name: str = "") -> None:
        self.spare, self.name = spare, name
        self.sizes = {} if sizes is None else sizes

    def within(self, name: str) -> Room:
        """The same room, where names begin with this one."""
        return Room(spare=self.spare, sizes=self.sizes, name=f"{self.name}{name}/")

    def rows(self, name: str, needed: int) -> int:
        """How many rows to have."""
        if not self.spare:
            return needed
        full = self.name + name
        if needed > self.sizes.get(full, 0):
            self.sizes[full] = with_some_to_spare(needed)
        return self.sizes.get(full, 0)


def with_some_to_spare(needed: int) -> int:
    """At least as many, rounded up to a number of at most three binary digits and zeros."""
    step = 1 << max(0, needed.bit_length() - 3)
    return -(-needed // step) * step
