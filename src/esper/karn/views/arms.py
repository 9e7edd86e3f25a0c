"""What is set against each other in a run: arms of an examination or a comparison, trials of a search, points of a sweep, plans."""

from __future__ import annotations

from typing import Any

from esper.karn.record import SUMMARY, Record
from esper.karn.views.hosts import finished, started
from esper.karn.views.plain import mean, view
from esper.leyline.errors import RunError
from esper.leyline.score import score

FIGURES = ("score", "accuracy", "growth", "operations", "fossils", "reward")
"""Of an arm: means over its hosts. growth: parameters as multiples of the bare host's."""


@view
def arms(record: Record) -> list[dict[str, Any]]:
    """Each arm with its figures: {"arm", "hosts", ...FIGURES, "difference", "difference_of"}.

    difference: paired by host, with "mean", "low", "high", "pairs" and "wins"; None where there is none, or not yet. difference_of: what
    is subtracted from what, in words. Of a comparison, score and accuracy are on the test split; elsewhere on val.
    """
    try:
        return _arms(record, record.summary or {})
    except (LookupError, TypeError, AttributeError) as error:
        if record.summary is None:
            raise
        raise RunError(f"{record.path / SUMMARY} was edited: it lacks figures") from error


def _arms(record: Record, summary: dict[str, Any]) -> list[dict[str, Any]]:
    if "comparison" in summary:
        return _compared(summary)
    if "adaptivity" in summary:
        return [_plan(row) for row in summary["plans"]]
    if "sweep" in summary:
        return [_point(row) for row in summary["sweep"]["points"] if not row["failed"]]
    found = {row["arm"]: {name: row[name] for name in ("arm", "hosts", *FIGURES)} for row in record.rows("arm_examined")}
    rows = list(found.values()) or _played(record)
    against = summary.get("examination", {}).get("policy_against", {})
    return [_row(row, against.get(row["arm"]), "the policy minus it") for row in rows]


def _row(figures: dict[str, Any], difference: dict[str, Any] | None, of: str) -> dict[str, Any]:
    return {**figures, "difference": difference, "difference_of": of if difference else ""}


def _played(record: Record) -> list[dict[str, Any]]:
    """Arms of a comparison that goes on, from the hosts that have ended."""
    by_arm: dict[str, list[Any]] = {}
    for number, row in started(record).items():
        if row["arm"] and number in finished(record):
            by_arm.setdefault(row["arm"], []).append(finished(record)[number])
    found = []
    for arm, ended in by_arm.items():
        split = "val_accuracy" if any(row["test_accuracy"] is None for row in ended) else "test_accuracy"
        scores = [score(row[split], row["parameters"], row["host_parameters"], row["rent"]) for row in ended if row[split] is not None]
        row = {
            "arm": arm,
            "hosts": len(ended),
            "score": mean(scores),
            "accuracy": mean([row[split] for row in ended if row[split] is not None]),
        }
        row["growth"] = mean([row["parameters"] / row["host_parameters"] for row in ended])
        row["operations"] = mean([sum(row["flops"].values()) for row in ended])
        row |= {"fossils": mean([row["fossilized"] for row in ended]), "reward": mean([row["reward"] for row in ended])}
        found.append(row)
    return found


def _compared(summary: dict[str, Any]) -> list[dict[str, Any]]:
    comparison, first = summary["comparison"], summary["policies"][0]
    against = {pair["second"]: pair["score"]["difference"] for pair in comparison["pairs"] if pair["first"] == first}
    rows = []
    for arm, figures in comparison["arms"].items():
        row = {"arm": arm, "hosts": figures["hosts"], "score": figures["score"]["mean"], "accuracy": figures["test_accuracy"]["mean"]}
        row |= {"growth": figures["growth"], "operations": figures["operations"], "fossils": figures["fossilized"], "reward": None}
        rows.append(_row(row, against.get(arm), f"{first} minus it"))
    return rows


def _plan(row: dict[str, Any]) -> dict[str, Any]:
    figures = {"arm": row["described"], "hosts": row["against_wait"]["n"], "score": row["score"], "accuracy": row["accuracy"]}
    figures |= {"growth": row["growth"], "operations": row["flops"], "fossils": None, "reward": None}
    return _row(figures, row["against_wait"], "it minus waiting")


def _point(row: dict[str, Any]) -> dict[str, Any]:
    values = ", ".join(f"{key} {value}" for key, value in row["values"].items())
    figures = {"arm": f"point {row['point']}: {values}", "hosts": len(row["scores"]), "score": row["score"]["mean"]}
    figures |= {name: row[name] for name in FIGURES[1:]}
    return _row(figures, row["against_best"], "it minus the best")
