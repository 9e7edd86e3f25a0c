"""Runs as a process of its own: saves and trains in children that are killed, or on a disk that is full, and prints what was found.

    python crashing.py WHAT FOLDER

torch is imported once and each child is a fork, so that twenty of them take seconds. What is printed is JSON, for the tests.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esper.leyline.errors import EsperError
from esper.leyline.events import Note
from esper.nissa import BEGINNING, Hub, JsonlSink, read_events
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import RunFolder, read_run

FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "os.truncate", "shutil.rmtree"}
EPOCHS = 90


def state_at(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((64, 256), float(step)), "more": [torch.arange(step), {"t": (step, None)}]}


def is_whole(store: CheckpointStore) -> tuple[int, bool]:
    """The newest step, and whether its content is what was saved, with nothing passed over."""
    found = store.latest()
    assert found is not None
    same = found.state["step"] == found.step and torch.equal(found.state["weights"], torch.full((64, 256), float(found.step)))
    return found.step, same and not store.problems


def child(work: Callable[[], None]) -> int:
    """Start a fork that does the work and ends without a trace of its parent's clean-up."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return pid


def kill_at_random(folder: Path) -> dict[str, Any]:
    """Twenty times: save one checkpoint after another until killed. What was reported as saved must be there, or the next one."""
    rounds = []
    CheckpointStore(folder).save(0, state_at(0))
    for number in range(20):
        reader, writer = os.pipe()

        def save_on(writer: int = writer) -> None:
            store = CheckpointStore(folder)
            found = store.latest()
            assert found is not None
            store.rewind(found.step)
            for step in range(found.step + 1, 1_000_000):
                store.save(step, state_at(step))
                os.write(writer, step.to_bytes(4, "little"))

        pid = child(save_on)
        os.close(writer)
        reported = os.read(reader, 4)
        time.sleep(random.Random(number).uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(reader, 4):
            reported = more
        os.close(reader)
        step, whole = is_whole(CheckpointStore(folder))
        rounds.append({"ahead": step - int.from_bytes(reported, "little"), "whole": whole})
    return {"rounds": rounds}


def kill_at_each_operation(folder: Path) -> dict[str, Any]:
    """Save step 4, and rewind to step 2, killed at the first, second, third... file operation, until it comes to its end."""
    return {
        "save": _killed_at_each(folder, lambda store: store.save(4, state_at(4))),
        "rewind": _killed_at_each(folder, lambda store: store.rewind(2)),
    }


def _killed_at_each(folder: Path, action: Callable[[CheckpointStore], object]) -> list[dict[str, Any]]:
    template = folder / "template"
    for step in (2, 3):
        CheckpointStore(template).save(step, state_at(step))
    shutil.copytree(template / "step-00000002", template / ".trash-left-by-a-kill")
    rounds = []
    for count in range(1000):
        place = folder / str(count)
        shutil.copytree(template, place)

        def act(count: int = count, place: Path = place) -> None:
            left = [count]

            def hook(event: str, arguments: tuple[Any, ...]) -> None:
                if event in FILE_OPERATIONS:
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1

            sys.addaudithook(hook)
            action(CheckpointStore(place, keep=2))

        _, status = os.waitpid(child(act), 0)
        store = CheckpointStore(place, keep=2)
        step, whole = is_whole(store)
        store.save(step + 1, state_at(step + 1))
        after, whole_after = is_whole(store)
        clean = sorted(os.listdir(place)) == [f"step-{step:08}", f"step-{step + 1:08}"]
        rounds.append({"step": step, "whole": whole and whole_after and after == step + 1, "clean": clean})
        shutil.rmtree(place)
        if status == 0:
            shutil.rmtree(template)
            return rounds
        assert os.WIFSIGNALED(status), "it failed by itself"
    raise AssertionError("it never came to its end")


@dataclass(frozen=True)
class Config:
    epochs: int = EPOCHS


def train(folder: Path, report: Callable[[], object] = lambda: None) -> None:
    """A training in small: random numbers, a state, events, a checkpoint at every third epoch; goes on from wherever it was stopped.

    `report` is called at the end of each epoch.
    """
    begun = (folder / "run.json").exists()
    run = RunFolder.open(folder) if begun else RunFolder.create(folder, name="", config=Config(), command="train")
    store = CheckpointStore(run.checkpoints, run=run.id)
    hub = Hub(JsonlSink(run.events))
    found = store.latest()
    if found is None:
        hub.restore(BEGINNING)
        torch.manual_seed(1)
        random.seed(1)
        done, weights = 0, torch.zeros(64, 256)
    else:
        store.rewind(found.step)
        hub.restore(found.state["telemetry"])
        torch.set_rng_state(found.state["torch"])
        random.setstate(found.state["python"])
        done, weights = found.step, found.state["weights"]
    for epoch in range(done + 1, EPOCHS + 1):
        weights = weights + torch.randn_like(weights) * random.random()
        for host in range(3):
            hub.emit(Note(text=f"{weights[host].sum().item()!r}"), host=host, epoch=epoch)
        hub.flush()
        if epoch % 3 == 0:
            streams = {"torch": torch.get_rng_state(), "python": random.getstate()}
            store.save(epoch, {"weights": weights, **streams, "telemetry": hub.position()})
        report()
    hub.close()
    run.finish({"sum": weights.sum().item()})
    run.close()


def train_through_kills(folder: Path) -> dict[str, Any]:
    """One training left alone, one killed again and again: what do their records and figures say?"""
    train(folder / "straight")
    kills, moment = 0, random.Random(5)
    while not (folder / "killed" / "summary.json").exists():
        reader, writer = os.pipe()
        pid = child(lambda writer=writer: train(folder / "killed", lambda: os.write(writer, b"x")))  # type: ignore[misc]
        os.close(writer)
        for _ in range(moment.randrange(12)):  # epochs; now and then enough to come to a checkpoint
            os.read(reader, 1)
        time.sleep(moment.uniform(0, 0.004))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reader)
        assert status == 0 or os.WIFSIGNALED(status), "the training failed by itself"
        kills += os.WIFSIGNALED(status)
    records = [[e.identity() for e in read_events(folder / name / "events.jsonl")] for name in ("straight", "killed")]
    figures = [(folder / name / "summary.json").read_text() for name in ("straight", "killed")]
    return {"kills": kills, "events": len(records[0]), "same": records[0] == records[1], "figures": figures}


