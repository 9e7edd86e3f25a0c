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

from esper.cli.comparison import make_page, print_comparison, tables, times, verdict
from esper.cli.main import EXIT_USAGE, main
from esper.simic.runs.compare_config import BASELINES, STATIC_FINAL, STATIC_FLOPS, STATIC_LARGEST
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


def test_tasks_have_plans_of_their_own_and_are_told_of_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text('[fixed]\nblueprints = ["depthwise"]\nfirst = 1\nperiod = 1\n')
    (tmp_path / "text.toml").write_text('[fixed]\nblueprints = ["mlp_small"]\nseeds = 1\n')
    settings = ["--seeds", "6", "--epochs", "1", "--fix", "train_size=60", "--workers", "1", "--together", "4", "--html", "page.html"]
    baselines = ["--arms", "wait,sweep", "--sizes", "2", "--searched", "digits=.", "stdlib=text.toml"]
    command = esper("fixed", "--task", "digits", "--task", "stdlib", *baselines, *settings)
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "comparison on 12 hosts of digits, stdlib: fixed, wait, searched, sweep" in said
    assert "round 20/20: sweep 2 of 2: test" in said, "five parts on two chunks of each task"
    assert "the sweep over 2 sizes: gain in score over wait and share of the sweep's gain" in said
    assert "by task: fixed minus each arm on the same hosts, with 95 % intervals; ruined: hosts on which the first ended" in said
    assert "fixed ended more than 10 points behind wait on" in said
    assert "6 unseen hosts of digits and stdlib each" in said
    found = read_summary(tmp_path / "runs" / "digits-stdlib-compare-001")
    assert [row["task"] for row in found["rows"]] == (["digits"] * 6 + ["stdlib"] * 6) * 4
    assert [part["task"] for part in found["comparison"]["sweep"]] == ["", "digits", "stdlib"]
    assert "By task: fixed minus each arm" in (tmp_path / "page.html").read_text()
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
        (["heuristic", "--arms", "searched"], "the arm 'searched' needs --searched TASK=FILE for each task"),
        (["heuristic", "--searched", "plan.toml"], "--searched: 'plan.toml' is not a pair; expected NAME=VALUE"),
        (["heuristic", "--searched", "digits=none.toml"], "no config file at"),
        (["heuristic", "--searched", "stdlib=none.toml"], "there is a plan for 'stdlib', which is not among the tasks: digits"),
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
    assert "wait, random, fixed, searched, heuristic, tuned, static-final, static-largest, sweep; or all" in told


# What is said


def summary(hosts: int, gain: float, sweep: float | None = None) -> dict[str, Any]:
    """Two arms on so many hosts, of which the first is better by about so much and spends 45 times as much; and a sweep over 8 sizes, if
    it is to gain something, for 10 times as much."""
    plain = {"task": "digits", "member": {}, "parameters": 10, "growth": 1.0, "epochs": 1}
    plain |= dict.fromkeys(("germinated", "fossilized", "pruned", "rollbacks"), 0)
    rows = [
        {"arm": arm, "seed": seed, "score": score, "test_accuracy": score, **plain, **dict.fromkeys((*OPERATIONS, "operations"), spent)}
        for arm, more, spent in (("mine", gain, 45), ("wait", 0.0, 1), *([] if sweep is None else [("sweep", sweep, 10)]))
        for seed in range(hosts)
        for score in [50.0 + seed + more * (1 + seed % 2 / 10)]
    ]
    known = {"command": "esper compare mine", "task": ["digits"], "seeds": {"first": 2_000_000_000, "count": hosts}, "policies": ["mine"]}
    known |= {"sizes": 8, "wall_clock": {"mine": 1.0, "wait": 0.5, "sweep": 4.0}}
    return {**known, "comparison": statistics(rows), "rows": rows}


def test_a_gain_is_said_with_what_was_spent_on_it() -> None:
    assert verdict(summary(6, 10.0))[0] == "mine does better than wait (+10.50 points, for 45 times the operations)"
    assert verdict(summary(6, -10.0))[0] == "mine does worse than wait (-10.50 points, for 45 times the operations)"
    assert verdict(summary(6, 0.0))[0] == "mine cannot be told apart from wait (+0.00 points, for 45 times the operations)"


