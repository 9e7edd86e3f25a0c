"""Queries: every event and every view can be asked, the same as in Python, and nothing else can be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esper.karn import views
from esper.karn.query import ask
from esper.karn.query_tables import TABLES
from esper.karn.record import Record
from esper.karn.views.hosts import COLUMNS, host_rows
from esper.leyline.errors import EventError, QueryError
from esper.leyline.events import EVENT_TYPES
from tests.karn.copies import cut_short


@pytest.fixture(scope="module")
def runs(recorded_runs: Path) -> dict[str, Record]:
    return {name: Record(recorded_runs / name) for name in ("grown", "learned")}


def one(record: Record, sql: str) -> list[tuple[Any, ...]]:
    return ask({"run": record}, sql).rows


@pytest.mark.parametrize("name", ["grown", "learned"])
def test_every_kind_of_event_is_a_view_with_the_same_rows(runs: dict[str, Record], name: str) -> None:
    record = runs[name]
    for kind in EVENT_TYPES:
        found = ask({"run": record}, f"select * from {kind} order by seq")
        assert found.columns == tuple(TABLES[kind].columns)
        rows = [{key: value for key, value in row.items() if key != "kind"} for row in record.rows(kind)]
        for row, expected in zip(found.dicts(), rows, strict=True):
            assert {key: value for key, value in row.items() if value != expected[key]} == _as_text(row, expected)


def _as_text(row: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Of tables that hold numbers and words, a column has the numbers as text."""
    mixed = [key for key in ("about", "machine", "member") if key in row]
    differ = {key: row[key] for key in mixed if row[key] != expected[key]}
    for key, value in differ.items():
        assert value.keys() == expected[key].keys()
        assert all(isinstance(item, str) for item in value.values())
    return differ


@pytest.mark.parametrize("name", ["grown", "learned"])
def test_derived_views_are_those_of_python(runs: dict[str, Record], name: str) -> None:
    record = runs[name]
    assert one(record, "select * from hosts order by number") == [tuple(row[column] for column in COLUMNS) for row in host_rows(record)]
    lives = [{key: life[key] for key in TABLES["lives"].columns if key != "stages"} for life in views.lives(record)]
    assert ask({"run": record}, "select * exclude (stages) from lives").dicts() == lives
    assert [[[each["epoch"], each["stage"]] for each in row[0]] for row in one(record, "select stages from lives")] == [
        life["stages"] for life in views.lives(record)
    ]
    assert ask({"run": record}, "select * from blueprints").dicts() == views.blueprints(record)
    decisions = [each for row in host_rows(record) for each in views.host(record, row["number"])["decisions"]]
    asked = ask({"run": record}, "select * from decisions order by host, epoch").dicts()
    for found, expected in zip(asked, decisions, strict=True):
        names = ("seq", "epoch", "op", "slot", "legal", "probabilities", "value", "reward")
        assert {key: found[key] for key in names} == {key: expected[key] for key in names}
        assert (found["components"] or {}, found["refused"] or "") == (expected["components"], expected["refused"])
    epochs = one(
        record,
        "select host, list(val_accuracy order by epoch), list(control_accuracy order by epoch) from epochs group by host order by host",
    )
    for number, val, control in epochs:
        curve = views.host(record, number)["curve"]
        assert (val, control) == (curve["val"], curve["control"])
    assert one(record, "select events, status, score from runs") == [
        (len(record), "finished", views.overview(record)["headline"][0]["value"])
    ]


def test_several_runs_have_a_column_run(runs: dict[str, Record]) -> None:
    for name in TABLES:
        assert ask(runs, f"select * from {name} limit 0").columns[0] == "run"
    assert ask(runs, "select run, count(*) from decisions group by run order by run").rows == [
        (name, record.count("decided")) for name, record in runs.items()
    ]
    assert ask(runs, "select run, count(control_accuracy) from epochs group by run order by run").rows == [("grown", 24), ("learned", 0)]


@pytest.mark.parametrize(
    "sql", ["describe hosts", "show tables", "explain select * from hosts", "with a as (from hosts) select * from a", "from hosts;"]
)
def test_what_only_looks_is_answered(runs: dict[str, Record], sql: str) -> None:
    assert one(runs["grown"], sql)


@pytest.mark.parametrize(
    "sql",
    [
        "copy hosts to '{0}/stolen.csv'",
        "explain analyze copy hosts to '{0}/stolen.csv'",
        "export database '{0}/stolen'",
        "attach '{0}/stolen.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "create table mine as from hosts",
        "drop table hosts",
        "delete from hosts",
        "pragma database_list",
        "call pragma_version()",
        "select 1; copy hosts to '{0}/stolen.csv'",
        "select * from read_csv('{0}/secret')",
        "select * from read_text('{0}/secret')",
        "select * from '{0}/secret'",
        "select * from glob('{0}/*')",
        "select * from read_parquet('https://example.org/x.parquet')",
        "select * from runs_of_mine",
    ],
)
def test_nothing_else_is_reached_or_changed(runs: dict[str, Record], tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    runs_of_mine = [1, 2, 3]  # a variable of this process is no view
    with pytest.raises(QueryError) as caught:
        one(runs["grown"], sql.format(tmp_path))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert len(runs_of_mine) == 3


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from hostz", "there is no view 'hostz'; did you mean 'hosts'?"),
        ("select val_acuracy from hosts", "there is no column 'val_acuracy'; did you mean 'val_accuracy'?"),
        ("selec 1", 'the query cannot be answered: syntax error at or near "selec"'),
        ("select 1; select 2", "expected one query, found 2; ask one after another"),
        ("  ", "expected one query, found none; ask one after another"),
        ("drop table hosts", "a query only looks: expected SELECT, WITH, DESCRIBE, SHOW or EXPLAIN, found DROP"),
    ],
)
def test_a_mistake_is_one_sentence_with_what_is_near(runs: dict[str, Record], sql: str, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        one(runs["grown"], sql)
    assert str(caught.value) == said


def test_a_run_that_goes_on_is_asked_up_to_its_last_whole_line(recorded_runs: Path, tmp_path: Path) -> None:
    record = Record(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=3, torn=b'{"v":4,"seq":'))
    assert one(record, "select max(round) from round_finished") == [(3,)]
    assert one(record, "select summary is null from summary") == [(True,)]


def test_a_damaged_event_is_named_by_its_line(recorded_runs: Path, tmp_path: Path) -> None:
    run = cut_short(recorded_runs / "grown", tmp_path / "run", rounds=3)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if b'"kind":"decided"' in line)
    lines[place] = lines[place].replace(b'"legal":{', b'"legal":{{')
    (run / "events.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(EventError, match=f"line {place + 1}: is damaged"):
        one(Record(run), "select * from decided")
