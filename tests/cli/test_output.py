"""`esper` when its output breaks, when it is told to stop, and what it prints at the end: whole runs, no traceback, honest lines."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esper.cli.display import LiveDisplay, make_display
from esper.cli.main import main
from esper.cli.results import failures, print_learning, print_run
from esper.leyline.events import Envelope, Note, SinkFailed
from esper.simic.growth.config import ControllerRunConfig
from esper.tolaria.storage.runs import RunFolder, read_run, read_summary

SMALL = ["train", "heuristic", "--hosts", "1", "--epochs", "2", "--fix", "widths=[2,2,4]", "train_size=100"]
WORKERS = ["train", "ppo", "--hosts", "2", "--pool", "2", "--rounds", "500", "--workers", "2", "--epochs", "2"]
WORKERS += ["--fix", "widths=[2,2]", "train_size=50", "--quiet", "--run", "run"]
WIDE = "".join(chr(code) for code in (0xFC, 0x4E2D))
"""A name that ASCII does not have."""


def esper(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "esper.cli.main", *arguments]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def shell(folder: Path, arguments: Sequence[str], redirection: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell that redirects its output."""
    line = f"""{" ".join(f"'{each}'" for each in esper(*arguments))} {redirection}"""
    return subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, capture_output=True, text=True, env=environment(**changes))


@pytest.mark.parametrize(
    ("redirection", "code", "said", "unbuffered"),
    [
        (">&- 2>&- <&-", 0, "", ""),
        (">/dev/full", 2, "esper: the output cannot be written: No space left on device\n", "1"),
        ("| head -1", 141, "", "1"),
    ],
)
def test_a_run_outlives_its_output(tmp_path: Path, redirection: str, code: int, said: str, unbuffered: str) -> None:
    done = shell(tmp_path, [*SMALL, "--run", "run"], redirection, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (code, said)
    assert read_run(tmp_path / "run").status == "finished"
    assert len(read_summary(tmp_path / "run")["hosts"]) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["train", "ppo", "--help-all"], ["runs", "."]])
