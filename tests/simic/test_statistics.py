"""Statistics over hosts: intervals that hold, wins that respect what is better, and nothing where there are too few hosts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from esper.simic.statistics import (
    LEAST_HOSTS,
    interval,
    iqm,
    paired_difference,
    probability_of_improvement,
    ratio_of_means,
    share_behind,
    t_quantile,
)

TRIALS = 4000
SIZES = (6, 10, 20, 200)
KINDS = ("normal", "heavy-tailed")


def drawn(kind: str, hosts: int, trials: int) -> NDArray[np.float64]:
    """Differences whose mean and interquartile mean are 0, shape [trials, hosts]."""
    rng = np.random.default_rng([hosts, KINDS.index(kind)])
    return rng.normal(size=(trials, hosts)) if kind == "normal" else rng.standard_t(3, size=(trials, hosts))


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.95, 1, 6.3137515146750431),
        (0.975, 1, 12.706204736174705),
        (0.975, 2, 4.3026527297494639),
        (0.975, 5, 2.5705818356363155),
        (0.975, 9, 2.2621571627982055),
        (0.975, 19, 2.0930240544083098),
        (0.975, 199, 1.9719565442517538),
        (0.995, 99, 2.6264054572808275),
        (0.025, 5, -2.5705818356363155),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(("kind", "hosts"), list(product(KINDS, SIZES)))
def test_the_interval_of_a_mean_holds(kind: str, hosts: int) -> None:
    found = [interval(row) for row in drawn(kind, hosts, TRIALS)]
    assert 0.92 <= np.mean([each.low <= 0.0 <= each.high for each in found if each.low is not None and each.high is not None]) <= 0.97


@pytest.mark.parametrize(("kind", "hosts"), list(product(KINDS, SIZES)))
def test_the_interval_of_an_interquartile_mean_holds(kind: str, hosts: int) -> None:
    found = [iqm(row) for row in drawn(kind, hosts, TRIALS)]
    assert 0.92 <= np.mean([each.low <= 0.0 <= each.high for each in found if each.low is not None and each.high is not None]) <= 0.97


@pytest.mark.parametrize("hosts", SIZES)
def test_the_interval_of_a_probability_of_improvement_holds(hosts: int) -> None:
    """Over all probabilities from 0.05 to 0.95 together: a share of n hosts is one of n + 1 values, so at single ones no interval can."""
    rng, held = np.random.default_rng(hosts), []
    for truth in np.linspace(0.05, 0.95, 19):
        for row in rng.random((200, hosts)):
            found = probability_of_improvement(np.where(row < truth, 1.0, -1.0), np.zeros(hosts))
            assert found.low is not None
            assert found.high is not None
            held.append(found.low <= truth <= found.high)
    assert 0.92 <= np.mean(held) <= 0.97


SHARE = 0.9
"""Of one mean in another, below."""


def gains(kind: str, hosts: int, under: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gains that have to do with each other, shape [2, trials, hosts]: means of SHARE * under and of under."""
    noise = drawn(kind, hosts, 2 * TRIALS).reshape(2, TRIALS, hosts)
    return SHARE * under + 0.7 * noise[1] + 0.5 * noise[0], under + noise[1]


@pytest.mark.parametrize(("kind", "hosts"), list(product(KINDS, SIZES)))
def test_the_interval_of_a_ratio_of_means_holds(kind: str, hosts: int) -> None:
    found = [ratio_of_means(*row) for row in zip(*gains(kind, hosts, under=8.0), strict=True)]
    bounded = [each for each in found if each.low is not None and each.high is not None]
    assert len(bounded) > 0.99 * TRIALS, "what is divided by is far from zero"
    assert 0.92 <= np.mean([each.low <= SHARE <= each.high for each in bounded if each.low is not None and each.high is not None]) <= 0.97


@pytest.mark.parametrize("hosts", [10, 20, 200])
def test_a_ratio_to_what_may_be_zero_says_that_nothing_bounds_it(hosts: int) -> None:
    """A mean of two standard errors is told from zero in about half of the cases; an interval that is given then still holds."""
    found = [ratio_of_means(*row) for row in zip(*gains("normal", hosts, under=2.0 / hosts**0.5), strict=True)]
    for each in found:
        assert each.unbounded == (each.low is None) == (each.high is None)
    assert 0.3 < np.mean([each.unbounded for each in found]) < 0.7
    wrong = [not each.low <= SHARE <= each.high for each in found if each.low is not None and each.high is not None]
    assert np.sum(wrong) / TRIALS < 0.08
    nothing = [ratio_of_means(*row).unbounded for row in zip(*gains("normal", hosts, under=0.0), strict=True)]
    assert 0.92 <= np.mean(nothing) <= 0.97


