"""Kill runs at random moments, resume each until it is done, and compare it with a run that was left alone.

    python benchmarks/kill.py [--kills 500] [--seed 0] [--scenario N] [--engine serial] [--json FILE]

Each run is the real command, `esper train`, in a process of its own, a fork, so that torch is imported once. Half of the kills come
at a random time, half at a random operation on a file, which is where a checkpoint or a record would tear. What is compared is
everything that a run leaves: the last checkpoint's tensors bit for bit, the events (all but their wall-clock times, none lost, none
doubled), the recorded episodes, the summary, and which files there are. Ends with 1 if any run differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import esper.simic.runs.controller
import esper.simic.runs.ppo  # noqa: F401  both are imported here, that every fork need not do it
from esper.cli.main import main as esper_command
from esper.leyline.events import StageChanged
from esper.leyline.stages import Stage
from esper.nissa import read_events
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run

GATES = "--no-training.gates.strict --training.gates.min-training-epochs 1 --training.gates.min-gradient-health 0"
QUIET = "--quiet --no-report"  # a report comes after the end of a run, which a kill in between does not undo
USUAL = f"--hosts 2 {QUIET} --run run {GATES} --fix kernel=3 batch=48"
HOSTS = f"--epochs 10 {USUAL} widths=[2,2,4] train_size=192"
SCENARIOS = [
    f"heuristic --controller fixed --fixed.first 1 --fixed.period 1 --checkpoint-every 1 {HOSTS}",
    f"heuristic --controller random --random.wait 0.1 --checkpoint-every 2 --training.isolation shadow {HOSTS} slots=both",
    f"heuristic --controller random --random.wait 0.3 --checkpoint-every 3 --seed 7 --no-control {HOSTS} augment=true",
    f"heuristic --heuristic.first-epoch 1 --heuristic.early-margin -99 --checkpoint-every 1 --seed 3 {HOSTS}",
    f"ppo --rounds 3 --pool 3 --examined 2 --workers 1 --hidden 16 --slot-width 16 --epochs 4 {USUAL} widths=[2,2] train_size=96",
]
"""Runs in which seeds go through every stage, with checkpoints at every, every second and every third epoch; the last one learns."""
FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.truncate", "shutil.rmtree"}
PLACES = {"run": 150, "run/checkpoints/.tmp-": 40}
"""Where operations on files are counted, and how many in one process at most until it is killed: anywhere, or in unfinished checkpoints."""


def outcome(run: Path) -> dict[str, Any]:
    """Everything that a finished run leaves, in a form in which equal means the same."""
    newest = CheckpointStore(run / "checkpoints", run=read_run(run).id).latest()
    assert newest is not None, f"{run} has no checkpoint"
    return {
        "checkpoint": _hash(newest.state["work"]),
        "next event": newest.state["telemetry"]["seq"],
        "events": [envelope.identity() for envelope in read_events(run / "events.jsonl")],
        "episodes": {path.name: _hash(_episode(path)) for path in sorted((run / "episodes").glob("*.safetensors"))},
        "summary": (run / "summary.json").read_text(),
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def _episode(path: Path) -> dict[str, Any]:
    """The content of a recorded episode; safetensors writes the entries of its metadata in any order."""
    with safe_open(path, "pt") as file:
        return {**dict(sorted(file.metadata().items())), **{name: file.get_tensor(name) for name in sorted(file.keys())}}


def _hash(value: Any) -> str:
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        digest.update(type(value).__name__.encode())
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)} {value.stride()}".encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        elif isinstance(value, dict):
            for key, item in value.items():
                add(key)
                add(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            digest.update(value if isinstance(value, bytes) else repr(value).encode())

    add(value)
    return digest.hexdigest()


def spawn(folder: Path, arguments: list[str], place: str = "", operations: int = 0) -> int:
    """Start the command in a fork, in this folder. With `place`, it is killed at an operation on a file whose path begins with that."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(folder)
        log = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if place:
            _kill_at(place, operations)
        os._exit(esper_command(["train", *arguments]))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(99)


def _kill_at(place: str, operations: int) -> None:
    left = [operations]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_OPERATIONS and str(arguments[0] if arguments else "").startswith(place):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    sys.addaudithook(hook)


def stages_in(run: Path) -> set[str]:
    """Stages of the slots at the last recorded epoch of an interrupted run."""
    now: dict[tuple[int | None, str], str] = {}
    if (run / "events.jsonl").exists():
        for envelope in read_events(run / "events.jsonl"):
            if isinstance(envelope.event, StageChanged):
                now[envelope.host, envelope.event.slot] = envelope.event.after.name
    return set(now.values()) or {Stage.DORMANT.name}


