"""The hosts of a run: a row for each, the course of each, and how they are distributed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from esper.karn.event_index import Row
from esper.karn.record import Record
from esper.karn.views.plain import view
from esper.leyline.score import score

COLUMNS = (
    *("number", "task", "seed", "controller", "round", "arm", "twin_of", "epochs", "epoch", "val_accuracy", "test_accuracy"),
    *("control_accuracy", "score", "host_parameters", "parameters", "parameters_x", "operations", "live", "fossils", "germinated"),
    *("pruned", "rollbacks", "reward", "ended", "detailed"),
)
"""Of the table of hosts."""
QUANTILES = {"min": 0, "10": 10, "25": 25, "50": 50, "75": 75, "90": 90, "max": 100}


@dataclass(slots=True)
class Course:
    """A host from epoch to epoch, as far as it is recorded."""

    val: dict[int, float | None] = field(default_factory=dict)
    parameters: dict[int, int] = field(default_factory=dict)
    live: int = 0
    fossils: int = 0
    """After the last epoch, before what was decided then."""

    @property
    def epoch(self) -> int:
        """The last one."""
        return max(self.val, default=0)

    def note(self, epoch: int, val: float | None, parameters: int, live: int | None = None, fossils: int | None = None) -> None:
        """An epoch; what is measured exactly comes after what is rounded."""
        self.val[epoch], self.parameters[epoch] = val, parameters
        if live is not None and fossils is not None:
            self.live, self.fossils = live, fossils


@view
def hosts(record: Record) -> dict[str, Any]:
    """Every host: {"total", "detailed": numbers of those that are recorded in full, "columns", "rows"}; twins are among them."""
    rows = host_rows(record)
    return {
        "total": len(rows),
        "detailed": [row["number"] for row in rows if row["detailed"]],
        "columns": COLUMNS,
        "rows": [[row[name] for name in COLUMNS] for row in rows],
    }


@view
def distribution(record: Record) -> dict[str, Any]:
    """Val accuracy over the hosts of the latest play, twins left out, by epoch: {"epochs", "quantiles", "n", "round", "arm"}."""
    play = latest_play(record)
    by_epoch: dict[int, list[float]] = {}
    for number, started in play.items():
        if started["twin_of"] is None:
            for epoch, value in courses(record).get(number, Course()).val.items():
                if value is not None:
                    by_epoch.setdefault(epoch, []).append(value)
    epochs = sorted(by_epoch)
    found = [np.percentile(by_epoch[epoch], list(QUANTILES.values())).tolist() for epoch in epochs]
    about = next(iter(play.values()), {"round": 0, "arm": ""})
    return {
        "epochs": epochs,
        "quantiles": {name: [each[place] for each in found] for place, name in enumerate(QUANTILES)},
        "n": [len(by_epoch[epoch]) for epoch in epochs],
        "round": about["round"],
        "arm": about["arm"],
    }


# What the views of hosts are made from; shared, so nothing in it is changed


def started(record: Record) -> dict[int, Row]:
    """How each host began, by number."""
    return record.remembered("started", lambda: {row["host"]: row for row in record.rows("host_started")})


def finished(record: Record) -> dict[int, Row]:
    """How each host that ended did so, by number."""
    return record.remembered("finished", lambda: {row["host"]: row for row in record.rows("host_finished")})


def twins(record: Record) -> dict[int, int]:
    """The number of each host's twin, for those that have one beside them."""
    return record.remembered(
        "twins", lambda: {row["twin_of"]: number for number, row in started(record).items() if row["twin_of"] is not None}
    )


def detailed(record: Record) -> set[int]:
    """The hosts that are recorded in full."""

    def find() -> set[int]:
        return {host for seq in record.numbers("decided") if (host := record.host_of(seq)) is not None}

    return record.remembered("detailed", find)


def grown(record: Record) -> list[int]:
    """The hosts that a run is about, which are no twins; of those with arms, such as an examination's, the ones without, or those of the
    first arm where all have one."""

    def find() -> list[int]:
        rows = {number: row for number, row in started(record).items() if row["twin_of"] is None}
        arms = list(dict.fromkeys(row["arm"] for row in rows.values()))
        wanted = "" if "" in arms else next(iter(arms), "")
        return [number for number, row in rows.items() if row["arm"] == wanted]

    return record.remembered("grown", find)


def latest_play(record: Record) -> dict[int, Row]:
    """The hosts that began together last, by number."""

    def find() -> dict[int, Row]:
        rows = list(started(record).values())
        first = max((place for place, (a, b) in enumerate(pairwise(rows), start=1) if b["seq"] != a["seq"] + 1), default=0)
        return {row["host"]: row for row in rows[first:]}

    return record.remembered("latest_play", find)


