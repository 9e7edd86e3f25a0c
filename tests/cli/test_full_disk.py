"""A disk that is full while a run goes on: said once, and the run goes on; an error only where its end cannot be kept."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from esper.nissa import read_events
from esper.simic.growth.config import ControllerRunConfig
from esper.tolaria.storage.runs import RunFolder, read_run, read_summary

SMALL = ["train", "heuristic", "--hosts", "1", "--epochs", "6", "--checkpoint-every", "2", "--fix", "widths=[2,2,4]", "train_size=100"]
FULL = "the disk does not take events (No space left on device), and no more can wait: "


def esper(folder: Path, *arguments: str, limit: str = "true") -> subprocess.CompletedProcess[str]:
    """The command, after a line of the shell that limits it."""
    command = shlex.join([sys.executable, "-m", "esper.cli.main", *arguments, "--quiet", "--no-report"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(["bash", "-c", f"{limit}; exec {command}"], cwd=folder, capture_output=True, text=True, env=environment)


def test_a_run_without_room_for_its_record_is_finished(tmp_path: Path) -> None:
    config = ControllerRunConfig(hosts=1, epochs=3, control=False, fix={"widths": "[2,2]", "train_size": "50"})
    RunFolder.create(tmp_path / "run", name="", config=config, command="esper train heuristic").close()
    (tmp_path / "run" / "events.jsonl").symlink_to("/dev/full")
    done = esper(tmp_path, "train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    begins, ends = done.stderr.splitlines()
    assert begins == "esper: events cannot be written (No space left on device): they wait in memory and are tried again; the run goes on"
    assert ends.startswith(f"esper: {FULL}")
    assert read_run(tmp_path / "run").status == "finished"
    assert len(read_summary(tmp_path / "run")["hosts"]) == 1


def test_a_run_without_room_for_its_end_is_an_error_and_is_kept_as_far_as_it_fits(tmp_path: Path) -> None:
    done = esper(tmp_path, *SMALL, "--run", "run", "--track", "tensorboard", limit="ulimit -S -f 3")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    told = done.stderr.splitlines()
    for once in (
        "wait in memory",
        "sink tensorboard failed",
        "step-00000002 cannot be saved",
        "the episode run/episodes/host-0000.safetensors",
    ):
        assert sum(once in line for line in told) == 1, done.stderr
    assert told[-1].startswith("esper: the run is at its end and cannot be finished: step-00000006 cannot be saved")
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert events[0].event.kind() == "run_started", "what fitted is there, in whole lines"
    again = esper(tmp_path, "train", "--resume", "run")
    assert (again.returncode, again.stderr) == (0, "")
    assert read_run(tmp_path / "run").status == "finished"
    assert list(read_events(tmp_path / "run" / "events.jsonl"))[-1].event.kind() == "run_finished"
