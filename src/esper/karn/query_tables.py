"""The views that a query can ask: one for each kind of event, made from its fields, and some that say what they come to."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from esper.karn.event_index import column_of
from esper.karn.record import Record
from esper.karn.views import arms, blueprints, lives, overview
from esper.karn.views.hosts import COLUMNS, host_rows
from esper.leyline.codec import bare, field_kinds
from esper.leyline.events import EVENT_TYPES

PLACE = {"seq": "BIGINT", "time": "DOUBLE", "host": "BIGINT", "epoch": "BIGINT"}
"""Columns that every kind of event begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One view: its columns with their types, and where its rows come from."""

    name: str
    about: str
    """What it holds, in a sentence."""
    columns: dict[str, str]
    rows: Callable[[Record], Sequence[dict[str, Any]]] | None = None
    """Of a view that is worked out in Python; None for one of events, or one with `sql`."""
    sql: str = ""
    """A select over other views; {run} stands for the column `run` and a comma where several runs are asked."""
    needs: tuple[str, ...] = ()
    """The views that it selects from."""

    @property
    def event(self) -> bool:
        """Whether it is a kind of event."""
        return self.rows is None and not self.sql


def sql_type(kind: Any) -> str:
    """The type of a column for values of a Python type, as they stand in a record."""
    kind = bare(kind)
    simple = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
    if kind in simple:
        return simple[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple:
        return f"{sql_type(parts[0])}[]"
    if origin is dict:
        return f"MAP(VARCHAR, {sql_type(parts[1])})"
    if origin in (Literal, Union, types.UnionType) or (isinstance(kind, type) and issubclass(kind, Enum)):
        return "VARCHAR"
    assert is_dataclass(kind), f"no column can hold {kind}"
    members = ", ".join(f'"{name}" {sql_type(each)}' for name, each in field_kinds(kind).items())  # type: ignore[arg-type]
    return f"STRUCT({members})"


def _event_table(kind: str) -> Table:
    cls = EVENT_TYPES[kind]
    own = {column_of(kind, name): sql_type(each) for name, each in field_kinds(cls).items()}  # type: ignore[arg-type]
    about = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return Table(name=kind, about=about, columns={**PLACE, **own})


_FIGURE = {"value": "DOUBLE", "low": "DOUBLE", "high": "DOUBLE"}
_TEXTS = ("task", "controller", "arm")
_COUNTS = ("number", "seed", "round", "twin_of", "epochs", "epoch", "host_parameters", "parameters", "operations", "live", "fossils")
_HOST_TYPES = dict.fromkeys(_TEXTS, "VARCHAR") | dict.fromkeys((*_COUNTS, "germinated", "pruned", "rollbacks"), "BIGINT")
_HOST_TYPES |= {"ended": "BOOLEAN", "detailed": "BOOLEAN"}
_DIFFERENCE = 'STRUCT("mean" DOUBLE, "low" DOUBLE, "high" DOUBLE)'


def _run(record: Record) -> list[dict[str, Any]]:
    found = overview(record)
    first = found["headline"][0] if found["headline"] else {"label": None, "value": None, "low": None, "high": None}
    row = {name: found[name] for name in ("path", "id", "status", "method", "task", "seed", "controller", "command", "created")}
    row |= {"progress": found["progress"]["share"], "events": len(record), "flags": len(found["flags"])}
    return [row | {"score_label": first["label"], "score": first["value"], "low": first["low"], "high": first["high"]}]


def _lives(record: Record) -> list[dict[str, Any]]:
    return [{**life, "stages": [{"epoch": epoch, "stage": stage} for epoch, stage in life["stages"]]} for life in lives(record)]


DERIVED = (
    Table(
        name="runs",
        about="The runs that were named, one row for each, with the figure that each is judged by.",
        columns={
            **dict.fromkeys(("path", "id", "status", "method", "task"), "VARCHAR"),
            **{"seed": "BIGINT", "controller": "VARCHAR", "command": "VARCHAR", "created": "VARCHAR"},
            **{"progress": "DOUBLE", "events": "BIGINT", "flags": "BIGINT", "score_label": "VARCHAR", "score": "DOUBLE"},
            **{"low": "DOUBLE", "high": "DOUBLE"},
        },
        rows=_run,
    ),
    Table(
        name="headline",
        about="The figures that a run is about, the first is what it is judged by; of a finished run those of its summary.json.",
        columns={"label": "VARCHAR", **_FIGURE, "note": "VARCHAR"},
        rows=lambda record: overview(record)["headline"],
    ),
    Table(
        name="hosts",
        about="Every host, twins among them, as it stands or as it ended; score is its val accuracy minus rent.",
        columns={name: _HOST_TYPES.get(name, "DOUBLE") for name in COLUMNS},
        rows=host_rows,
    ),
    Table(
        name="lives",
        about="Every seed, from its birth to what became of it; stages only of hosts that are recorded in full.",
        columns={
            **{"host": "BIGINT", "slot": "VARCHAR", "blueprint": "VARCHAR", "style": "VARCHAR", "born": "BIGINT", "ended": "BIGINT"},
            **{"outcome": "VARCHAR", "contribution": "DOUBLE", "parameters": "BIGINT"},
            "stages": 'STRUCT("epoch" BIGINT, "stage" VARCHAR)[]',
        },
        rows=_lives,
    ),
    Table(
        name="blueprints",
        about="What became of the seeds of each blueprint, of hosts that have ended.",
        columns={
            "blueprint": "VARCHAR",
            **dict.fromkeys(("created", "fossilized", "pruned", "unfinished"), "BIGINT"),
            **{"survival": "DOUBLE", "contribution": "DOUBLE"},
        },
        rows=blueprints,
    ),
    Table(
        name="arms",
        about="Arms of an examination or comparison, trials, points or plans: means over hosts; difference_of says what difference is.",
        columns={
            **{"arm": "VARCHAR", "hosts": "BIGINT"},
            **dict.fromkeys(("score", "accuracy", "growth", "operations", "fossils", "reward"), "DOUBLE"),
            **{"difference": _DIFFERENCE, "difference_of": "VARCHAR"},
        },
        rows=arms,
    ),
    Table(
        name="rounds",
        about="What was learned in each round or pass: metrics['train/kl'] and so on.",
        columns={"round": "BIGINT", "metrics": "MAP(VARCHAR, DOUBLE)"},
        sql='select {run} "update" as round, metrics from policy_updated',
        needs=("policy_updated",),
    ),
    Table(
        name="epochs",
        about="Every epoch of every host that is recorded in full, beside the same epoch of its twin.",
        columns={
            **_event_table("epoch_finished").columns,
            **{"control_accuracy": "DOUBLE", "control_loss": "DOUBLE"},
        },
        sql="""select e.*, c.val_accuracy as control_accuracy, c.val_loss as control_loss from epoch_finished e
            left join host_started t on (t.twin_of = e.host {and_run_t})
            left join epoch_finished c on (c.host = t.host and c.epoch = e.epoch {and_run_c})""",
        needs=("epoch_finished", "host_started"),
    ),
    Table(
        name="decisions",
        about="Every decision of hosts that are recorded in full, with what it earned and why it was refused, if it was.",
        columns={
            **PLACE,
            **{"op": "VARCHAR", "slot": "VARCHAR", "blueprint": "VARCHAR", "style": "VARCHAR", "tempo": "BIGINT"},
            **{"alpha_target": "DOUBLE", "alpha_speed": "BIGINT", "alpha_curve": "VARCHAR", "reason": "VARCHAR"},
            **{"legal": "MAP(VARCHAR, VARCHAR[])", "probabilities": "MAP(VARCHAR, DOUBLE[])", "value": "DOUBLE"},
            **{"reward": "DOUBLE", "components": "MAP(VARCHAR, DOUBLE)", "refused": "VARCHAR"},
        },
        sql="""select {run} seq, time, host, epoch, unnest(decision), legal, probabilities, value,
            r.total as reward, r.components, f.reason as refused from decided
            left join (select {run} host, epoch, total, components from rewarded) r using ({run} host, epoch)
            left join (select {run} host, epoch, reason from refused) f using ({run} host, epoch)""",
        needs=("decided", "rewarded", "refused"),
    ),
    Table(
        name="summary",
        about="What summary.json holds, and config.toml, one row: summary->>'$.examination.hosts'; summary is NULL before the end.",
        columns={"summary": "JSON", "config": "JSON"},
        rows=lambda record: [{"summary": record.summary, "config": json.loads(json.dumps(record.config, default=str))}],
    ),
)
"""Views of what the events come to."""

TABLES: dict[str, Table] = {table.name: table for table in (*DERIVED, *map(_event_table, EVENT_TYPES))}
"""Every view by name."""