def test_every_command_says_that_its_output_is_full(tmp_path: Path, arguments: list[str]) -> None:
    done = shell(tmp_path, arguments, ">/dev/full")
    assert (done.returncode, done.stderr) == (2, "esper: the output cannot be written: No space left on device\n")
    done = shell(tmp_path, arguments, ">/dev/full 2>/dev/full")
    assert (done.returncode, done.stderr) == (2, "")
    done = shell(tmp_path, arguments, ">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_without_a_stderr_is_not_printed_elsewhere(tmp_path: Path) -> None:
    for redirection in ("2>&-", "2>/dev/full"):
        done = shell(tmp_path, ["no-such"], redirection)
        assert (done.returncode, done.stdout) == (2, "")


def test_characters_that_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / WIDE, name="", config=ControllerRunConfig(), command="esper train heuristic").close()
    done = shell(tmp_path, ["runs", "."], "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xfc\\u4e2d" in done.stdout


def test_a_terminal_that_goes_away_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ["train", "heuristic", "--hosts", "1", "--epochs", "400", "--fix", "train_size=100", "--run", "run"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            esper(*arguments), cwd=tmp_path, stdout=theirs, stderr=errors, start_new_session=True, env=environment(TERM="xterm")
        )
    os.close(theirs)
    shown = b""
    while b"epoch 2" not in shown:
        shown += os.read(ours, 10_000)
    os.close(ours)
    time.sleep(0.5)
    process.send_signal(signal.SIGHUP)
    code, said = process.wait(timeout=60), (tmp_path / "errors").read_text()
    assert code == 130, said
    assert "Traceback" not in said
    assert "go on with: esper train --resume run" in said
    assert "sink LiveDisplay failed" in (tmp_path / "run" / "log.txt").read_text()
    assert read_run(tmp_path / "run").status == "interrupted"


def stopped(folder: Path, wait: Callable[[], bool], signals: Sequence[int]) -> tuple[int, str]:
    """The exit code and the output of a run in workers whose whole group gets signals, as a terminal sends them."""
    with subprocess.Popen(
        esper(*WORKERS), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment()
    ) as process:
        while not wait():
            time.sleep(0.02)
        for number in signals:
            os.killpg(process.pid, number)
            time.sleep(0.1)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said


def test_ctrl_c_while_workers_start_is_a_stop_like_any_other(tmp_path: Path) -> None:
    code, said = stopped(tmp_path, lambda: (tmp_path / "run" / "log.txt").exists(), [signal.SIGINT])
    assert (code, said.count("Traceback")) == (130, 0)
    assert said.splitlines()[-1] == "esper: stopped after 1 of 500; go on with: esper train --resume run"


def test_further_signals_to_the_whole_group_end_it_at_once_without_a_traceback(tmp_path: Path) -> None:
    signals = [signal.SIGTERM, *[signal.SIGINT] * 5]
    code, said = stopped(tmp_path, lambda: (tmp_path / "run" / "checkpoints").exists(), signals)
    assert (code, said.count("Traceback"), said.count("worker")) == (130, 0, 0)
    assert read_run(tmp_path / "run").status == "interrupted"
    assert said.splitlines()[-1].startswith(("esper: interrupted", "esper: stopped after "))


# Results


def host(**changes: Any) -> dict[str, Any]:
    slots = {f"r{n}c0": {"stage": "FOSSILIZED", "blueprint": "depthwise"} for n in range(6)}
    usual = {"seed": 9999, "test_accuracy": 100.0, "val_accuracy": 100.0, "test_loss": 0.1, "val_loss": 0.1, "parameters": 1230}
    usual |= {"host_parameters": 100, "germinated": 10, "pruned": 10, "rollbacks": 0, "decisions": {"WAIT": 10}, "slots": slots}
    return {**usual, **changes}


SPENT = {"all": 123.4, "counterfactual": 56.7}
DIFFERENCE = {"mean": -10.25, "low": -12.5, "high": 10.75, "wins": 9999, "pairs": 9999}


def test_results_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_run({"hosts": [host()] * 1_200, "against_control": {"test_accuracy": DIFFERENCE}, "operations_x": SPENT, "run": "runs/a"})
    arm = {"score": -12.25, "accuracy": 100.0, "growth": 12.5, "operations": 2.5e9, "fossils": 12.5}
    names = ("policy", "wait", "random", "fixed", "heuristic")
    against = dict.fromkeys(names[1:], DIFFERENCE)
    arms = dict.fromkeys(names, arm) | {"wait": {**arm, "operations": 2.5e7}}
    print_learning({"examination": {"hosts": 9999, "arms": arms, "policy_against": against}, "run": "runs/b"})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (last,) = [number for number, line in enumerate(lines) if line.startswith("1,199")]
    assert lines[last].split()[:7] == ["1,199", "9999", "100.00", "100.00", "12.30", "10", "10"]
    column = lines[1].index("fossils")
    entries = " ".join(line[column:] for line in lines[last : lines.index(next(line for line in lines if line.startswith("test")))])
    assert entries == ", ".join(f"r{n}c0:depthwise" for n in range(6)), "a list is broken between its entries"
    assert all(not line[:column].strip() for line in lines[last + 1 : last + 3]), "and goes on under its own column"
    rows = [line for line in lines if line.startswith("heuristic")]
    assert [" ".join(row.split()) for row in rows] == ["heuristic -12.25 100.00 12.50 100.00 12.50 -10.25 [-12.50, +10.75] 9999 of 9999"]


def test_hosts_that_came_to_nothing_are_told() -> None:
    undone, nan, infinite = host(rollbacks=10), host(val_loss=math.nan), host(test_loss="Infinity")
    assert failures({"hosts": [host(), host(rollbacks=9)]}) == []
    assert failures({"hosts": [host(), undone]})[0].startswith("host 1 was rolled back in every epoch: it never learned")
    assert failures({"hosts": [nan, host(), infinite]})[0].startswith("each of the hosts 0 and 2 ended with a loss that is not finite")
    assert failures({"hosts": [host()], "control": [undone]})[0].startswith("the control twin of host 0 was rolled back")
    assert "8, 9 and 90 more was" in failures({"hosts": [undone] * 100})[0]


def test_a_run_that_never_learned_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--fix", "learning_rate=1e30", "--quiet", "--run", str(run)]) == 0
    assert "host 0 was rolled back in every epoch: it never learned" in " ".join(capsys.readouterr().out.split())
    assert main(["runs", str(tmp_path)]) == 0
    assert ", with hosts that came to nothing  " in capsys.readouterr().out
    main(["runs", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["warnings"][0].startswith("host 0 was rolled back in every epoch")


# Remarks


REMARKS = [
    (Note(text="a checkpoint was passed over [/bold] :warning:"), "a checkpoint was passed over [/bold] :warning:"),
    (SinkFailed(sink="CsvSink", error="OSError: full"), "sink CsvSink failed and is dropped: OSError: full"),
]


@pytest.mark.parametrize(("event", "text"), REMARKS)
def test_remarks_are_shown_by_every_display(event: Note | SinkFailed, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = Envelope(seq=0, time=0.0, host=None, epoch=None, event=event)
    make_display(quiet=True, rewards=False).write(envelope)
    assert capsys.readouterr() == ("", f"esper: {text}\n")
    make_display(quiet=False, rewards=False).write(envelope)
    assert capsys.readouterr() == (f"{text}\n", "")
    display = LiveDisplay()
    display.live.start()
    try:
        display.write(envelope)
    finally:
        display.close()
    assert text in capsys.readouterr().out


# Names


LONG = "x" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", LONG],
        ["export", LONG],
        ["train", "--resume", LONG],
        ["train", "heuristic", "--run", LONG],
        ["train", "heuristic", "--controller", f"{LONG}.safetensors"],
        ["train", "ppo", "--from-policy", LONG],
        ["train", "heuristic", "--fix", "kernel=" + "1" * 5000],
        ["train", "heuristic", "--fix", "widths=" + "[" * 5000],
        ["train", "heuristic", "--track", "cvs"],
    ],
)
def test_a_hostile_word_is_one_sentence_and_leaves_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_takes_the_sinks_of_its_plugins(tmp_path: Path) -> None:
    plugin = Path(__file__).parents[2] / "examples" / "my_sink.py"
    config = ControllerRunConfig(plugins=(plugin,), hosts=1, epochs=2, control=False, fix={"widths": "[2,2]", "train_size": "50"})
    RunFolder.create(tmp_path / "run", name="", config=config, command="esper train heuristic").close()
    # In a process of its own, for the plug-in's sink stays registered.
    program = """
from pathlib import Path
from esper.cli.main import main
from esper.tolaria.storage.runs import read_run
assert main(["train", "--resume", "run", "--track", "cvs"]) == 2
assert read_run(Path("run")).status == "new"
assert main(["train", "--resume", "run", "--track", "csv", "--quiet"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "esper: unknown sink 'cvs'; did you mean 'csv'?\n")
    assert [line.split(",")[:2] for line in (tmp_path / "run" / "accuracy.csv").read_text().splitlines()[1:]] == [["0", "1"], ["0", "2"]]


def test_a_network_is_not_written_under_a_name_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--quiet", "--run", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--format", "module", "--out", str(tmp_path / LONG)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("esper: the network cannot be written to ")
    assert told.err.endswith(": File name too long\n")
