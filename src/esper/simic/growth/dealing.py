"""Dealing hosts out to workers: all of them wait for the slowest one in every epoch, so in every epoch each is to have as much to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What a host asks of whoever trains it."""

    cost: float
    """Of one epoch, in seconds; only the ratios between hosts matter."""
    epochs: int
    """How many are left."""


def deal(hosts: Mapping[int, Load], carried: Sequence[Sequence[Load]]) -> dict[int, int]:
    """Which worker takes each host: worker by place. Depends on the loads and places alone, not on their order.

    carried: what each worker has to train already.

    Hosts that last longest are dealt first, of equal ones the most expensive, each to the worker that has least to do while the host
    lasts. So the hosts that still run in an epoch were dealt before all others, each to the worker with the smallest sum: in every
    epoch no two workers are further apart than the most expensive host that runs, unless what they carried was.
    """
    shares = [list(loads) for loads in carried]
    dealt = {}
    for place, load in sorted(hosts.items(), key=lambda item: (-item[1].epochs, -item[1].cost, item[0])):
        meanwhile = [sum(other.cost * min(other.epochs, load.epochs) for other in share) for share in shares]
        dealt[place] = meanwhile.index(min(meanwhile))
        shares[dealt[place]].append(load)
    return dealt