def hold_the_lock(folder: Path) -> dict[str, Any]:
    """A run whose process lives, ends, and is killed: who gets in?"""
    reader, writer = os.pipe()

    def hold() -> None:
        RunFolder.create(folder / "run", name="", config=Config(), command="train")
        os.write(writer, b"x")
        time.sleep(60)

    pid = child(hold)
    os.read(reader, 1)
    found: dict[str, Any] = {"pid": pid, "status": read_run(folder / "run").status}
    for name, enter in {
        "open": lambda: RunFolder.open(folder / "run"),
        "create": lambda: RunFolder.create(folder / "run", name="", config=Config(), command="train"),
    }.items():
        try:
            enter()
        except EsperError as error:
            found[name] = str(error)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found["after"] = read_run(folder / "run").status
    RunFolder.open(folder / "run").close()
    return found


def limit_file_size(folder: Path) -> dict[str, Any]:
    """The same on any disk, with a limit on the size of files instead of a full one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    return fill_the_disk(folder)


def fill_the_disk(folder: Path) -> dict[str, Any]:
    """Save and record on a disk of one megabyte until it is full, then make room and go on."""
    store = CheckpointStore(folder / "checkpoints")
    store.save(1, state_at(1))
    told: list[str] = []
    hub = Hub(JsonlSink(folder / "events.jsonl"), log=told.append)
    hub.emit(Note(text="before"))
    position = hub.position()
    found: dict[str, Any] = {}
    try:
        store.save(2, {"big": torch.zeros(1_000_000)})
    except EsperError as error:
        found["checkpoint"] = str(error)
    found["left"] = sorted(os.listdir(folder / "checkpoints"))
    found["step"], found["whole"] = is_whole(store)
    for _ in range(1000):
        hub.emit(Note(text="x" * 1000))
    hub.flush()
    hub.close()
    found["events"] = told
    found["readable"] = len(list(read_events(folder / "events.jsonl")))
    hub = Hub(JsonlSink(folder / "events.jsonl"))
    hub.restore(position)
    hub.emit(Note(text="after"))
    hub.close()
    found["events_afterwards"] = len(list(read_events(folder / "events.jsonl")))
    store.save(3, state_at(3))
    found["afterwards"] = is_whole(store)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = {
        each.__name__: each
        for each in (kill_at_random, kill_at_each_operation, train_through_kills, hold_the_lock, fill_the_disk, limit_file_size)
    }
    *names, root = sys.argv[1:]
    found = {}
    for name in names:
        (Path(root) / name).mkdir()
        found[name] = what[name](Path(root) / name)
    print(json.dumps(found))
