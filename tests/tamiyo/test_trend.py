"""The robust trend against cases worked by hand, and that one odd value cannot turn it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.tamiyo.observe.trend import MAD_TO_STD, noise, theil_sen, trend

finite = st.floats(-100.0, 100.0)


def test_the_slope_is_the_median_of_all_pairwise_slopes() -> None:
    # Pairs of 1, 2, 3, 10 have slopes 1, 1, 3, 1, 4, 7: the median is 2.
    assert theil_sen([1.0, 2.0, 3.0, 10.0]) == 2.0


def test_the_noise_is_the_scaled_median_distance_to_the_line() -> None:
    # With slope 2 the rests are 1, 0, -1, 4; around their median 0.5 they lie 0.5, 0.5, 1.5, 3.5 away: the median is 1.
    assert noise([1.0, 2.0, 3.0, 10.0]) == pytest.approx(MAD_TO_STD)


def test_the_trend_is_slope_over_noise_but_never_over_less_than_the_floor() -> None:
    assert trend([1.0, 2.0, 3.0, 10.0], floor=0.1) == pytest.approx(2.0 / MAD_TO_STD)
    assert trend([1.0, 2.0, 3.0, 10.0], floor=4.0) == pytest.approx(0.5)
    assert trend([1.0, 2.0, 3.0], floor=0.1) == pytest.approx(10.0)


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 9.0]])
def test_fewer_than_three_values_have_no_trend_and_no_noise(values: list[float]) -> None:
    assert (trend(values, floor=0.1), noise(values)) == (0.0, 0.0)


def test_two_values_have_a_slope_and_one_has_none() -> None:
    assert (theil_sen([5.0, 9.0]), theil_sen([5.0]), theil_sen([])) == (4.0, 0.0, 0.0)


@given(place=st.integers(0, 5), odd=finite, slope=st.floats(0.5, 2.0))
def test_one_odd_epoch_cannot_turn_the_direction_of_a_rising_host(place: int, odd: float, slope: float) -> None:
    values = [slope * i for i in range(6)]
    values[place] = odd
    assert theil_sen(values) > 0.0


@given(values=st.lists(finite, min_size=3, max_size=8), shift=finite)
def test_a_shift_changes_neither_trend_nor_noise_and_a_mirror_turns_the_trend(values: list[float], shift: float) -> None:
    moved = [value + shift for value in values]
    assert noise(moved) == pytest.approx(noise(values), abs=1e-9)
    assert trend(moved, floor=1.0) == pytest.approx(trend(values, floor=1.0), abs=1e-6)
    assert trend([-value for value in values], floor=1.0) == pytest.approx(-trend(values, floor=1.0), abs=1e-9)
