"""A disk that is full while a run goes on: said once, and the run goes on; only a summary that cannot be written is an error."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from esper.nissa import read_events
from esper.tolaria.storage.runs import read_run, read_summary

SMALL = ["train", "heuristic", "--hosts", "1", "--epochs", "6", "--checkpoint-every", "2", "--fix", "widths=[2,2,4]", "train_size=100"]


def limited(folder: Path, kilobytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where no file may grow beyond so many kilobytes, which fails as a full disk does."""
    command = shlex.join([sys.executable, "-m", "esper.cli.main", *arguments])
    line = ["bash", "-c", f"ulimit -S -f {kilobytes}; exec {command}"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_run_whose_record_and_checkpoints_do_not_fit_is_finished(tmp_path: Path) -> None:
    done = limited(tmp_path, 8, *SMALL, "--quiet", "--run", "run")
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert sum("wait in memory" in line for line in told) == 1, done.stderr
    assert sum("step-00000002 cannot be saved" in line for line in told) == 1
    assert not any("step-00000004" in line for line in told), "said once"
    assert told[-1].endswith("are lost, and the record ends here")
    assert read_run(tmp_path / "run").status == "finished"
    assert len(read_summary(tmp_path / "run")["hosts"]) == 1
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert events[0].event.kind() == "run_started", "what fitted is there, in whole lines"


def test_a_summary_that_does_not_fit_is_an_error_and_the_run_stays_as_far_as_it_was_kept(tmp_path: Path) -> None:
    done = limited(tmp_path, 3, *SMALL, "--quiet", "--run", "run", "--track", "tensorboard")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("esper: the summary of the run cannot be written: run/summary.json: File too large")
    assert done.stderr.count("sink tensorboard failed and is dropped") == 1
    assert read_run(tmp_path / "run").status == "interrupted"
    again = subprocess.run(
        [sys.executable, "-m", "esper.cli.main", "train", "--resume", "run", "--quiet"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert read_run(tmp_path / "run").status == "finished"
