"""The headline of runs that teach a policy, by playing or from recordings."""

from __future__ import annotations

from typing import Any

from esper.karn.record import Record
from esper.karn.views.figures import Figure, bounds_of, difference_of, figure, metric, over, paired
from esper.karn.views.hosts import finished, grown, started
from esper.karn.views.learning import RETURN, rounds


def examined_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """A policy that was taught and examined: its score, and its difference to each baseline."""
    examination = summary["examination"]
    policy = examination["arms"]["policy"]
    scores = [row["policy_score"] for row in examination.get("rows", ())]
    note = f"val accuracy minus rent, {over(examination['hosts'], 'unseen host')}" if "hosts" in examination else "val accuracy minus rent"
    figures = [figure("score", policy["score"], note=note, found=bounds_of(scores), trend=metric(record, "rollout/accuracy"))]
    for arm, found in examination.get("policy_against", {}).items():
        figures.append(figure(f"against {arm}", found["mean"], "+.2f", paired(found), found=found))
    if "growth" in policy:
        figures.append(figure("size", policy["growth"], "x.2f", "of the bare host", trend=metric(record, "rollout/growth")))
        if "wait" in examination["arms"]:
            spent = policy["operations"] / examination["arms"]["wait"]["operations"]
            figures.append(figure("operations", spent, "x.1f", "of the same hosts without growth"))
    return figures


def learning_figures(record: Record) -> list[Figure]:
    """A policy that plays and learns: its last round."""
    found = rounds(record)
    if not found["rounds"]:
        return []
    shown = (
        (RETURN, "return", "+.3f", "of an episode"),
        ("rollout/accuracy", "val accuracy", ".2f", "of harvested networks"),
        ("rollout/against_control", "against the control", "+.2f", ""),
        ("rollout/growth", "size", "x.2f", "of the bare host"),
        ("rollout/fossils", "fossils", ".2f", "a host"),
        ("train/explained_variance", "explained variance", ".2f", "of returns, by the critic"),
        ("train/entropy/op", "op entropy", ".2f", "1 is drawn by lot"),
    )
    figures = []
    for name, label, form, note in shown:
        if name not in found["metrics"]:
            continue
        course = found["metrics"][name]
        bounds = _last_round(record) if name == "rollout/against_control" else None
        note = paired(bounds) + " of the last round" if bounds else note
        figures.append(figure(label, course[-1], form, note, found=bounds, trend=course))
    return figures


def _last_round(record: Record) -> dict[str, Any] | None:
    """The hosts of the last round that ended against their twins."""
    ended = [finished(record)[number] for number in grown(record) if number in finished(record)]
    last = max((started(record)[row["host"]]["round"] for row in ended), default=0)
    pairs = [
        (row["val_accuracy"], row["control_accuracy"])
        for row in ended
        if started(record)[row["host"]]["round"] == last and row["control_accuracy"] is not None and row["val_accuracy"] is not None
    ]
    return difference_of(pairs) if pairs and last == rounds(record)["rounds"][-1] else None


def studied_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """A policy that was taught from recordings: how well it agrees with those held out."""
    study = summary["study"]
    found = study["agreement"]
    held_out = f"of decisions on {study['held_out']} held-out episodes"
    shown = (("accuracy/op", "op agreed"), ("accuracy/decision", "whole decision agreed"), ("accuracy/acts", "acts agreed"))
    return [figure(label, found[name], ".1%", held_out, trend=metric(record, f"held_out/{name}")) for name, label in shown if name in found]


def passes_figures(record: Record) -> list[Figure]:
    """A policy that learns from recordings: its last pass."""
    shown = (("held_out/accuracy/op", "op agreed", ".1%"), ("held_out/log_likelihood", "log-likelihood", ".3f"))
    return [
        figure(label, course[-1], form, "on held-out hosts", trend=course)
        for name, label, form in shown
        if (course := metric(record, name))
    ]
