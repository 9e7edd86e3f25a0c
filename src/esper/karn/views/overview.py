"""A run at a glance: what it is, how it stands, how far it is, and the few figures that it is about."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil
from typing import Any

from esper.karn.record import Record
from esper.karn.views.figures import Figure
from esper.karn.views.headline import curve, headline
from esper.karn.views.plain import view
from esper.leyline.errors import RunError
from esper.simic.runs.resuming import PRACTICE, resume_command

UNITS = {"run": "epoch", "gardener": "epoch", "bc": "pass", "iql": "pass", "sweep": "point"}
"""What a round of each kind of run is called; of the others, a round."""


@view
def overview(record: Record, key: str = "") -> dict[str, Any]:
    """A run at a glance. key: what it is called where it is listed; by default the name of its folder."""
    info, method = record.info, method_of(record)
    begun = record.last("run_started") or {}
    figures: list[Figure] = []
    small: list[float] = []
    label, problem = "", record.problem
    try:
        figures = headline(record, method)
        small, label = curve(record, method)
    except RunError as error:  # a summary that was edited is no reason to show nothing
        problem = problem or str(error)
    return {
        "key": key or record.path.name,
        "name": record.path.name,
        "path": str(record.path),
        "id": info.id,
        "status": info.status,
        "command": info.command,
        "go_on": go_on(record),
        "created": info.created.isoformat(),
        "method": method,
        "task": begun.get("task") or _task(record),
        "seed": begun.get("seed", record.config.get("seed", 0)),
        "controller": begun.get("about", {}).get("controller"),
        "versions": begun.get("versions") or (record.summary or {}).get("versions", {}),
        "machine": begun.get("machine", {}),
        "about": begun.get("about", {}),
        "progress": progress(record),
        "headline": figures,
        "curve": small,
        "curve_label": label,
        "flags": flags(record),
        "problem": problem,
    }


@view
def flags(record: Record) -> list[dict[str, Any]]:
    """What looked wrong, in order: {"detector", "text", "seq", "host", "epoch", "round"}."""
    ends = record.numbers("round_finished")
    return [
        {**{name: row[name] for name in ("detector", "text", "seq", "host", "epoch")}, "round": bisect_left(ends, row["seq"]) + 1}
        for row in record.rows("anomaly")
    ]


def method_of(record: Record) -> str:
    """The kind of the run: run, learn, bc, iql, compare, headroom, tune, sweep or gardener."""
    return str(record.config.get("kind") or (record.last("run_started") or {}).get("method") or "run")


def go_on(record: Record) -> str | None:
    """The command to go on with the run; None for one that goes on, is finished, or goes on in a loop of its user's own."""
    method = method_of(record)
    if record.info.status not in ("interrupted", "new") or method == "gardener":
        return None
    return resume_command(method, record.path)


def progress(record: Record) -> dict[str, Any]:
    """{"unit", "done", "total", "share", "updated", "events"}; share is from 0 to 1, updated the time of the last event."""
    method, begun, last = method_of(record), record.last("run_started"), record.last("round_finished")
    done = last["round"] if last else 0
    total = last["rounds"] if last else begun["rounds"] if begun else 0
    if method in PRACTICE and isinstance(record.config.get("rounds"), int):
        total = record.config["rounds"]  # a run may go on for longer than it was begun for
    newest = record.at([len(record) - 1])
    finished = record.info.status == "finished"
    if finished and not last:
        done = total = _rounds(record)  # of a run of which no events were read
    return {
        "unit": UNITS.get(method, "round"),
        "done": done,
        "total": total,
        "share": 1.0 if finished else _share(record, method, done, total),
        "updated": newest[0]["time"] if newest else None,
        "events": len(record),
    }


def _rounds(record: Record) -> int:
    """The rounds that a finished run had, by its summary; 0 where that does not say."""
    summary = record.summary or {}
    if "hosts" in summary and isinstance(summary["hosts"], list):
        return max((len(host.get("val_accuracies", ())) for host in summary["hosts"] if isinstance(host, dict)), default=0)
    for name in ("rounds", "epochs", "history"):
        if isinstance(summary.get(name), list):
            return len(summary[name])
    return 0


def _share(record: Record, method: str, done: int, total: int) -> float:
    about = (record.last("run_started") or {}).get("about", {})
    if method in PRACTICE and "arms" in about and "examined" in about:
        hosts = record.last("run_started")["hosts"]  # type: ignore[index]
        each = int(about["examined"]) / (hosts + int(about.get("forks", 0)))
        return min(1.0, (done + each * record.count("arm_examined")) / (total + ceil(int(about["arms"]) * each)))
    return min(1.0, done / total) if total else 0.0


def _task(record: Record) -> str:
    task = record.config.get("task", "")
    return ",".join(map(str, task)) if isinstance(task, list) else str(task)
