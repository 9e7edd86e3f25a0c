"""One host: its course, its network as it grows, the lives of its seeds, and every decision with what came of it."""

from __future__ import annotations

from typing import Any

from esper.karn.event_index import Row
from esper.karn.record import Record
from esper.karn.views.feed import decision_text, line_of
from esper.karn.views.hosts import course_of, detailed, host_row, started, twins
from esper.karn.views.lives import Life, lives_of
from esper.karn.views.plain import view
from esper.leyline.errors import UnknownNameError
from esper.leyline.stages import Stage

AFTERWARDS = ("refused", "gate_checked", "stage_changed", "alpha_retargeted")
"""Events that a decision brings about, in the same epoch."""
EMPTY = {"stage": Stage.DORMANT.name, "blueprint": "", "alpha": 0.0, "contribution": None}
"""A slot without a seed."""


@view
def host(record: Record, number: int) -> dict[str, Any]:
    """Everything about a host. Raises UnknownNameError for a number that no host has."""
    begun = _begun(record, number)
    course, twin = course_of(record, number), twins(record).get(number)
    epochs = sorted(course.val)
    beside = {} if twin is None else course_of(record, twin).val
    train = {row["epoch"]: row["train_accuracy"] for row in record.rows("epoch_finished", host=number)}
    lives = lives_of(record, number)
    return {
        "row": host_row(record, number),
        "slots": begun["slots"],
        "member": begun["member"],
        "curve": {
            "epochs": epochs,
            "val": [course.val[epoch] for epoch in epochs],
            "train": [train.get(epoch) for epoch in epochs],
            "control": [beside.get(epoch) for epoch in epochs],
            "parameters": [course.parameters[epoch] for epoch in epochs],
        },
        "timeline": _timeline(record, number, lives),
        "lives": lives,
        "decisions": _decisions(record, number, lives),
    }


@view
def decision(record: Record, number: int, epoch: int) -> dict[str, Any]:
    """The decision of a host after an epoch, with what it was made on: {..., "seen": {"epoch_finished", "seeds", "observed"}}.

    Raises UnknownNameError where none is recorded.
    """
    _begun(record, number)
    found = [each for each in host(record, number)["decisions"] if each["epoch"] == epoch]
    if not found:
        raise UnknownNameError(f"no decision of host {number} after epoch {epoch} is recorded")
    rows = [row for row in record.rows("epoch_finished", "seed_measured", "observed", host=number) if row["epoch"] == epoch]
    by_kind = {kind: [_data(row) for row in rows if row["kind"] == kind] for kind in ("epoch_finished", "seed_measured", "observed")}
    seen = {
        "epoch_finished": next(iter(by_kind["epoch_finished"]), None),
        "seeds": by_kind["seed_measured"],
        "observed": next(iter(by_kind["observed"]), None),
    }
    return {**found[0], "seen": seen}


def _begun(record: Record, number: int) -> Row:
    if number not in started(record):
        known = len(started(record))
        raise UnknownNameError(f"the run has no host {number}; " + (f"it has recorded {known} hosts" if known else "none is recorded"))
    return started(record)[number]


def _data(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("seq", "time", "host", "epoch", "kind")}


# The network as it grows


def _timeline(record: Record, number: int, lives: list[Life]) -> list[dict[str, Any]]:
    """After each epoch and what was decided then, from before the first on: val, parameters, and each slot's stage, blueprint, alpha and
    contribution. Of a host that is not recorded in full, a stage between birth and end is UNKNOWN."""
    begun, course = started(record)[number], course_of(record, number)
    full = number in detailed(record)
    slots = {slot: dict(EMPTY) for slot in begun["slots"]}
    by_epoch: dict[int, list[Row]] = {}
    for row in record.rows("seed_measured", "stage_changed", host=number) if full else ():
        by_epoch.setdefault(row["epoch"], []).append(row)
    found = [{"epoch": 0, "val": None, "parameters": begun["parameters"], "slots": {slot: dict(EMPTY) for slot in slots}}]
    for epoch in range(1, max((*course.val, *by_epoch), default=0) + 1):
        for row in by_epoch.get(epoch, ()):
            _move(slots[row["slot"]], row)
        shown = slots if full else {slot: _coarse(slot, epoch, lives) for slot in slots}
        figures = {"val": course.val.get(epoch), "parameters": course.parameters.get(epoch)}
        found.append({"epoch": epoch, **figures, "slots": {slot: dict(state) for slot, state in shown.items()}})
    return found


