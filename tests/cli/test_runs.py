"""`esper runs`: every run in a folder with how it stands and what came out, damaged ones named and not in the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import chdir
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.simic.runs.runner import start
from esper.tolaria.storage.runs import RunFolder
from tests.karn.copies import cut_short
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
    assert len(lines) == 3
    assert f"{runs / 'digits-fixed-001'}  finished" in lines[0]
    assert f"test accuracy {accuracy:.2f} ({difference:+.2f})  esper train heuristic --hosts 1" in lines[0]
    assert f"{runs / 'digits-fixed-002'}  new" in lines[1]
    assert lines[2] == f"go on with: esper train --resume {runs / 'digits-fixed-002'}"


def test_json_has_the_fields_themselves(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", str(runs), "--json"])
    finished, new = json.loads(capsys.readouterr().out)
    summary = json.loads((runs / "digits-fixed-001" / "summary.json").read_text())
    assert (finished["path"], finished["status"], finished["method"], finished["task"]) == (
        *(str(runs / "digits-fixed-001"), "finished", "run", "digits"),
    )
    assert (finished["score"], finished["score_label"]) == (summary["hosts"][0]["test_accuracy"], "test accuracy")
    assert finished["against_control"] == summary["against_control"]["test_accuracy"]["mean"]
    assert finished["progress"] == {"unit": "epoch", "done": 2, "total": 2, "share": 1.0}
    assert finished["go_on"] is None
    assert datetime.fromisoformat(finished["created"]) <= datetime.fromisoformat(new["created"])
    assert (new["status"], new["score"], new["go_on"]) == ("new", None, f"esper train --resume {runs / 'digits-fixed-002'}")


def test_an_interrupted_run_says_how_far_it_came_and_how_to_go_on(
    recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_short(recorded_runs / "grown", tmp_path / "cut short", rounds=3)
    main(["runs", str(tmp_path)])
    _, line, how = capsys.readouterr().out.splitlines()
    assert "  interrupted  " in line
    assert "; epoch 3 of 8" in line
    assert how == f"go on with: esper train --resume '{tmp_path / 'cut short'}'"


def test_listing_loads_no_torch(runs: Path) -> None:
    program = f"import sys; from esper.cli.main import main; main(['runs', {str(runs)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


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
    config = tmp_path / "learned" / "config.toml"
    config.write_text(config.read_text().replace('kind = "run"', 'kind = "learn"'))
    figures: dict[str, Any] = {"examination": {"arms": {"policy": {"score": 91.234}}}}
    (tmp_path / "learned" / "summary.json").write_text(json.dumps(figures))
    main(["runs", str(tmp_path), "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["score"], row["score_label"]) == (91.234, "score")
    main(["runs", str(tmp_path)])
    assert "  score 91.23  " in capsys.readouterr().out


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