def courses(record: Record) -> dict[int, Course]:
    """The course of every host of the latest play, by number."""
    return record.remembered("courses", lambda: _courses(record))


def _courses(record: Record) -> dict[int, Course]:
    """What is new is added to what is known: a run that goes on is asked twice a second."""
    since = min((row["seq"] for row in latest_play(record).values()), default=0)
    known: tuple[int, dict[int, Course], int] = record.kept.get("courses", (-1, {}, 0))
    play, found, after = known if known[0] == since else (since, {}, since)
    # Figures that are rounded come before those that are not, of the same epoch.
    for row in record.at(seq for seq in record.numbers("hosts_trained", "epoch_finished") if seq >= after):
        if row["kind"] == "epoch_finished":
            found.setdefault(row["host"], Course()).note(row["epoch"], row["val_accuracy"], row["parameters"])
            continue
        columns = zip(row["hosts"], row["val_accuracy"], row["parameters"], row["live"], row["fossils"], strict=True)
        for host, *figures in columns:
            found.setdefault(host, Course()).note(row["epoch"], *figures)
    record.kept["courses"] = play, found, len(record)
    return found


def course_of(record: Record, number: int) -> Course:
    """The course of one host, whichever play it is of."""
    if number in latest_play(record):
        return courses(record).get(number, Course())
    course, begun, ended = Course(), started(record)[number]["seq"], finished(record).get(number)
    until = len(record) if ended is None else ended["seq"]
    for row in record.at(seq for seq in record.numbers("hosts_trained") if begun < seq < until):
        if number in row["hosts"]:
            place = row["hosts"].index(number)
            course.note(row["epoch"], *(row[name][place] for name in ("val_accuracy", "parameters", "live", "fossils")))
    for row in record.rows("epoch_finished", host=number):
        course.note(row["epoch"], row["val_accuracy"], row["parameters"])
    return course


def host_rows(record: Record) -> list[dict[str, Any]]:
    """The table of hosts, as dicts."""
    return record.remembered("host_rows", lambda: [host_row(record, number) for number in started(record)])


def host_row(record: Record, number: int) -> dict[str, Any]:
    """One row of the table of hosts."""
    begun, ended = started(record)[number], finished(record).get(number)
    row: dict[str, Any] = {
        "number": number,
        **{name: begun[name] for name in ("task", "seed", "controller", "round", "arm", "twin_of", "epochs")},
    }
    row |= {"host_parameters": begun["parameters"], "ended": ended is not None, "detailed": number in detailed(record)}
    row |= _so_far(record, number) if ended is None else _at_the_end(ended)
    row["parameters_x"] = None if row["parameters"] is None else row["parameters"] / begun["parameters"]
    return row


def _at_the_end(ended: Row) -> dict[str, Any]:
    names = ("val_accuracy", "test_accuracy", "control_accuracy", "parameters", "germinated", "pruned", "rollbacks", "reward")
    worth = ended["val_accuracy"], ended["parameters"], ended["host_parameters"], ended["rent"]
    return {
        **{name: ended[name] for name in names},
        "epoch": ended["epoch"],
        "score": None if ended["val_accuracy"] is None else score(*worth),
        "operations": sum(ended["flops"].values()),
        "live": 0,
        "fossils": ended["fossilized"],
    }


def _so_far(record: Record, number: int) -> dict[str, Any]:
    """A host that has not ended; what only a host in full tells is None for the others."""
    course = courses(record).get(number, Course())
    twin = courses(record).get(twins(record).get(number, -1), Course())
    full = number in detailed(record)
    stages = [row["after"] for row in record.rows("stage_changed", host=number)]
    germinated, pruned, fossils = (stages.count(stage) for stage in ("GERMINATED", "PRUNED", "FOSSILIZED"))
    return {
        "epoch": course.epoch,
        "val_accuracy": course.val.get(course.epoch),
        "test_accuracy": None,
        "control_accuracy": twin.val.get(course.epoch),
        "score": None,
        "parameters": course.parameters.get(course.epoch),
        "operations": None,
        "live": germinated - pruned - fossils if full else course.live,
        "fossils": fossils if full else course.fossils,
        "germinated": germinated if full else None,
        "pruned": pruned if full else None,
        "rollbacks": len(record.numbers("rolled_back", host=number)),
        "reward": sum(row["total"] or 0.0 for row in record.rows("rewarded", host=number)) if full else None,
    }
