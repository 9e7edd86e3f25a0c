"""`esper evaluate`: a report that fits a terminal, files for programs and browsers, and an exit code for red flags."""

from __future__ import annotations

import io
import json
from contextlib import chdir
from pathlib import Path

import pytest

from esper.cli.evaluate import EXIT_FLAGGED
from esper.cli.main import EXIT_USAGE, main

TINY = ["--hosts", "2", "--epochs", "4", "--workers", "1", "--fix", "widths=[2,2]", "train_size=50", "--member", "standard"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of PPO."""
    folder = tmp_path_factory.mktemp("learned")
    few = ["--rounds", "2", "--hosts", "2", "--pool", "2", "--examined", "2", "--workers", "1", "--epochs", "4", "--fix", "widths=[2,2]"]
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        assert main(["train", "ppo", *few, "train_size=50", "--run", "taught"]) == 0
    return folder / "taught"


def widest(lines: list[str]) -> int:
    """Columns of the widest line, but for the names of files, which are as long as they are."""
    return max(len(line) for line in lines if not line.startswith("wrote "))


def test_the_report_fits_a_terminal_and_a_strict_flag_ends_in_another_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "report.json"), "--html", str(tmp_path / "report.html")]
    assert main(["evaluate", "heuristic", "wait", *TINY, *files, "--strict"]) == EXIT_FLAGGED
    lines = capsys.readouterr().out.splitlines()
    assert widest(lines) <= 80
    assert "2 hosts of digits (standard), seeds 200000 to 200001; the likeliest decisions" in lines
    assert any(line.split() == ["heuristic", "wait"] for line in lines)
    assert any("wait: not one seed was germinated on any host" in line for line in lines)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["name"] for each in report["diagnoses"]] == ["heuristic", "wait"]
    assert report["diagnoses"][1]["flags"][0]["name"] == "collapse"
    assert report["memory"]["process"] > 0
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_red_flag_is_no_failure_unless_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "wait", *TINY, "--quiet"]) == 0
    assert "red flags: 2" in capsys.readouterr().out


def test_a_run_folder_is_evaluated_by_its_policy_and_by_its_checkpoints(
    learned: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["evaluate", str(learned), *TINY, "--quiet"]) == 0
    assert "taught" in capsys.readouterr().out
    files = ["--json", str(tmp_path / "report.json"), "--html", str(tmp_path / "report.html")]
    assert main(["evaluate", str(learned), "--checkpoints", "--stochastic", "--draws", "2", *TINY, *files, "--quiet"]) == 0
    first, last = json.loads((tmp_path / "report.json").read_text())["diagnoses"]
    assert (first["name"], last["name"]) == ("taught round 1", "taught round 2")
    assert [len(each["course"]) for each in (first, last)] == [1, 2]
    assert 0.0 < last["course"][1]["op"] <= 1.0
    assert "Entropy while it learned: taught round 2" in (tmp_path / "report.html").read_text()
    assert widest(capsys.readouterr().out.splitlines()) <= 80


def test_a_policy_trained_under_other_rules_is_told(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(learned / "policy.safetensors"), *TINY, "--max-seeds", "1", "--quiet"]) == 0
    assert "taught: it was trained under another max_seeds than here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: POLICY"),
        (["heuristc"], "unknown policy 'heuristc'; did you mean 'heuristic'?"),
        (["wait", "--hots", "3"], "unknown argument '--hots'; did you mean '--hosts'?"),
        (["wait", "--entropy-bounds", "0.9", "0.1"], "'entropy_bounds' is 0.9 and 0.1; expected two numbers from 0 to 1"),
        (["wait", "--seed", "1000000"], "host seed 1000000 is for training; esper evaluate takes development seeds"),
        (["wait", "--json", "nowhere/report.json"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
