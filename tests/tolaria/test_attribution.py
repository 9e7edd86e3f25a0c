"""Counterfactual configurations and what follows from them, worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from esper.tolaria.training.attribution import configurations, interactions

NAMES = ["a", "b", "c", "d", "e", "f"]


def test_the_network_as_it_is_comes_first_and_nothing_twice() -> None:
    found = configurations(["a", "b"], ["a"], ["c"])
    assert found[0] == {"a", "b"}
    assert len(found) == len(set(found))
    assert set(found) == {frozenset("ab"), frozenset("a"), frozenset("b"), frozenset(), frozenset("abc")}


def test_nothing_grown_means_one_configuration() -> None:
    assert configurations([], [], []) == [frozenset()]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_pairs_are_measured_while_they_are_few(count: int) -> None:
    names = NAMES[:count]
    found, everything = set(configurations(names, [], [])), frozenset(names)
    assert {everything, frozenset(), *(everything - {name} for name in names)} <= found
    pairs = {everything - set(pair) for pair in itertools.combinations(names, 2)}
    assert (pairs <= found) == (count <= 3)
    assert len(found) <= 2 + count + len(pairs)


def test_interaction_is_what_two_seeds_bring_beyond_the_sum_of_each() -> None:
    accuracy = {frozenset("ab"): 90.0, frozenset("a"): 80.0, frozenset("b"): 75.0, frozenset(): 70.0}
    assert interactions(["a", "b"], accuracy) == {("a", "b"): 5.0}, "90 - 75 - 80 + 70"
    assert interactions(["a", "b", "c"], {frozenset("abc"): 1.0}) == {}, "what was not measured is not made up"
