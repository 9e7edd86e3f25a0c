"""The direction of a short, noisy series, and how noisy it is. Both rest on medians, so that one odd epoch cannot turn them."""

from __future__ import annotations

from collections.abc import Sequence

MAD_TO_STD = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""

TREND_VALUES = 3
"""Fewer values than this have no trend: two always lie on a line."""


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Theil-Sen: the median of the slopes between all pairs of points (step, value); 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    return _median([(b - a) / (later - earlier) for i, (earlier, a) in enumerate(points) for later, b in points[i + 1 :]])


def theil_sen(values: Sequence[float]) -> float:
    """The slope of values that follow one another, per step."""
    return slope(list(enumerate(values)))


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the values around their Theil-Sen line, from the median distance to it; 0 for fewer than three."""
    return _noise(values, theil_sen(values)) if len(values) >= TREND_VALUES else 0.0


def trend(values: Sequence[float], floor: float) -> float:
    """Slope per step in units of the noise; 0 for fewer than three values.

    `floor` is the least noise that is believed: a change far below it is no trend, however straight the line.
    """
    if len(values) < TREND_VALUES:
        return 0.0
    slope = theil_sen(values)
    return slope / max(floor, _noise(values, slope))


def _noise(values: Sequence[float], slope: float) -> float:
    residuals = [value - slope * step for step, value in enumerate(values)]
    centre = _median(residuals)
    return MAD_TO_STD * _median([abs(residual - centre) for residual in residuals])


def _median(values: Sequence[float]) -> float:
    """As `statistics.median`, which takes three times as long because it takes anything."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