class Reaper:
    """Starts, kills and resumes runs, and counts."""

    def __init__(self, root: Path, seed: int, engine: str) -> None:
        self.root, self.draw = root, random.Random(seed)
        self.commands = [[*scenario.split(), "--engine", engine] for scenario in SCENARIOS]
        self.counts: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.failures: list[str] = []
        self.references: dict[int, tuple[dict[str, Any], float]] = {}

    def reference(self, scenario: int) -> tuple[dict[str, Any], float]:
        """The outcome of the run that is left alone, and the seconds that it takes."""
        if scenario not in self.references:
            folder = self.root / f"reference-{scenario}"
            folder.mkdir()
            began = time.monotonic()
            _, status = os.waitpid(spawn(folder, self.commands[scenario]), 0)
            seconds = time.monotonic() - began
            if status:
                raise SystemExit(f"the run that is left alone failed: {(folder / 'output.txt').read_text()}")
            self.references[scenario] = (outcome(folder / "run"), seconds)
        return self.references[scenario]

    def one_run(self, scenario: int, kills: int) -> None:
        """One run through as many kills as it takes, `kills` at most, and the comparison at its end."""
        expected, seconds = self.reference(scenario)
        folder = self.root / f"run-{self.counts['runs']}"
        folder.mkdir()
        run, killed, before = folder / "run", 0, len(self.failures)
        while not (run / "summary.json").exists():
            resuming = (run / "config.toml").exists()
            arguments = ["--resume", "run", *QUIET.split()] if resuming else self.commands[scenario]
            self.counts["resumes"] += resuming
            status = self._killed(folder, arguments, seconds) if killed < kills else os.waitpid(spawn(folder, arguments), 0)[1]
            if os.WIFSIGNALED(status):
                killed += 1
                self._note(run)
            elif status:
                self.failures.append(f"{SCENARIOS[scenario]}: exit {os.waitstatus_to_exitcode(status)}: {_tail(folder)}")
                break
        else:
            found = outcome(run)
            odd = sorted(set(found["files"]) ^ set(expected["files"]))
            differing = [f"{name} {odd if name == 'files' else ''}" for name in expected if found[name] != expected[name]]
            self.failures += [f"{SCENARIOS[scenario]}: other {name}".rstrip() for name in differing]
        for failure in self.failures[before:]:
            print(f"mismatch: {failure}", file=sys.stderr, flush=True)
        self.counts["kills"] += killed
        self.counts["runs"] += 1
        shutil.rmtree(folder)

    def _killed(self, folder: Path, arguments: list[str], seconds: float) -> int:
        """Start the command and kill it at a random moment, unless it ends before that; its exit status."""
        if self.draw.random() < 0.5:
            place = self.draw.choice(list(PLACES))
            return os.waitpid(spawn(folder, arguments, place, self.draw.randrange(PLACES[place])), 0)[1]
        pid = spawn(folder, arguments)
        deadline = time.monotonic() + self.draw.uniform(0, 0.6 * seconds)
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]

    def _note(self, run: Path) -> None:
        """Count where the kill met the run."""
        self.stages.update(stages_in(run))
        checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir()) if (run / "checkpoints").exists() else []
        self.counts["while a checkpoint was written or removed"] += any(name.startswith(".") for name in checkpoints)
        self.counts["before the first checkpoint"] += not checkpoints


def _tail(folder: Path) -> str:
    return " ".join((folder / "output.txt").read_text().split())[-400:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--scenario", type=int, choices=range(len(SCENARIOS)), help="one kind of run alone (default: all in turn)")
    parser.add_argument("--engine", default="serial", help="what trains the hosts: serial or fleet")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        reaper, began = Reaper(Path(folder), arguments.seed, arguments.engine), time.monotonic()
        while reaper.counts["kills"] < arguments.kills:
            scenario = reaper.counts["runs"] % len(SCENARIOS) if arguments.scenario is None else arguments.scenario
            reaper.one_run(scenario, arguments.kills - reaper.counts["kills"])
            done = f"{reaper.counts['kills']} of {arguments.kills} kills, {time.monotonic() - began:.0f} s"
            print(f"{done}, {len(reaper.failures)} mismatches", file=sys.stderr, flush=True)
        seconds = time.monotonic() - began
    for failure in reaper.failures:
        print(f"mismatch: {failure}")
    stages = ", ".join(f"{name} {count}" for name, count in sorted(reaper.stages.items(), key=lambda each: Stage[each[0]]))
    where = "; ".join(f"{count} {name}" for name, count in reaper.counts.items() if name.startswith(("while", "before")))
    print(
        f"{reaper.counts['kills']} kills in {reaper.counts['runs']} runs, {reaper.counts['resumes']} resumes, {seconds:.0f} s; {where}; "
        f"stages at the kill: {stages}; mismatches: {len(reaper.failures)}"
    )
    if arguments.json:
        figures = {**reaper.counts, "seconds": seconds, "stages": dict(reaper.stages), "mismatches": reaper.failures}
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 1 if reaper.failures else 0


if __name__ == "__main__":
    sys.exit(main())