def test_hosts_that_a_policy_ruined_are_counted() -> None:
    (_, none), (_, half) = verdict(summary(6, 10.0)), verdict(summary(6, -10.0))
    assert none == "mine ended more than 10 points behind wait on 0 of 6 hosts, 0.0 % [0.0 %, 39.0 %]"
    assert half == "mine ended more than 10 points behind wait on 3 of 6 hosts, 50.0 % [18.8 %, 81.2 %]"
    (pair,) = next(rows for title, rows in tables(summary(6, -10.0)).items() if "ruined: hosts on which the first" in title)
    assert pair["ruined"] == "50.0 %"


@pytest.mark.parametrize(
    ("sweep", "said", "cell"),
    [
        (20.0, "mine reaches 50 % [50 %, 50 %] of the gain of the sweep over 8 sizes for 4.50 times its operations", "50 % [50 %, 50 %]"),
        (-20.0, "the sweep over 8 sizes does worse than wait (-21.00 [-22.15, -19.85] points over wait), so there", "no gain to share"),
    ],
)
def test_a_share_of_a_sweeps_gain_is_said_with_what_it_took(sweep: float, said: str, cell: str) -> None:
    found = summary(6, 10.0, sweep)
    assert said in verdict(found)[-1]
    mine, swept = next(rows for title, rows in tables(found).items() if title.startswith("the sweep over 8 sizes"))
    assert (mine["arm"], mine["share"], mine["operations x"]) == ("mine", cell, 4.5)
    assert (swept["arm"], swept["share"], swept["operations x"]) == ("sweep", "100 %", 1.0)
    assert cell in make_page(found)


def test_a_sweep_that_may_gain_nothing_is_said_in_words() -> None:
    found = summary(6, 10.0, 0.0)
    for row in found["rows"]:
        if row["arm"] == "sweep":
            row["score"] += 1.0 if row["seed"] % 2 else -0.9
    found["comparison"] = statistics(found["rows"])
    known = "the gain of the sweep over 8 sizes (+0.05 [-1.04, +1.14] points over wait) cannot be told from zero"
    assert verdict(found)[-1] == f"{known}, so nothing bounds which share of it is reached"
    title, (mine, _) = next((title, rows) for title, rows in tables(found).items() if title.startswith("the sweep over 8 sizes"))
    assert "unbounded where that gain may be nothing" in title
    assert str(mine["share"]).endswith(" %, but unbounded")


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


def test_several_tasks_have_a_sentence_each_where_there_are_hosts_enough() -> None:
    found = summary(12, 10.0, 20.0)
    for row in found["rows"]:
        row["task"] = "digits" if row["seed"] < 7 else "stdlib"
    found["comparison"] = statistics(found["rows"])
    every, digits = verdict(found)[-2:]
    assert every == "mine reaches 50 % [50 %, 50 %] of the gain of the sweep over 8 sizes for 4.50 times its operations"
    assert digits == f"on digits {every}"


ARMS = ("tamiyo-1", *(arm for arm in BASELINES if "static" not in arm), STATIC_FINAL, STATIC_FLOPS, STATIC_LARGEST)
"""All there are at once."""


def test_tables_of_every_arm_fit_into_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    few = {**summary(8, -40.0, 30.0), "run": "runs/digits-stdlib-compare-001", "policies": ["tamiyo-1"]}
    arms = {arm: few["rows"][8 * (i % 3) : 8 * (i % 3) + 8] for i, arm in enumerate(ARMS)}
    rows = [{**row, "arm": arm, "task": task} for arm, mine in arms.items() for task in ("digits", "cifar10-impaired") for row in mine]
    print_comparison({**few, "comparison": statistics(rows), "rows": rows, "wall_clock": dict.fromkeys(arms, 1.0)})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("static-final       static-final-flops") and line.endswith(" %") for line in lines), "in one line"
    assert any(line.startswith("cifar10-impaired     8 static-final-flops") for line in lines)
    columns = [line.split()[3:] for line in lines if line.startswith("of hosts")]
    assert [name for piece in columns for name in piece] == [*ARMS], "scores by task, in two pieces with whole names"


def test_ratios_of_operations_are_words() -> None:
    assert [times(ratio) for ratio in (0.1, 1.0, 2.34, 44.6)] == [
        "for 0.1 times the operations",
        "for as many operations",
        "for 2.3 times the operations",
        "for 45 times the operations",
    ]
