"""Searches and sweeps as people type and read them: what is searched; what came out, and how far to trust it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from esper.cli.results import WIDTH, say
from esper.cli.tables import Row, print_rows
from esper.leyline.errors import ConfigError
from esper.simic.statistics import TOO_FEW, bounds

SHOWN_TRIALS = 10
"""Rows of the table of trials; the rest is in summary.json."""


def print_search(summary: Mapping[str, Any]) -> None:
    """Trials of a controller's settings, the best of them, and what it is worth on fresh hosts."""
    found = summary["search"]
    rows: list[Row] = [
        {
            "trial": trial["trial"],
            "hosts": trial["hosts"],
            "score": trial["score"],
            "val": trial["accuracy"],
            "size x": trial["growth"],
            "changed": values_told(trial["values"]) or "nothing: the present settings",
        }
        for trial in found["trials"][:SHOWN_TRIALS]
    ]
    print()
    print_rows(rows, tuple(rows[0]), wrapped=["changed"], width=WIDTH)
    if len(found["trials"]) > SHOWN_TRIALS:
        print(f"and {len(found['trials']) - SHOWN_TRIALS} trials more")
    say(f"{found['spent']:,} of {found['budget']:,} host epochs spent; score is the val accuracy of the harvested network minus rent")
    for sentence in search_verdict(found):
        say(sentence)
    print(f"best settings: {summary['run']}/best.toml")
    print(f"run folder: {summary['run']}")


def search_verdict(found: Mapping[str, Any]) -> list[str]:
    """What the best trial is worth, in sentences that the interval bears out."""
    if found["fresh"] is None:
        return ["nothing came out better than the present settings: keep them"]
    fresh, difference = found["fresh"], found["fresh"]["difference"]
    lines = [
        f"in the search the best, trial {found['best']['trial']}, was ahead of the present settings by "
        f"{fresh['in_the_search']['difference']:+.2f} points on {fresh['in_the_search']['hosts']} hosts; the best of many is flattered, by "
        f"{fresh['flattered_by']:+.2f} points here",
        f"on {fresh['hosts']} hosts that no trial saw: {difference['mean']:+.2f} points, {_interval(difference)}, better on "
        f"{difference['wins']} of {difference['pairs']}",
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
    unit = next((point["unit"] for point in found["points"] if not point["failed"]), "rounds")
    rows: list[Row] = []
    for point in found["points"]:
        row = {"point": point["point"], **{key: str(value) for key, value in point["values"].items()}}
        if point["failed"]:
            rows.append({**row, "score [95 %]": "failed", "minus the best": "", "val": "", "size x": "", f"{unit} to 95 %": ""})
            continue
        score, against = point["score"], point["against_best"]
        shown = f"{score['mean']:.2f}" + ("" if score["low"] is None else f" {bounds(score['low'], score['high'], '.2f')}")
        behind = "" if against is None else f"{against['mean']:.2f}"
        behind += "" if against is None or against["low"] is None else f" {bounds(against['low'], against['high'], '.2f')}"
        reached = "-" if point["converged"] is None else str(point["converged"])
        figures = {"val": f"{point['accuracy']:.2f}", "size x": f"{point['growth']:.2f}", f"{unit} to 95 %": reached}
        rows.append({**row, "score [95 %]": shown, "minus the best": behind, **figures})
    print()
    columns = tuple(rows[0])
    print_rows(rows, columns, wrapped=[], right=[name for name in columns if name != "point" and name not in found["space"]])
    say(
        "score is the val accuracy of the harvested network minus rent, with the 95 % interval of its mean over hosts, and of the "
        "difference to the best host by host; "
        f"{unit} to 95 %: until it had come 95 % of the way from its first figure to its last"
    )
    failed = [point for point in found["points"] if point["failed"]]
    for point in failed:
        say(f"point {point['point']} failed: {point['failed']}")
    if found["best"] is not None:
        if len(found["points"]) - len(failed) > 1:
            say("the best of several is flattered by having been chosen: run it on other hosts before you claim its figure")
        print(f"best config: {summary['run']}/best.toml")
    print(f"run folder: {summary['run']}")


def values_told(values: Mapping[str, Any]) -> str:
    """The values of a trial in a line."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _interval(found: Mapping[str, Any]) -> str:
    return TOO_FEW if found["low"] is None else f"95 % interval {bounds(found['low'], found['high'])}"


# What is searched, as it is typed


def with_underscores(over: dict[str, str]) -> dict[str, str]:
    """Keys as a config has them, however they were typed: flags have hyphens."""
    return {key.replace("-", "_"): text for key, text in over.items()}


def pairs(items: Collection[str], flag: str) -> dict[str, str]:
    """KEY=VALUES as a person types them. Raises ConfigError for what is no pair, and for a key that is named twice."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"{flag}: {item!r} is not a pair; expected KEY=VALUES")
        if key in found:
            raise ConfigError(f"{flag}: {key!r} is there twice; expected each key once")
        found[key] = text
    return with_underscores(found)
