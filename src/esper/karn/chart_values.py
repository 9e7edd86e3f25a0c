"""What the charts of a run share: figures by round, values that may not be there, and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

from esper.karn import views
from esper.karn.charts import Chart, Series, lines
from esper.karn.record import Record

FEW = 6
"""Things that are drawn one by one; more are drawn together."""
POINTS = "points"
SIZE = "parameters, times the bare host's"


def by_round(record: Record, title: str, y_label: str, shown: Mapping[str, str], x_label: str = "round") -> Chart | None:
    """Figures of the rounds in which a policy learns, by their names."""
    found = views.rounds(record)
    series = [Series(word, found["rounds"], numbers(found["metrics"][name])) for name, word in shown.items() if name in found["metrics"]]
    return lines(series, title=title, x_label=x_label, y_label=y_label, whole_x=True) if series else None


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two values nearest to that share of the way from the least to the largest; NaN of nothing."""
    if not values:
        return nan
    ordered, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def numbers(values: Sequence[float | None]) -> list[float]:
    """Values, with NaN for what is not there."""
    return [number(value) for value in values]


def number(value: float | None) -> float:
    """The same of one."""
    return nan if value is None else value


def words(name: str) -> str:
    """A name in code as people write it."""
    return name.lower().replace("_", " ")
