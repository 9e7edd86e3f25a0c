"""The paired comparison."""

from __future__ import annotations

import math

import pytest

from esper.simic.runs.paired import paired_difference


def test_equal_arms_differ_by_nothing() -> None:
    found = paired_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high, found.wins) == (0.0, 0.0, 0.0, 0)


def test_a_constant_gain_has_an_interval_of_no_width() -> None:
    found = paired_difference([3.0, 7.0, 9.0], [1.0, 5.0, 7.0])
    assert (found.mean, found.low, found.high, found.wins, found.pairs) == (2.0, 2.0, 2.0, 3, 3)


def test_pairing_removes_what_the_hosts_share() -> None:
    base = [10.0, 50.0, 90.0, 30.0, 70.0]
    found = paired_difference([b + g for b, g in zip(base, [1.0, 1.2, 0.8, 1.1, 0.9], strict=True)], base)
    assert found.low > 0.8, "hosts differ by 80 points and the gain is still seen"
    assert found.high < 1.2


def test_the_interval_is_the_same_every_time() -> None:
    first, second = [1.0, 4.0, 2.0, 8.0], [0.0, 5.0, 1.0, 3.0]
    assert paired_difference(first, second) == paired_difference(first, second)


def test_arms_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="as many results"):
        paired_difference([1.0], [1.0, 2.0])


def test_a_single_pair_has_no_interval() -> None:
    found = paired_difference([3.0], [1.0])
    assert (found.mean, found.wins) == (2.0, 1)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert str(found) == "+2.00 on one host"
