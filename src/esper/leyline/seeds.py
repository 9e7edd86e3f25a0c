"""Which host seeds are for what: those that a policy practises on, those that choices are made by, and those that it is examined on.

A seed decides a host's member, weights, data order and augmentation. Whoever has seen a host, or has chosen a setting by it, knows
something of it, so a figure on that host is flattered. The ranges never meet, and `require` keeps each to its purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from esper.leyline.errors import ConfigError


class Purpose(Enum):
    """What a host is used for; the value is the first seed of its range."""

    DEVELOPMENT = 0
    """Looking around, tuning settings, choosing between policies: what every command uses by itself."""
    TRAINING = 1_000_000
    """Hosts that a policy practises on by PPO."""
    EXAMINATION = 2_000_000_000
    """Hosts of `esper compare` alone, for claims."""

    @property
    def first(self) -> int:
        """The first seed of the range."""
        return self.value

    def seeds(self, count: int, offset: int = 0) -> range:
        """So many seeds of the range, from the first one or further on."""
        return range(self.value + offset, self.value + offset + count)


def purpose_of(seed: int) -> Purpose:
    """What a host seed is for."""
    return max((purpose for purpose in Purpose if purpose.value <= seed), key=lambda purpose: purpose.value)


def require(purposes: Iterable[Purpose], seeds: Iterable[int], *, who: str) -> None:
    """Raise ConfigError for a seed that is for something else."""
    allowed = tuple(purposes)
    for seed in seeds:
        found = purpose_of(seed)
        if found not in allowed:
            expected = " or ".join(f"{each.name.lower()} seeds, from {each.first} on" for each in allowed)
            raise ConfigError(f"host seed {seed} is for {found.name.lower()}; {who} takes {expected}")