def _move(state: dict[str, Any], row: Row) -> None:
    if row["kind"] == "seed_measured":
        state.update({name: row[name] for name in ("stage", "blueprint", "alpha", "contribution")})
    elif row["after"] == Stage.DORMANT.name:
        state.update(EMPTY)
    else:
        state.update(stage=row["after"], blueprint=row["blueprint"])
        if row["after"] in ("GERMINATED", "PRUNED"):
            state.update(alpha=0.0, contribution=None)


def _coarse(slot: str, epoch: int, lives: list[Life]) -> dict[str, Any]:
    state = dict(EMPTY)
    for life in lives:
        if life["slot"] != slot or life["born"] > epoch:
            continue
        over = life["ended"] is not None and life["ended"] <= epoch
        if not over or life["outcome"] == "unfinished":
            state = {"stage": Stage.UNKNOWN.name, "blueprint": life["blueprint"], "alpha": None, "contribution": None}
        elif life["outcome"] == "fossilized":
            state = {"stage": Stage.FOSSILIZED.name, "blueprint": life["blueprint"], "alpha": 1.0, "contribution": life["contribution"]}
        else:
            state = dict(EMPTY)
    return state


# Decisions


def _decisions(record: Record, number: int, lives: list[Life]) -> list[dict[str, Any]]:
    """Every decision in order, with what it earned and what followed."""
    earned = {row["epoch"]: row for row in record.rows("rewarded", host=number)}
    after: dict[int, list[Row]] = {}
    found = []
    for row in record.rows("decided", *AFTERWARDS, host=number):
        if row["kind"] == "decided":
            after[row["epoch"]] = []  # what came before it in this epoch happened while the host was trained
            found.append(row)
        elif row["epoch"] in after:
            after[row["epoch"]].append(row)
    return [_decision(row, after[row["epoch"]], earned.get(row["epoch"]), lives) for row in found]


def _decision(row: Row, after: list[Row], earned: Row | None, lives: list[Life]) -> dict[str, Any]:
    made = row["decision"]
    return {
        "seq": row["seq"],
        "epoch": row["epoch"],
        "op": made["op"],
        "slot": made["slot"],
        "text": decision_text(made),
        "reason": made["reason"],
        "decision": made,
        "legal": row["legal"],
        "probabilities": row["probabilities"],
        "value": row["value"],
        "reward": None if earned is None else earned["total"],
        "components": {} if earned is None else earned["components"],
        "refused": next((each["reason"] for each in after if each["kind"] == "refused"), ""),
        "after": [line_of(each) for each in after if each["kind"] != "refused"] + _became(made, row["epoch"], lives),
    }


def _became(made: dict[str, Any], epoch: int, lives: list[Life]) -> list[str]:
    """What became of the seed that a decision planted."""
    if made["op"] != "GERMINATE":
        return []
    words = {
        "fossilized": "was fossilised after epoch {ended}",
        "pruned": "was pruned after epoch {ended}",
        "unfinished": "was still alive at the end and dropped",
        "alive": "is alive",
    }
    found = [life for life in lives if life["slot"] == made["slot"] and life["born"] == epoch]
    texts = []
    for life in found:
        last = "" if life["contribution"] is None else f", bringing {life['contribution']:+.2f} points"
        texts.append(f"the seed {words[life['outcome']].format(ended=life['ended'])}{last}")
    return texts
