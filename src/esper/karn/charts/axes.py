"""Axes: round ticks that enclose the values, as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICKS = 6
"""Ticks that an axis has, about."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where, and where the ticks are."""

    ticks: tuple[float, ...]
    low: float
    high: float
    log: bool = False

    def texts(self) -> list[str]:
        """The ticks as people write them, all with the same number of decimals."""
        largest = max(map(abs, self.ticks), default=0.0)
        if self.log:
            return [big(tick) if largest >= 10_000 else f"{tick:g}" for tick in self.ticks]
        if largest >= 100_000:
            return [big(tick) for tick in self.ticks]
        if len(self.ticks) < 2:
            return [f"{tick:g}" for tick in self.ticks]
        step = self.ticks[1] - self.ticks[0]
        if step < 1e-4:
            return [f"{tick:.2g}" for tick in self.ticks]
        decimals = next(number for number in range(6) if abs(step * 10**number - round(step * 10**number)) < 1e-6 * step * 10**number)
        return [f"{tick + 0.0:,.{decimals}f}" for tick in self.ticks]


def axis(values: Sequence[float], *, log: bool = False, counts: bool = False) -> Axis:
    """An axis from the round number below the least value to the one above the largest. counts: whole ticks, if all values are whole."""
    low, high = float(min(values)), float(max(values))
    if log:
        return _log_axis(low, high)
    return _linear_axis(low, high, 1.0 if counts and all(float(value).is_integer() for value in values) else 0.0)


def within(values: Sequence[float], *, whole: bool) -> Axis:
    """An axis from the least value to the largest, whatever they are, with round ticks between. whole: at whole numbers."""
    low, high = float(min(values)), float(max(values))
    if low == high:
        return Axis((low,), low - 0.5, high + 0.5) if whole else _linear_axis(low, high)
    step = round_step((high - low) / TICKS)
    step = max(1.0, round(step)) if whole else step
    ticks = tuple(number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
    return Axis(ticks, low, high)


def _linear_axis(low: float, high: float, least: float = 0.0) -> Axis:
    if high - low <= abs(high) * 1e-9:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    step = max(least, round_step((high - low) / TICKS))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(number * step for number in range(first, last + 1))
    return Axis(ticks, ticks[0], ticks[-1])


def _log_axis(low: float, high: float) -> Axis:
    low, high = (low / 1.5, high * 1.5) if low == high else (low, high)
    # A little room at both ends, as a power of what there is; ticks at 1, 2 and 5, or at powers of ten where there are many.
    room = (high / low) ** 0.04
    low, high = low / room, high * room
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if len(powers) > TICKS else (1, 2, 5)
    ticks = tuple(step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high)
    if len(ticks) < 3:  # a short stretch, on which equal steps serve as well
        step = round_step((high - low) / TICKS)
        ticks = tuple(number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1))
    return Axis(ticks, low, high, log=True)


def round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def big(value: float) -> str:
    """A large number with the letter of its size."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
