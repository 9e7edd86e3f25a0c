"""A figure of a headline: how it is shown, and the words that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esper.karn.record import Record
from esper.karn.views.learning import rounds
from esper.karn.views.plain import thinned
from esper.simic.statistics import TOO_FEW, interval, paired_difference

Figure = dict[str, Any]
"""label, value, text (as it is shown), low, high, note (against what, of how many hosts), trend (its course so far)."""


def figure(
    label: str, value: float | None, form: str = ".2f", note: str = "", *, found: Any = None, trend: Sequence[float | None] = ()
) -> Figure:
    """One figure. found: a table with the bounds of its interval. form: how it is shown, "x" in front for multiples."""
    prefix, form = ("x", form[1:]) if form.startswith("x") else ("", form)
    bounds = found or {}
    return {
        "label": label,
        "value": value,
        "text": "-" if value is None else prefix + format(value, form),
        "low": bounds.get("low"),
        "high": bounds.get("high"),
        "note": note,
        "trend": thinned([each for each in trend if each is not None]),
    }


def metric(record: Record, name: str) -> list[float]:
    """A figure of each round, as a small curve."""
    return thinned([value for value in rounds(record)["metrics"].get(name, ()) if value is not None])


def bounds_of(values: Sequence[float]) -> dict[str, Any] | None:
    """The interval of a mean over hosts; None of none."""
    if not values:
        return None
    found = interval(values)
    return {"low": found.low, "high": found.high}


def difference_of(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The first minus the second of each pair, as a summary has it."""
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return {"mean": found.mean, "low": found.low, "high": found.high, "wins": found.wins, "pairs": found.pairs}


def paired(found: dict[str, Any]) -> str:
    """How often the first of a pair was the better one."""
    few = f", {TOO_FEW}" if found["low"] is None else ""
    return f"better on {found['wins']} of {found['pairs']} hosts{few}"


def over(count: int, what: str) -> str:
    """Of how many something is the mean."""
    return f"mean of {count} {what}s" if count != 1 else f"one {what}"
