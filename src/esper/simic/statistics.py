"""Statistics of figures over hosts: means, interquartile means, paired differences, shares and ratios, each with an interval that holds.

An interval is a 95 % one: of a hundred that are shown, about 95 hold what is true. That is simulated in the tests, for normal and for
heavy-tailed figures. Below `LEAST_HOSTS` hosts none is shown: it would be so wide, or so wrong, that nobody is served by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Figures = Sequence[float] | NDArray[np.float64]
"""One figure for each host."""
CONFIDENCE = 0.95
LEAST_HOSTS = 6
"""Fewest hosts that an interval is given for, and a verdict in words."""
TRIMMED = 0.25
"""Share of hosts that the interquartile mean leaves out at each end."""
TOO_FEW = "too few hosts for an interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate from so many hosts, with the bounds of its interval."""

    mean: float
    """The estimate: a mean, an interquartile mean, or a share."""
    low: float | None
    high: float | None
    """None for fewer than LEAST_HOSTS hosts."""
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} {bounds(self.low, self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The first arm minus the second on the same hosts."""

    pairs: int
    mean: float
    low: float | None
    high: float | None
    """Bounds of the interval of the mean; None for fewer than LEAST_HOSTS pairs."""
    wins: int
    """Pairs in which the first arm did better."""

    def __str__(self) -> str:
        return f"{self.mean:+.2f} {bounds(self.low, self.high)}, better on {self.wins} of {self.pairs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One mean as a multiple of another, of figures on the same hosts."""

    mean: float | None
    """The one mean over the other; None where the other is 0."""
    low: float | None
    high: float | None
    """Bounds of the interval; None for fewer than LEAST_HOSTS hosts, and where there are none."""
    unbounded: bool
    """Whether nothing bounds it, because the second mean cannot be told from zero."""
    n: int


def bounds(low: float | None, high: float | None, form: str = "+.2f") -> str:
    """An interval as it is shown, or why there is none."""
    return f"({TOO_FEW})" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def interval(values: Figures) -> Interval:
    """The mean of figures over hosts, with Student's t interval."""
    array = _array(values)
    n, mean = len(array), float(array.mean())
    if n < LEAST_HOSTS:
        return Interval(mean=mean, low=None, high=None, n=n)
    half = t_quantile(0.5 + CONFIDENCE / 2, n - 1) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def iqm(values: Figures) -> Interval:
    """The interquartile mean, a mean without the lowest and the highest quarter (each rounded down to whole hosts), as few odd hosts
    cannot move it; with the t interval of a trimmed mean by its winsorised variance (Tukey and McLaughlin, Yuen)."""
    array = np.sort(_array(values))
    n = len(array)
    cut = int(TRIMMED * n)
    kept = array[cut : n - cut]
    mean = float(kept.mean())
    if n < LEAST_HOSTS:
        return Interval(mean=mean, low=None, high=None, n=n)
    winsorised = np.clip(array, kept[0], kept[-1])
    squares = float(((winsorised - winsorised.mean()) ** 2).sum())
    half = t_quantile(0.5 + CONFIDENCE / 2, len(kept) - 1) * math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def paired_difference(first: Figures, second: Figures, *, lower_is_better: bool = False) -> PairedDifference:
    """First minus second, host by host: the mean with its t interval. lower_is_better: as for a loss, which counts the wins."""
    differences = _differences(first, second)
    found = interval(differences)
    won = differences < 0 if lower_is_better else differences > 0
    return PairedDifference(pairs=found.n, mean=found.mean, low=found.low, high=found.high, wins=int(won.sum()))


def probability_of_improvement(first: Figures, second: Figures, *, lower_is_better: bool = False) -> Interval:
    """How probable it is that the first arm does better than the second on the same host: the share of hosts on which it did, a tie
    counting a half, with Wilson's interval. 0.5 says that neither is better more often than the other."""
    differences = _differences(first, second) * (-1.0 if lower_is_better else 1.0)
    return _wilson(float((differences > 0).mean() + 0.5 * (differences == 0).mean()), len(differences))


def share_behind(first: Figures, second: Figures, margin: float) -> Interval:
    """The share of hosts on which the first arm is more than so much behind the second, with Wilson's interval."""
    differences = _differences(first, second)
    return _wilson(float((differences < -margin).mean()), len(differences))


def ratio_of_means(above: Figures, below: Figures) -> Ratio:
    """The mean of the one over the mean of the other, of figures on the same hosts, with Fieller's interval.

    A ratio is inside if the mean of above - ratio * below cannot be told from zero by Student's t. A mean of ratios would be ruled by the
    hosts whose figure below is near zero, and the usual interval by derivatives does not hold where the mean below is near it. Fieller's
    does: it says then that nothing is known.
    """
    over, under = _array(above), _array(below)
    if len(over) != len(under):
        raise ValueError(f"a ratio of means needs as many figures above as below, found {len(over)} and {len(under)}")
    n, top, bottom = len(over), float(over.mean()), float(under.mean())
    mean = top / bottom if bottom else None
    if n < LEAST_HOSTS:
        return Ratio(mean=mean, low=None, high=None, unbounded=False, n=n)
    (var_top, cov), (_, var_bottom) = np.cov(over, under) * (t_quantile(0.5 + CONFIDENCE / 2, n - 1) ** 2 / n)
    # The ends are where (top - ratio * bottom)^2 = t^2 * variance of that mean: a quadratic in the ratio.
    square, linear, constant = bottom**2 - float(var_bottom), top * bottom - float(cov), top**2 - float(var_top)
    if square <= 0:
        return Ratio(mean=mean, low=None, high=None, unbounded=True, n=n)
    half = math.sqrt(max(0.0, linear**2 - square * constant))
    return Ratio(mean=mean, low=(linear - half) / square, high=(linear + half) / square, unbounded=False, n=n)


def _wilson(share: float, n: int) -> Interval:
    if n < LEAST_HOSTS:
        return Interval(mean=share, low=None, high=None, n=n)
    z2 = _normal_quantile(0.5 + CONFIDENCE / 2) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return Interval(mean=share, low=max(0.0, middle - half), high=min(1.0, middle + half), n=n)


def _array(values: Figures) -> NDArray[np.float64]:
    if not len(values):
        raise ValueError("no figures to take a mean of")
    return np.asarray(values, dtype=np.float64)


def _differences(first: Figures, second: Figures) -> NDArray[np.float64]:
    if len(first) != len(second) or not len(first):
        raise ValueError(f"a paired comparison needs as many results in both arms, found {len(first)} and {len(second)}")
    return _array(first) - _array(second)


# Student's t without a library of statistics


@cache
def t_quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with a probability in (0, 1)."""
    if not 0 < probability < 1 or freedom <= 0:
        raise ValueError(f"a t quantile needs a probability in (0, 1) and positive degrees of freedom, found {probability} and {freedom}")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < probability:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:  # until the two are neighbours among floats
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return high


def _t_below(t: float, freedom: float) -> float:
    """Probability that Student's t is below t, which is at least 0."""
    return 1 - 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function by its continued fraction, which converges fast on one side of the mean."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    above, below, fraction = 1.0, 0.0, 1.0
    for step in range(10_000):  # the method of Lentz: `fraction` is the continued fraction up to this step
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + term * below)
        above = 1 + term / above
        fraction *= above * below
        if step and abs(1 - above * below) < 1e-15:
            break
    return front * (fraction - 1)


def _normal_quantile(probability: float) -> float:
    """The same of the normal distribution, for a probability of at least a half."""
    low, high = 0.0, 40.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < probability else (low, middle)
    return high
