"""The direction of a short, noisy series, and how noisy it is. Both rest on medians, so that one odd epoch cannot turn them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

MAD_TO_STD = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""

TREND_VALUES = 3
"""Fewer values than this have no trend: two always lie on a line."""


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Theil-Sen: the median of the slopes between all pairs of points (step, value); 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    return median((b - a) / (later - earlier) for (earlier, a), (later, b) in combinations(points, 2))


def theil_sen(values: Sequence[float]) -> float:
    """The slope of values that follow one another, per step."""
    return slope(list(enumerate(values)))


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the values around their Theil-Sen line, from the median distance to it; 0 for fewer than three."""
    if len(values) < TREND_VALUES:
        return 0.0
    slope = theil_sen(values)
    residuals = [value - slope * step for step, value in enumerate(values)]
    centre = median(residuals)
    return MAD_TO_STD * median(abs(residual - centre) for residual in residuals)


def trend(values: Sequence[float], floor: float) -> float:
    """Slope per step in units of the noise; 0 for fewer than three values.

    `floor` is the least noise that is believed: a change far below it is no trend, however straight the line.
    """
    if len(values) < TREND_VALUES:
        return 0.0
    return theil_sen(values) / max(floor, noise(values))
