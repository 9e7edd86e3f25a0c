"""The few figures that a run is about, each with its interval and its course. Of a finished run they are those of its summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from esper.karn.record import SUMMARY, Record
from esper.karn.views.arms import arms
from esper.karn.views.figures import Figure, metric
from esper.karn.views.growth_figures import gardened_figures, growing_figures, grown_figures, mean_courses
from esper.karn.views.learning import RETURN
from esper.karn.views.learning_figures import examined_figures, learning_figures, passes_figures, studied_figures
from esper.karn.views.plain import thinned
from esper.karn.views.search_figures import (
    ahead_figures,
    compared_figures,
    headroom_figures,
    plans_figures,
    searched_figures,
    swept_figures,
)
from esper.leyline.errors import RunError
from esper.simic.runs.resuming import PRACTICE

Curve = tuple[list[float], str]
"""A small curve, and what it shows."""


def headline(record: Record, method: str) -> list[Figure]:
    """The figures of a run of that kind; the first is what it is judged by. Raises RunError for a summary that lacks figures."""
    try:
        return _figures(record, method)
    except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        if record.summary is None:
            raise
        raise RunError(f"{record.path / SUMMARY} was edited: it lacks figures") from error


def _figures(record: Record, method: str) -> list[Figure]:
    summary = record.summary or {}
    by_key: dict[str, Callable[[Record, dict[str, Any]], list[Figure]]] = {
        "examination": examined_figures,
        "comparison": compared_figures,
        "adaptivity": headroom_figures,
        "search": searched_figures,
        "sweep": swept_figures,
        "study": studied_figures,
    }
    for key, make in by_key.items():
        if key in summary:
            return make(record, summary)
    if "hosts" in summary:
        return grown_figures(record, summary)
    if "history" in summary:
        return gardened_figures(summary["history"])
    running: dict[str, Callable[[Record], list[Figure]]] = {
        **dict.fromkeys(PRACTICE, learning_figures),
        "bc": passes_figures,
        "iql": passes_figures,
        "headroom": plans_figures,
    }
    if method in ("compare", "tune", "sweep"):
        return ahead_figures(record)
    return running.get(method, growing_figures)(record)


def curve(record: Record, method: str) -> Curve:
    """The small curve of a run of that kind."""
    if method in PRACTICE:
        return metric(record, RETURN), "return by round"
    if method in ("bc", "iql"):
        return metric(record, "held_out/log_likelihood"), "held-out log-likelihood by pass"
    if method == "headroom":
        return thinned([row["score"] for row in record.rows("plans_played") if row["best"]]), "best score by round"
    if method in ("compare", "tune", "sweep"):
        return thinned([row["score"] for row in arms(record) if row["score"] is not None]), "score by arm"
    val, _ = mean_courses(record)
    return thinned(val), "val accuracy by epoch"
