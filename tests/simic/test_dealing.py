"""Hosts dealt out to workers: each once, the same in any order, and near equal sums in every epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from esper.simic.growth.dealing import Load, deal

LOADS = st.builds(Load, st.floats(0.01, 10), st.sampled_from([1, 15, 25, 40]))
STACKED = st.builds(Load, st.just(1.0), st.sampled_from([1, 15, 25, 40]), st.sampled_from(["", "a", "b", "c"]))
HOSTS = st.dictionaries(st.integers(0, 100), LOADS, max_size=40)
WORKERS = st.integers(1, 9)


def nothing(workers: int) -> list[list[Load]]:
    return [[] for _ in range(workers)]


@given(HOSTS | st.dictionaries(st.integers(0, 100), STACKED), st.lists(st.lists(LOADS | STACKED, max_size=3), min_size=1, max_size=6))
def test_every_host_goes_to_one_worker(hosts: dict[int, Load], carried: list[list[Load]]) -> None:
    dealt = deal(hosts, carried)
    assert dealt.keys() == hosts.keys()
    assert set(dealt.values()) <= set(range(len(carried)))


@given(HOSTS | st.dictionaries(st.integers(0, 100), STACKED), WORKERS, st.randoms())
def test_the_order_of_the_hosts_plays_no_part(hosts: dict[int, Load], workers: int, random) -> None:
    shuffled = list(hosts.items())
    random.shuffle(shuffled)
    assert deal(dict(shuffled), nothing(workers)) == deal(hosts, nothing(workers))


@given(HOSTS, WORKERS)
def test_in_every_epoch_no_worker_has_much_more_to_do_than_another(hosts: dict[int, Load], workers: int) -> None:
    dealt = deal(hosts, nothing(workers))
    for epoch in range(max((load.epochs for load in hosts.values()), default=0)):
        running = {place: load.cost for place, load in hosts.items() if load.epochs > epoch}
        sums = [sum(cost for place, cost in running.items() if dealt[place] == worker) for worker in range(workers)]
        largest = max(running.values())
        assert max(sums) - min(sums) <= largest + 1e-9
        # Graham's bound for dealing from a list.
        assert max(sums) <= sum(sums) / workers + (1 - 1 / workers) * largest + 1e-9


@given(st.integers(1, 9), st.integers(1, 5))
def test_equal_hosts_are_dealt_evenly(workers: int, each: int) -> None:
    dealt = list(deal(dict.fromkeys(range(workers * each), Load(1.0, 25)), nothing(workers)).values())
    assert all(dealt.count(worker) == each for worker in range(workers))


def test_a_worker_is_judged_by_what_it_has_to_do_while_the_host_lasts() -> None:
    soon_free, busy = [Load(5.0, 2)], [Load(1.0, 40)]
    assert deal({7: Load(1.0, 40)}, [soon_free, busy]) == {7: 0}
    assert deal({7: Load(1.0, 2)}, [soon_free, busy]) == {7: 1}


def kinds(*counts: int) -> dict[int, Load]:
    """So many hosts of each of several kinds."""
    every = [f"kind {number}" for number, count in enumerate(counts) for _ in range(count)]
    return {place: Load(1.0, 25, kind) for place, kind in enumerate(every)}


def crews(hosts: dict[int, Load], workers: int) -> dict[str, list[int]]:
    """How many hosts of each kind every worker has."""
    dealt = deal(hosts, nothing(workers))
    every = {load.kind: [0] * workers for load in hosts.values()}
    for place, load in hosts.items():
        every[load.kind][dealt[place]] += 1
    return every


def test_hosts_of_one_kind_stay_together() -> None:
    for found in crews(kinds(5, 4, 3, 4, 4, 3), 3).values():
        assert sorted(found)[:2] == [0, 0]


def test_a_kind_that_is_more_than_the_share_of_one_worker_is_split_evenly() -> None:
    assert crews(kinds(16), 4) == {"kind 0": [4, 4, 4, 4]}
    found = crews(kinds(20, 2, 2), 4)
    assert max(found["kind 0"]) <= 6
    assert all(sum(1 for count in found[kind] if count) == 1 for kind in ("kind 1", "kind 2"))


def test_new_hosts_go_to_the_worker_that_has_others_of_their_kind() -> None:
    carried = [[Load(1.0, 25, "a")] * 4, [Load(1.0, 25, "b")] * 4]
    assert deal({7: Load(1.0, 25, "b"), 8: Load(1.0, 25, "a")}, carried) == {7: 1, 8: 0}
