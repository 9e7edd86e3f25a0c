"""What charts are made of: series of values, and the lanes that lives are drawn in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from esper.leyline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Series:
    """Values that belong together: one line, one kind of point, one layer, or one bar of every group."""

    name: str
    """As the legend shows it; a series without a name has no place there."""
    x: Sequence[float]
    """Of bars, not read: their groups are named."""
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """Ends of an interval around each y: a band of a line, a whisker of a point or bar."""
    labels: Sequence[str] | None = None
    """A word beside each point."""
    colour: int | None = None
    dash: int | None = None
    """Numbers of its colour and of its dashes, where they are not those of its place among the series."""

    def __post_init__(self) -> None:
        for what in ("x", "low", "high", "labels"):
            values = getattr(self, what)
            if values is not None and len(values) != len(self.y):
                raise ConfigError(f"series {self.name!r} has {len(self.y)} values of y and {len(values)} of {what}; expected as many")
        if (self.low is None) != (self.high is None):
            raise ConfigError(f"series {self.name!r} has one end of an interval; expected low and high, or neither")

    def interval(self, place: int) -> tuple[float, float] | None:
        """The interval around a value, where it has one that can be shown."""
        if self.low is None or self.high is None:
            return None
        low, high = float(self.low[place]), float(self.high[place])
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None

    def runs(self, log_x: bool = False) -> Iterator[list[int]]:
        """Places of values that follow one another without a gap."""
        run: list[int] = []
        for place, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
            if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x):
                run.append(place)
            elif run:
                yield run
                run = []
        if run:
            yield run


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a lane."""

    start: float
    end: float
    stage: str
    """A name of style.STAGES, which is its colour."""
    label: str = ""
    """Written on it, where there is room."""
    about: str = ""
    """Shown under the pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of stretches that follow one another, such as the lives of the seeds in one slot."""

    name: str
    spans: Sequence[Span]
    ends: Sequence[float] = ()
    """Where something ended for good: a cross."""
