"""The headline of runs that play many hosts to find something out."""

from __future__ import annotations

from typing import Any

from esper.karn.record import Record
from esper.karn.views.arms import arms
from esper.karn.views.figures import Figure, figure, over, paired


def compared_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """The first policy of a comparison, and its difference to each other arm."""
    first = summary["policies"][0]
    found = summary["comparison"]["arms"][first]
    note = f"test accuracy minus rent, {over(found.get('hosts', 0), 'unseen host')}"
    figures = [figure(f"score of {first}", found["score"]["mean"], note=note, found=found["score"])]
    for pair in summary["comparison"].get("pairs", ()):
        if pair["first"] == first:
            difference = pair["score"]["difference"]
            figures.append(figure(f"against {pair['second']}", difference["mean"], "+.2f", paired(difference), found=difference))
    return figures


def headroom_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """What could be won by deciding for each host, and the best plan that decides for none."""
    found = summary["adaptivity"]
    figures = [
        figure("by deciding for each host", found["during"]["mean"], "+.2f", "points of score, from what it shows", found=found["during"])
    ]
    if "before" in found:
        figures.append(figure("by what is known before", found["before"]["mean"], "+.2f", "points of score", found=found["before"]))
    if "best" in summary:
        best = summary["best"]
        figures.append(figure("best single plan", best["score"]["mean"], note=best["described"], found=best["score"]))
    return figures


def plans_figures(record: Record) -> list[Figure]:
    """The best plan so far."""
    played = [row for row in record.rows("plans_played") if row["best"]]
    if not played:
        return []
    note = f"{played[-1]['best']}, of {played[-1]['plans']} plans"
    return [figure("best score", played[-1]["score"], note=note, trend=[row["score"] for row in played])]


def searched_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """What the best settings gain on hosts that no trial saw."""
    fresh = summary["search"]["fresh"]
    if fresh is None:
        return [{**figure("found", None, note="nothing better than the present settings"), "text": "nothing better"}]
    difference = fresh["difference"]
    note = f"the best minus the present settings, {over(fresh['hosts'], 'fresh host')}"
    return [figure("gained", difference["mean"], "+.2f", note, found=difference)]


def swept_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """The best point of a sweep."""
    best = summary["sweep"]["points"][0]
    if best["failed"]:
        return [{**figure("best score", None, note="every point failed"), "text": "every point failed"}]
    values = ", ".join(f"{key} {value}" for key, value in best.get("values", {}).items())
    return [figure("best score", best["score"]["mean"], note=f"point {best['point']}: {values}", found=best["score"])]


def ahead_figures(record: Record) -> list[Figure]:
    """The arm that came furthest and did best so far."""
    ranked = sorted((row for row in arms(record) if row["score"] is not None), key=lambda row: (-row["hosts"], -row["score"]))
    return (
        [figure("best score so far", ranked[0]["score"], note=f"{ranked[0]['arm']}, {over(ranked[0]['hosts'], 'host')}")] if ranked else []
    )
