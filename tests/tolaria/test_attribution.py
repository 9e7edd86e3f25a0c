"""Counterfactual configurations and what follows from them, against brute force."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.tolaria.training.attribution import configurations, interactions, shapley, shapley_orders

NAMES = ["a", "b", "c", "d", "e", "f"]


def test_the_network_as_it_is_comes_first_and_nothing_twice() -> None:
    found = configurations(["a", "b"], ["a"], ["c"], "loo", seed=0)
    assert found[0] == {"a", "b"}
    assert len(found) == len(set(found))
    assert {frozenset("a"), frozenset("b"), frozenset(), frozenset("abc")} <= set(found)


def test_nothing_grown_means_one_configuration() -> None:
    assert configurations([], [], [], "loo", seed=0) == [frozenset()]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_full_attribution_of_up_to_four_seeds_is_every_subset(count: int) -> None:
    names = NAMES[:count]
    every = {frozenset(c) for n in range(count + 1) for c in itertools.combinations(names, n)}
    assert set(configurations(names, [], [], "full", seed=0)) == every


def test_beyond_four_seeds_every_configuration_that_sampling_needs_is_there() -> None:
    found = set(configurations(NAMES, [], [], "full", seed=3))
    needed = {frozenset(order[:n]) for order in shapley_orders(NAMES, 3) for n in range(len(order) + 1)}
    assert needed <= found


def values(seed: int, names: list[str]) -> dict[frozenset[str], float]:
    stream = random.Random(seed)
    return {frozenset(c): stream.uniform(0, 100) for n in range(len(names) + 1) for c in itertools.combinations(names, n)}


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(max_examples=50)
def test_exact_shapley_equals_the_mean_over_all_orders(seed: int, count: int) -> None:
    names = NAMES[:count]
    v = values(seed, names)
    orders = list(itertools.permutations(names))
    brute = {p: sum(v[frozenset(o[: o.index(p) + 1])] - v[frozenset(o[: o.index(p)])] for o in orders) / len(orders) for p in names}
    assert shapley(names, v.__getitem__, seed=0) == pytest.approx(brute, abs=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(max_examples=50)
def test_shapley_values_share_out_the_whole_gain(seed: int, count: int) -> None:
    names = NAMES[:count]
    v = values(seed, names)
    assert sum(shapley(names, v.__getitem__, seed).values()) == pytest.approx(v[frozenset(names)] - v[frozenset()], abs=1e-6)


def test_sampled_values_of_an_additive_game_are_exact() -> None:
    worth = dict(zip(NAMES, (1.0, -2.0, 3.5, 0.0, 7.0, 0.25), strict=True))
    assert shapley(NAMES, lambda on: sum(worth[n] for n in on), seed=5) == pytest.approx(worth)


def test_sampling_is_antithetic_and_repeatable() -> None:
    orders = shapley_orders(NAMES, 1)
    assert orders == shapley_orders(NAMES, 1)
    assert orders != shapley_orders(NAMES, 2)
    assert all(b == a[::-1] for a, b in zip(orders[::2], orders[1::2], strict=True))


def test_interaction_is_what_two_seeds_bring_beyond_the_sum_of_each() -> None:
    accuracy = {frozenset("ab"): 90.0, frozenset("a"): 80.0, frozenset("b"): 75.0, frozenset(): 70.0}
    assert interactions(["a", "b"], accuracy) == {("a", "b"): 5.0}, "90 - 75 - 80 + 70"
