"""The lives of seeds: of every host, and by blueprint."""

from __future__ import annotations

from typing import Any

from esper.karn.diagnostics.lives import success
from esper.karn.event_index import Row
from esper.karn.record import Record
from esper.karn.views.hosts import detailed, finished, grown, started
from esper.karn.views.plain import view
from esper.leyline.events import SeedLife
from esper.leyline.stages import BLENDED

Life = dict[str, Any]
"""host, slot, blueprint, style, born, ended, outcome, contribution, parameters, stages: [[epoch, stage], ...].

outcome: fossilized, pruned, unfinished (dropped at the end of the budget) or alive. stages: empty where the host is not recorded in full.
"""
_ENDS = {"FOSSILIZED": "fossilized", "PRUNED": "pruned"}
_BLENDED = {stage.name for stage in BLENDED}


@view
def lives(record: Record) -> list[Life]:
    """Every seed of every host but the twins, host by host, in the order of their births."""
    return [life for number, row in started(record).items() if row["twin_of"] is None for life in lives_of(record, number)]


@view
def blueprints(record: Record) -> list[dict[str, Any]]:
    """What became of the seeds of each blueprint, of the hosts that the run is about; those that are alive are no part of it."""
    by_name: dict[str, list[SeedLife]] = {}
    for number in grown(record):
        for seed in finished(record)[number]["seeds"] if number in finished(record) else ():
            by_name.setdefault(seed["blueprint"], []).append(SeedLife(**seed))
    found = []
    for name in sorted(by_name):
        each = success(by_name[name])
        outcomes = {outcome: getattr(each, outcome) for outcome in ("created", "fossilized", "pruned", "unfinished")}
        found.append({"blueprint": name, **outcomes, "survival": each.survival, "contribution": each.contribution})
    return found


def lives_of(record: Record, number: int) -> list[Life]:
    """The seeds of one host, in the order of their births."""
    changes = _changes(record).get(number, [])
    if number in finished(record):
        seeds = finished(record)[number]["seeds"]
        return [{"host": number, **seed, "stages": _stages(changes, seed)} for seed in seeds]
    return _so_far(record, number, changes) if number in detailed(record) else []


def _changes(record: Record) -> dict[int, list[Row]]:
    """Changes of stage, by host."""

    def find() -> dict[int, list[Row]]:
        by_host: dict[int, list[Row]] = {}
        for row in record.rows("stage_changed"):
            by_host.setdefault(row["host"], []).append(row)
        return by_host

    return record.remembered("stage_changes", find)


def _stages(changes: list[Row], seed: Life) -> list[list[Any]]:
    """The stages of one seed with the epoch at which each began: from its germination to what became of it."""
    stages: list[list[Any]] = []
    for row in changes:
        if row["slot"] != seed["slot"] or row["epoch"] < seed["born"]:
            continue
        if not stages and row["after"] != "GERMINATED":
            continue
        stages.append([row["epoch"], row["after"]])
        if row["after"] in _ENDS:
            break
    return stages


def _so_far(record: Record, number: int, changes: list[Row]) -> list[Life]:
    """The seeds of a host that has not ended, from what happened to them so far."""
    styles = {(row["epoch"], row["decision"]["slot"]): row["decision"]["style"] for row in record.rows("decided", host=number)}
    found: list[Life] = []
    alive: dict[str, Life] = {}
    events = record.rows("stage_changed", "seed_measured", host=number) if changes else []
    for row in events:
        slot = row["slot"]
        if row["kind"] == "seed_measured":
            if slot in alive and row["stage"] in _BLENDED and row["contribution"] is not None:
                alive[slot]["contribution"] = row["contribution"]
        elif row["after"] == "GERMINATED":
            style = styles.get((row["epoch"], slot), "")
            life = {"host": number, "slot": slot, "blueprint": row["blueprint"], "style": style, "born": row["epoch"], "ended": None}
            life |= {"outcome": "alive", "contribution": None, "parameters": row["parameters"], "stages": [[row["epoch"], row["after"]]]}
            alive[slot] = life
            found.append(life)
        elif slot in alive:
            alive[slot]["stages"].append([row["epoch"], row["after"]])
            if row["after"] in _ENDS:
                alive.pop(slot).update(ended=row["epoch"], outcome=_ENDS[row["after"]])
    return found
