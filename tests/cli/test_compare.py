"""`esper compare`: the real command, killed and gone on with, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from esper.cli.comparison import make_page, print_comparison, times, verdict
from esper.cli.main import EXIT_USAGE, main
from esper.simic.runs.comparison import OPERATIONS, statistics
from esper.tolaria.storage.runs import read_summary

TINY = ["--epochs", "3", "--fix", "widths=[2,2]", "train_size=60", "--workers", "1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def esper(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "esper.cli.main", "compare", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_command_compares_and_shows_a_finished_comparison_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = esper("fixed", "--arms", "wait,static-largest", "--seeds", "6", *TINY, "--html", "page.html", "--json", "rows.json")
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "comparison on 6 hosts of digits: fixed, wait, static-largest" in said
    assert "round 3/3: static-largest: test" in said
    assert "6 unseen hosts of digits, seeds from 2000000000; score is the test accuracy" in said
    assert any(f"fixed {how}" in said for how in ("does better than", "does worse than", "cannot be told apart from"))
    assert "times the operations" in said
    summary = read_summary(tmp_path / "runs" / "digits-compare-001")
    assert json.loads((tmp_path / "rows.json").read_text()) == summary
    assert len(summary["rows"]) == 18
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2
    assert main(["compare", "--resume", "runs/digits-compare-001", "--html", "again.html"]) == 0
    again = capsys.readouterr().out
    assert again.split("run folder")[0].split("wrote")[0].strip() in done.stdout
    assert (tmp_path / "again.html").read_text() == page
    assert main(["runs"]) == 0
    assert "score of fixed" in capsys.readouterr().out


def test_a_comparison_that_is_killed_goes_on_to_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["heuristic", "--seeds", "12", "--together", "1", *TINY, "--quiet"]
    assert main(["compare", *settings, "--run", "alone"]) == 0
    running = subprocess.Popen(esper(*settings, "--run", "killed"), env=environment(), stdout=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed" / "checkpoints"
    while not (checkpoints.is_dir() and len(list(checkpoints.iterdir())) >= 2):
        assert running.poll() is None, "it is over before it could be killed"
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert main(["train", "--resume", "killed"]) == EXIT_USAGE
    assert "killed is not a run of esper train; go on with: esper compare --resume killed" in capsys.readouterr().err
    assert main(["compare", "--resume", "killed", "--quiet"]) == 0
    alone, killed = (read_summary(tmp_path / name) for name in ("alone", "killed"))
    for each in (alone, killed):
        del each["wall_clock"], each["command"]
    assert alone == killed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no policy to compare; expected the name of a controller or policy, a run folder or a policy file"),
        (["heuristik"], "unknown policy 'heuristik'; did you mean 'heuristic'?"),
        (["heuristic", "--arms", "waits"], "unknown arm 'waits'; did you mean 'wait'?"),
        (["none.safetensors"], "no policy at"),
        (["heuristic", "--task", "digit"], "unknown task 'digit'; did you mean 'digits'?"),
        (["heuristic", "--seeds", "0"], "'seeds' must be an integer, from 1"),
        (["heuristic", "--html", "nowhere/page.html"], "nowhere/page.html cannot be written: there is no folder nowhere"),
        (["heuristic", "--control"], "a comparison has the arm 'wait' in its place"),
        (["--resume", "nowhere"], "nowhere is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == EXIT_USAGE
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_arm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "wait, random, fixed, heuristic, tuned, static-final, static-largest, sweep; or all" in told


# What is said


def summary(hosts: int, gain: float) -> dict[str, Any]:
    """Two arms on so many hosts, of which the first is better by about so much and spends 45 times as much."""
    plain = {"task": "digits", "member": {}, "parameters": 10, "growth": 1.0, "epochs": 1}
    plain |= dict.fromkeys(("germinated", "fossilized", "pruned", "rollbacks"), 0)
    rows = [
        {"arm": arm, "seed": seed, "score": score, "test_accuracy": score, **plain, **dict.fromkeys((*OPERATIONS, "operations"), spent)}
        for arm, more, spent in (("mine", gain, 45), ("wait", 0.0, 1))
        for seed in range(hosts)
        for score in [50.0 + seed + more * (1 + seed % 2 / 10)]
    ]
    known = {"command": "esper compare mine", "task": ["digits"], "seeds": {"first": 2_000_000_000, "count": hosts}, "policies": ["mine"]}
    return {**known, "comparison": statistics(rows), "rows": rows, "wall_clock": {"mine": 1.0, "wait": 0.5}}


def test_a_gain_is_said_with_what_was_spent_on_it() -> None:
    assert verdict(summary(6, 10.0)) == ["mine does better than wait (+10.50 points, for 45 times the operations)"]
    assert verdict(summary(6, -10.0)) == ["mine does worse than wait (-10.50 points, for 45 times the operations)"]
    assert verdict(summary(6, 0.0)) == ["mine cannot be told apart from wait (+0.00 points, for 45 times the operations)"]


def test_below_six_hosts_there_is_no_verdict_and_no_interval() -> None:
    few = summary(5, 10.0)
    assert verdict(few) == ["too few hosts for an interval, and so for a verdict: 5 played, 6 needed"]
    assert few["comparison"]["pairs"][0]["score"]["difference"]["low"] is None
    assert "too few hosts for an interval" in make_page(few)


def test_the_tables_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison({**summary(8, -40.0), "run": "runs/digits-compare-001"})
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert "mine  wait   -42.00 [-43.79, -40.21]" in told


def test_ratios_of_operations_are_words() -> None:
    assert [times(ratio) for ratio in (0.1, 1.0, 2.34, 44.6)] == [
        "for 0.1 times the operations",
        "for as many operations",
        "for 2.3 times the operations",
        "for 45 times the operations",
    ]