def test_at_the_ends_of_its_interval_a_ratio_can_just_be_told_from_another() -> None:
    above, below = (row[0] for row in gains("normal", 20, under=8.0))
    found = ratio_of_means(above, below)
    assert found.mean == pytest.approx(above.mean() / below.mean())
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    assert interval(above - found.low * below).low == pytest.approx(0.0, abs=1e-9)
    assert interval(above - found.high * below).high == pytest.approx(0.0, abs=1e-9)


def test_a_constant_share_is_known_exactly_and_a_share_of_nothing_not_at_all() -> None:
    below = np.asarray([3.0, 7.0, 9.0, 4.0, 5.0, 6.0])
    found = ratio_of_means(below / 2, below)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    nothing = ratio_of_means(below, np.zeros(6))
    assert (nothing.mean, nothing.low, nothing.high, nothing.unbounded) == (None, None, None, True)


def test_ratios_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="as many figures above as below"):
        ratio_of_means([1.0], [1.0, 2.0])


def test_behind_is_who_lost_more_than_the_margin() -> None:
    second = [50.0] * 8
    found = share_behind([39.9, 40.0, 40.1, 60.0, 50.0, 0.0, 49.0, 51.0], second, 10.0)
    assert (found.mean, found.n) == (0.25, 8), "exactly the margin is not more than it"
    assert found.low is not None
    assert found.high is not None
    assert 0.0 < found.low < 0.25 < found.high < 1.0
    assert share_behind(second, second, 10.0).low == 0.0


@pytest.mark.parametrize("values", [[4.0, 1.0, 3.0, 2.0], [5.0, 1.0, 2.0, 90.0, 3.0, -70.0], [float(i * i) for i in range(21)]])
def test_an_interquartile_mean_is_the_mean_of_the_middle_half(values: list[float]) -> None:
    cut = len(values) // 4
    assert iqm(values).mean == pytest.approx(float(np.mean(sorted(values)[cut : len(values) - cut])))


def test_one_odd_host_does_not_move_an_interquartile_mean() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert iqm([*values[:-1], 8e9]) == iqm(values)


def test_equal_arms_differ_by_nothing() -> None:
    same = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = paired_difference(same, same)
    assert (found.mean, found.low, found.high, found.wins) == (0.0, 0.0, 0.0, 0)
    assert probability_of_improvement(same, same).mean == 0.5, "a tie counts a half"


def test_a_constant_gain_has_an_interval_of_no_width() -> None:
    found = paired_difference([3.0, 7.0, 9.0, 4.0, 5.0, 6.0], [1.0, 5.0, 7.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.low, found.high, found.wins, found.pairs) == (2.0, 2.0, 2.0, 6, 6)


def test_pairing_removes_what_the_hosts_share() -> None:
    base = [10.0, 50.0, 90.0, 30.0, 70.0, 20.0]
    better = [b + gain for b, gain in zip(base, [1.0, 1.2, 0.8, 1.1, 0.9, 1.0], strict=True)]
    found = paired_difference(better, base)
    assert found.low is not None
    assert found.high is not None
    assert 0.8 < found.low < found.high < 1.2, "hosts differ by 80 points and the gain is still seen"
    assert probability_of_improvement(better, base).mean == 1.0, "better on every host, though most of the others' figures are higher"


def test_of_a_loss_the_lower_one_wins() -> None:
    low, high = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.2, 0.3, 0.4, 0.5, 0.6, 0.5]
    found = paired_difference(low, high, lower_is_better=True)
    assert found.mean < 0
    assert found.wins == 5
    assert probability_of_improvement(low, high, lower_is_better=True).mean == pytest.approx(5 / 6)


def test_arms_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="as many results"):
        paired_difference([1.0], [1.0, 2.0])


@pytest.mark.parametrize("hosts", [1, 2, LEAST_HOSTS - 1])
def test_too_few_hosts_have_no_interval(hosts: int) -> None:
    first, second = [float(i) for i in range(hosts)], [0.5] * hosts
    difference = paired_difference(first, second)
    shares = probability_of_improvement(first, second), share_behind(first, second, 10.0), ratio_of_means(first, second)
    for found in (interval(first), iqm(first), difference, *shares):
        assert (found.low, found.high) == (None, None)
    assert "too few hosts for an interval" in str(difference)
