"""`esper runs`: every run in a folder with how it stands and what came out, damaged ones named and not in the way."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.simic.runs.runner import start
from esper.tolaria.storage.runs import RunFolder
from tests.simic.runs import small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, one that has not begun, and something else."""
    folder = tmp_path_factory.mktemp("runs")
    start(small(hosts=1, epochs=2), folder / "digits-fixed-001", "esper train heuristic --hosts 1")
    RunFolder.create(folder / "digits-fixed-002", name="", config=small(), command="esper train heuristic").close()
    (folder / "notes").mkdir()
    return folder


def test_each_run_is_a_line_with_its_status_and_result(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "status", "created", "result", "command"]
    summary = json.loads((runs / "digits-fixed-001" / "summary.json").read_text())
    accuracy, difference = summary["hosts"][0]["test_accuracy"], summary["against_control"]["test_accuracy"]["mean"]
    assert len(lines) == 2
    assert f"{runs / 'digits-fixed-001'}  finished" in lines[0]
    assert f"test {accuracy:.2f} ({difference:+.2f})  esper train heuristic --hosts 1" in lines[0]
    assert f"{runs / 'digits-fixed-002'}  new" in lines[1]


def test_json_has_the_same(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", str(runs), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["finished", "new"]
    assert [set(row) for row in rows] == [{"run", "status", "created", "result", "command"}] * 2


@pytest.mark.parametrize("summary", ["{", "[]", "{}", '{"hosts": []}', '{"hosts": [{}]}', '{"hosts": 3}', '{"examination": null}'])
def test_a_damaged_summary_is_no_reason_to_hide_the_others(
    summary: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    shutil.copytree(runs / "digits-fixed-001", tmp_path / "runs" / "damaged")
    (tmp_path / "runs" / "damaged" / "summary.json").write_text(summary)
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)) == 3
    assert told.err.count("\n") == (0 if summary == "{}" else 1)
    assert summary == "{}" or "summary.json" in told.err


def test_a_run_that_taught_a_policy_shows_its_score(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "digits-fixed-001", tmp_path / "learned")
    figures: dict[str, Any] = {"examination": {"arms": {"policy": {"score": 91.234}}}}
    (tmp_path / "learned" / "summary.json").write_text(json.dumps(figures))
    main(["runs", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["result"] == "score 91.23"


def test_a_damaged_run_is_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "digits-fixed-002" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr()
    assert "digits-fixed-001" in told.out
    assert "digits-fixed-002/run.json cannot be read" in told.err


def test_the_default_folder_is_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    with chdir(tmp_path):
        assert main(["runs"]) == 0
    assert "runs/digits-fixed-001" in capsys.readouterr().out


def test_no_runs_and_no_folder_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"esper: there is no folder {tmp_path / 'nowhere'}; runs are made by esper train\n"
