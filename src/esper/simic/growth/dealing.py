"""Dealing hosts out to workers: all of them wait for the slowest one in every epoch, so in every epoch each is to have as much to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

FLEET = 16.0
"""What a fleet costs by itself, in hosts: its kernels are started whether they serve one host or twenty."""
TOGETHER = 1.5
"""How many times the share of one worker a fleet may be before it is split."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a host asks of whoever trains it."""

    cost: float
    """Of one epoch, in seconds for a host that is trained alone, 1 for one in a fleet; only the ratios between hosts matter."""
    epochs: int
    """How many are left."""
    kind: str = ""
    """Hosts of one kind are trained as one fleet, best by the same worker; empty for one that is trained alone."""


def deal(hosts: Mapping[int, Load], carried: Sequence[Sequence[Load]]) -> dict[int, int]:
    """Which worker takes each host: worker by place. Depends on the loads and places alone, not on their order.

    carried: what each worker has to train already.

    Hosts that last longest are dealt first, of equal ones the most expensive, each to the worker that has least to do while the host
    lasts. So the hosts that still run in an epoch were dealt before all others, each to the worker with the smallest sum: in every
    epoch no two workers are further apart than the most expensive host that runs, unless what they carried was. Hosts of one kind are
    dealt together, unless they are many more than one worker's share.
    """
    shares = [list(loads) for loads in carried]
    dealt: dict[int, int] = {}
    crews = _crews(hosts, len(shares))
    for crew in sorted(crews, key=lambda crew: (-_lasts(hosts, crew), -sum(hosts[place].cost for place in crew), crew[0])):
        epochs, kind = _lasts(hosts, crew), hosts[crew[0]].kind
        meanwhile = [_work(share, epochs, kind) for share in shares]
        worker = meanwhile.index(min(meanwhile))
        dealt |= dict.fromkeys(crew, worker)
        shares[worker] += [hosts[place] for place in crew]
    return dealt


def _crews(hosts: Mapping[int, Load], workers: int) -> Iterator[list[int]]:
    """Places of hosts that are dealt together."""
    kinds: dict[str, list[int]] = {}
    for place, load in sorted(hosts.items()):
        if load.kind:
            kinds.setdefault(load.kind, []).append(place)
        else:
            yield [place]
    share = max(1, -(-len(hosts) // workers))
    for places in kinds.values():
        crews = 1 if len(places) <= TOGETHER * share else -(-len(places) // share)
        places.sort(key=lambda place: (-hosts[place].epochs, place))
        yield from (places[number::crews] for number in range(crews))


def _lasts(hosts: Mapping[int, Load], crew: Sequence[int]) -> int:
    return max(hosts[place].epochs for place in crew)


def _work(share: Sequence[Load], epochs: int, kind: str) -> float:
    """What a worker has to do in so many epochs, if it gets hosts of one more kind."""
    lasting: dict[str, int] = {kind: epochs} if kind else {}
    for load in share:
        if load.kind:
            lasting[load.kind] = max(min(load.epochs, epochs), lasting.get(load.kind, 0))
    return sum(load.cost * min(load.epochs, epochs) for load in share) + FLEET * sum(lasting.values())
