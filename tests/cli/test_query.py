"""`esper query`: tables, CSV and JSON of the same answer, what can be asked, and one sentence for each mistake."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.karn.query_tables import TABLES


def test_an_answer_is_a_table_csv_and_json(recorded_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = [
        "query",
        str(recorded_runs / "grown"),
        "select number, val_accuracy, member from hosts join host_started on number = host order by 1",
    ]
    assert main([*query, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["number"] for row in rows] == list(range(6))
    main([*query, "--format", "csv"])
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(int(row["number"]), float(row["val_accuracy"]), json.loads(row["member"])) for row in table] == [
        tuple(row.values()) for row in rows
    ]
    main(query)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["number", "val_accuracy", "member"]
    assert [line.split()[:2] for line in lines] == [[str(row["number"]), f"{row['val_accuracy']:.6g}"] for row in rows]


def test_several_runs_are_asked_together(recorded_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(recorded_runs / name) for name in ("grown", "learned")]
    main(["query", *runs, "select run, method from runs order by run", "--format", "csv"])
    assert capsys.readouterr().out == "run,method\ngrown,run\nlearned,learn\n"


def test_no_rows_are_said(recorded_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["query", str(recorded_runs / "grown"), "select seq, text from note where false"])
    assert capsys.readouterr().out == "no rows; columns: seq, text\n"


@pytest.mark.parametrize("arguments", [["--views"], ["{0}"], ["{0}", "--views"]])
def test_what_can_be_asked_is_listed(recorded_runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    run = str(recorded_runs / "grown")
    assert main(["query", *(each.format(run) for each in arguments), "--format", "json"]) == 0
    listed = {row["view"]: row["columns"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {name: table.columns for name, table in TABLES.items()}
    main(["query", *(each.format(run) for each in arguments)])
    assert "control_accuracy DOUBLE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected a run folder and a query"),
        (["select 1"], "expected a run folder in front of 'select 1'"),
        (["nowhere", "select 1"], "nowhere is not a run: there is no such folder"),
        (["{0}", "select 1", "--format", "xml"], "unknown format 'xml'; known: csv, json, table"),
        (["{0}", "select 1", "--formt", "csv"], "unknown argument '--formt'; did you mean '--format'?"),
        (["{0}", "select nothing from hosts"], "there is no column 'nothing'"),
        (["{0}", "select * from read_csv('/etc/passwd')"], "a query reaches no files"),
    ],
)
def test_a_mistake_is_one_sentence(recorded_runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["query", *(each.replace("{0}", str(recorded_runs / "grown")) for each in arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"esper: {said}")
    assert told.err.count("\n") == 1
