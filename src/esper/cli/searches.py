"""What came out of a search and of a sweep, and how far to trust it: the last lines of the commands, and their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper.cli.results import WIDTH, say
from esper.cli.tables import Row, print_rows
from esper.simic.statistics import TOO_FEW, bounds

SHOWN_TRIALS = 10
"""Rows of the table of trials on a terminal; the page and summary.json have all."""
SCORE = "score is the val accuracy of the harvested network minus rent, in points"


def print_search(summary: Mapping[str, Any]) -> None:
    """Trials of a controller's settings, the best of them, and what it is worth on fresh hosts."""
    found = summary["search"]
    rows = trial_rows(found)
    print()
    print_rows(rows[:SHOWN_TRIALS], tuple(rows[0]), wrapped=["changed"], width=WIDTH)
    if len(rows) > SHOWN_TRIALS:
        print(f"and {len(rows) - SHOWN_TRIALS} trials more")
    for sentence in search_verdict(found):
        say(sentence)
    print(f"best settings: {summary['run']}/best.toml")
    print(f"run folder: {summary['run']}")


def search_page(summary: Mapping[str, Any]) -> str:
    """The same as a page, with plots."""
    from esper.karn.charts import Series, points
    from esper.karn.page import Section, charts, page, paragraph, table

    found = summary["search"]
    sizes, scores, numbers = ([trial[name] for trial in found["trials"]] for name in ("growth", "score", "trial"))
    trials = Series("trials", sizes, scores, labels=[str(number) for number in numbers])
    size = "size, as a multiple of the bare host's"
    drawn = [points([trials], title="Trials, each on the hosts it has played", x_label=size, y_label="score")]
    if found["fresh"] is not None:
        rows = found["fresh"]["rows"]
        hosts = Series("fresh hosts", [row["present"] for row in rows], [row["best"] for row in rows])
        drawn.append(points([hosts], title="Hosts that no trial saw", x_label="score of the present settings", y_label="score of the best"))
    searched: list[Row] = [{"setting": key, "searched": text} for key, text in found["space"].items()]
    return page(
        f"Search of {found['controller']} on {summary['task']}",
        [
            Section("What came out", "".join(map(paragraph, search_verdict(found))) + charts(*drawn)),
            Section("Trials", table(trial_rows(found))),
            Section("What was searched", table(searched)),
        ],
    )


def trial_rows(found: Mapping[str, Any]) -> list[Row]:
    """A row for each trial, those that came furthest first."""
    return [
        {
            "trial": trial["trial"],
            "hosts": trial["hosts"],
            "score": trial["score"],
            "val": trial["accuracy"],
            "size x": trial["growth"],
            "changed": values_told(trial["values"]) or "nothing: the present settings",
        }
        for trial in found["trials"]
    ]


def search_verdict(found: Mapping[str, Any]) -> list[str]:
    """What the best trial is worth, in sentences that the interval bears out."""
    lines = [f"{found['spent']:,} of {found['budget']:,} host epochs spent; {SCORE}"]
    if found["fresh"] is None:
        return [*lines, "nothing came out better than the present settings: keep them"]
    fresh, difference = found["fresh"], found["fresh"]["difference"]
    sure = TOO_FEW if difference["low"] is None else f"95 % interval {bounds(difference['low'], difference['high'])}"
    lines += [
        f"in the search the best, trial {found['best']['trial']}, was ahead of the present settings by "
        f"{fresh['in_the_search']['difference']:+.2f} points on {fresh['in_the_search']['hosts']} hosts; the best of many is flattered, by "
        f"{fresh['flattered_by']:+.2f} points here",
        f"on {fresh['hosts']} hosts that no trial saw: {difference['mean']:+.2f} points, {sure}, better on "
        f"{difference['wins']} of {difference['pairs']}, with {fresh['best']['operations'] / fresh['present']['operations']:.2f} times the "
        "operations",
    ]
    if difference["low"] is None:
        lines.append(f"{TOO_FEW} and so for a verdict: raise --fresh")
    elif difference["low"] > 0:
        lines.append("it does better than the present settings")
    elif difference["high"] < 0:
        lines.append("it does worse than the present settings: keep those")
    else:
        lines.append("it cannot be told apart from the present settings: keep those, or search with a larger --budget")
    return lines


