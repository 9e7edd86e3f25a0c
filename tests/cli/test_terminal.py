"""`esper watch --terminal`: the picture of a run from its files, live in a terminal, once in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from esper.cli.terminal import watch_terminal
from esper.leyline.errors import EventError, RunError
from esper.leyline.events import Anomaly, Envelope, to_json_line
from tests.karn.copies import cut_short

PATIENCE = 60.0
"""Seconds after which what was waited for will not come."""


class Terminal:
    """The view of a run in a terminal of its own."""

    def __init__(self, run: Path) -> None:
        self.screen, inside = pty.openpty()
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # tests in the background ignore it
        program += "import sys; from pathlib import Path; from esper.cli.terminal import watch_terminal\n"
        program += "sys.exit(watch_terminal(Path(sys.argv[1])))"
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(run)], stdin=inside, stdout=inside, stderr=inside, env=environment
        )
        os.close(inside)
        os.set_blocking(self.screen, False)
        self.text = ""

    def wait_for(self, *texts: str) -> None:
        """Until all of this has been on the screen since the last time."""
        end, self.text = time.monotonic() + PATIENCE, ""
        while not all(text in self.text for text in texts):
            assert time.monotonic() < end, f"{texts} not among {self.text[-2000:]!r}"
            self._read()
            time.sleep(0.02)

    def _read(self) -> None:
        with suppress(OSError):  # nothing to read, or nobody there any more
            self.text += os.read(self.screen, 1 << 16).decode(errors="replace")

    def ends(self) -> int:
        """The exit code."""
        while self.process.poll() is None:
            self._read()
            time.sleep(0.02)
        os.close(self.screen)
        return self.process.returncode


def test_a_run_is_followed_to_its_end(recorded_runs: Path, tmp_path: Path) -> None:
    run = cut_short(recorded_runs / "grown", tmp_path / "run", rounds=2)
    lock = os.open(run / "run.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a process does that works on it
    terminal = Terminal(run)
    terminal.wait_for("epoch 2 of 8", "2/8", "running, last event")
    shutil.copy(cut_short(recorded_runs / "grown", tmp_path / "later", rounds=5) / "events.jsonl", run / "events.jsonl")
    terminal.wait_for("epoch 5 of 8", "5/8")
    os.close(lock)
    terminal.wait_for("stopped", f"go on with: esper train --resume {run}"[:60])
    for name in ("events.jsonl", "summary.json"):
        shutil.copy(recorded_runs / "grown" / name, run / name)
    assert terminal.ends() == 0
    assert "finished; test accuracy" in terminal.text


def test_ctrl_c_ends_it_cleanly(recorded_runs: Path, tmp_path: Path) -> None:
    terminal = Terminal(cut_short(recorded_runs / "learned", tmp_path / "run", rounds=1))
    terminal.wait_for("round 1 of 2", "stopped")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 0
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(("name", "shown"), [("grown", "epoch 8 of 8"), ("learned", "examined on 2 unseen hosts")])
def test_in_a_pipe_it_is_one_picture(recorded_runs: Path, capsys: pytest.CaptureFixture[str], name: str, shown: str) -> None:
    assert watch_terminal(recorded_runs / name) == 0
    told = capsys.readouterr().out
    assert shown in told
    assert f"{recorded_runs / name}: finished" in told.replace("\n", "")
    assert "\x1b" not in told


def test_a_run_without_events_is_shown_by_its_summary(recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(recorded_runs / "grown", tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").unlink()
    assert watch_terminal(tmp_path / "run") == 0
    assert f"{tmp_path / 'run'}: finished; test accuracy" in capsys.readouterr().out.replace("\n", " ")


def test_of_a_folder_the_newest_run_is_shown(recorded_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_terminal(recorded_runs) == 0
    assert "PPO on digits" in capsys.readouterr().out


def test_of_runs_that_began_in_the_same_second_the_last_by_its_name_is_shown(
    recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in (("run-1", "grown"), ("run-2", "learned")):
        shutil.copytree(recorded_runs / run, tmp_path / name)
        marker = tmp_path / name / "run.json"
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "created": "2026-01-01T00:00:00+00:00"}))
    watch_terminal(tmp_path)
    assert "PPO on digits" in capsys.readouterr().out


def test_red_flags_are_on_top_and_names_are_no_markup(recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = cut_short(recorded_runs / "grown", tmp_path / "run", rounds=2)
    number = (run / "events.jsonl").read_bytes().count(b"\n")
    flag = Anomaly(detector="rollbacks", text="[bold]three rollbacks in a row[/bold]", value=3.0, threshold=3.0)
    with (run / "events.jsonl").open("a") as file:
        file.write(to_json_line(Envelope(seq=number, time=0.0, host=1, epoch=2, event=flag)) + "\n")
    watch_terminal(run)
    assert capsys.readouterr().out.startswith("! [bold]three rollbacks in a row[/bold]\n")


def test_what_cannot_be_shown_is_said(recorded_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        watch_terminal(tmp_path)
    with pytest.raises(EventError, match="is damaged"):
        watch_terminal(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=2, torn=b"nothing\n"))