def print_sweep(summary: Mapping[str, Any]) -> None:
    """Points of a sweep, best first."""
    found = summary["sweep"]
    rows = point_rows(found)
    print()
    columns = tuple(rows[0])
    print_rows(rows, columns, wrapped=[], right=[name for name in columns if name != "point" and name not in found["space"]])
    for sentence in sweep_verdict(found):
        say(sentence)
    if found["best"] is not None:
        print(f"best config: {summary['run']}/best.toml")
    print(f"run folder: {summary['run']}")


def sweep_page(summary: Mapping[str, Any]) -> str:
    """The same as a page, with a plot for each setting that is a number."""
    from esper.karn.charts import Series, points
    from esper.karn.page import Section, charts, page, paragraph, table

    found = summary["sweep"]
    done = [point for point in found["points"] if not point["failed"]]
    drawn = []
    for key in found["space"]:
        values = [point["values"][key] for point in done]
        if not done or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            continue
        scores = [point["score"] for point in done]
        whole = all(score["low"] is not None for score in scores)
        low, high = ([score[end] for score in scores] if whole else None for end in ("low", "high"))
        labels = [str(point["point"]) for point in done]
        series = Series("points", values, [score["mean"] for score in scores], low=low, high=high, labels=labels)
        drawn.append(points([series], title=f"Score by {key}", x_label=key, y_label="score", log_x=found["space"][key].endswith(":log")))
    sections = [
        Section("What came out", "".join(map(paragraph, sweep_verdict(found))) + charts(*drawn)),
        Section("Points", table(point_rows(found))),
    ]
    return page(f"Sweep of esper train {found['method']}", sections)


def point_rows(found: Mapping[str, Any]) -> list[Row]:
    """A row for each point, the best first."""
    unit = _unit(found)
    rows: list[Row] = []
    for point in found["points"]:
        figures = {"score [95 %]": "failed", "minus the best": "", "val": "", "size x": "", f"{unit} to 95 %": ""}
        if not point["failed"]:
            figures = {
                "score [95 %]": _with_bounds(point["score"]),
                "minus the best": "" if point["against_best"] is None else _with_bounds(point["against_best"]),
                "val": f"{point['accuracy']:.2f}",
                "size x": f"{point['growth']:.2f}",
                f"{unit} to 95 %": "-" if point["converged"] is None else str(point["converged"]),
            }
        rows.append({"point": point["point"], **{key: str(value) for key, value in point["values"].items()}, **figures})
    return rows


def sweep_verdict(found: Mapping[str, Any]) -> list[str]:
    """What the columns mean, and what they do not."""
    failed = [point for point in found["points"] if point["failed"]]
    lines = [
        f"{SCORE}, with the 95 % interval of its mean over hosts, and of the difference to the best host by host; "
        f"{_unit(found)} to 95 %: until it had come 95 % of the way from its first figure to its last",
        *(f"point {point['point']} failed: {point['failed']}" for point in failed),
    ]
    if len(found["points"]) - len(failed) > 1:
        lines.append("the best of several is flattered by having been chosen: run it on other hosts before you claim its figure")
    return lines


def values_told(values: Mapping[str, Any]) -> str:
    """The values of a trial in a line."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _unit(found: Mapping[str, Any]) -> str:
    units: Sequence[str] = [point["unit"] for point in found["points"] if not point["failed"]]
    return units[0] if units else "rounds"


def _with_bounds(found: Mapping[str, Any]) -> str:
    """A mean, with its interval where there is one."""
    return f"{found['mean']:.2f}" + ("" if found["low"] is None else f" {bounds(found['low'], found['high'], '.2f')}")
