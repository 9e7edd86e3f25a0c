"""Running a session in a run folder: recorded, checkpointed, stopped by Ctrl-C without loss, and resumed bit for bit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from esper.leyline.config import load
from esper.leyline.errors import EsperError
from esper.nissa import BEGINNING, Hub, JsonlSink, NullHub
from esper.simic.config import RunConfig
from esper.simic.recording import FOLDER
from esper.simic.session import Session
from esper.tolaria.checkpoint import CheckpointStore
from esper.tolaria.runs import RunFolder


class Watcher(Protocol):
    """Whatever is told how a run goes: a display, or a test."""

    def start(self, session: Session) -> None:
        """The run begins, or goes on."""

    def progress(self, done: int) -> None:
        """So many hosts of the present epoch are trained."""

    def epoch(self, session: Session) -> None:
        """An epoch of all hosts is over."""

    def stop(self) -> None:
        """Nothing more will come."""


class Interrupted(EsperError):
    """The run was asked to stop, and stopped after a checkpoint."""


class Stop:
    """Whether somebody asked the run to stop."""

    asked = False


def start(config: RunConfig, path: Path | None, command: str, watcher: Watcher | None = None, telemetry: bool = True) -> dict[str, Any]:
    """Begin a run in a new folder, by default runs/TASK-CONTROLLER-NNN, and see it through. Returns the summary."""
    with RunFolder.create(path, name=f"{config.task}-{config.controller}", config=config, command=command) as folder:
        return _run(folder, config, watcher, telemetry)


def resume(path: Path, watcher: Watcher | None = None, telemetry: bool = True) -> dict[str, Any]:
    """Go on with an interrupted run from its last whole checkpoint, or from the beginning when it has none."""
    with RunFolder.open(path) as folder:
        return _run(folder, load(RunConfig, folder.config), watcher, telemetry)


def _run(folder: RunFolder, config: RunConfig, watcher: Watcher | None, telemetry: bool) -> dict[str, Any]:
    store = CheckpointStore(folder.checkpoints, run=folder.id)
    hub: Hub = Hub(JsonlSink(folder.events), log=folder.log) if telemetry else NullHub()
    try:
        session = Session(config, hub, folder.command, episodes=folder.path / FOLDER)
        _restore(folder, store, hub, session)
        return _loop(folder, store, hub, session, watcher)
    except EsperError as error:
        folder.log(f"stopped: {error}")
        raise
    finally:
        hub.close()


def _restore(folder: RunFolder, store: CheckpointStore, hub: Hub, session: Session) -> None:
    """Bring session and record to the newest checkpoint; a new run has none and begins."""
    checkpoint = store.latest()
    for problem in store.problems:
        folder.log(f"passed over: {problem}")
    if checkpoint is None:
        hub.restore(BEGINNING)
        session.begin()
        folder.log(f"begins: {folder.command}")
        return
    session.load_state(checkpoint.state["session"])
    # First the checkpoints: one that is newer than the record would not fit it.
    store.rewind(checkpoint.step)
    hub.restore(checkpoint.state["telemetry"])
    folder.log(f"goes on from {checkpoint.name}, epoch {session.round}")


def _loop(folder: RunFolder, store: CheckpointStore, hub: Hub, session: Session, watcher: Watcher | None) -> dict[str, Any]:
    if watcher is not None:
        watcher.start(session)
    try:
        with stop_on_signal() as stop:
            saved = session.round
            while not session.done:
                session.run_epoch(watcher.progress if watcher is not None else None)
                hub.flush()
                if watcher is not None:
                    watcher.epoch(session)
                if session.round % session.config.checkpoint_every == 0 or session.done or stop.asked:
                    saved = _save(folder, store, hub, session)
                if stop.asked and not session.done:
                    raise Interrupted(f"stopped after epoch {saved} of {session.epochs}; go on with: esper train --resume {folder.path}")
    finally:
        if watcher is not None:
            watcher.stop()
    summary = session.end()
    hub.flush(fsync=True)
    folder.finish(summary)
    folder.log("finished")
    return {**summary, "run": str(folder.path)}


def _save(folder: RunFolder, store: CheckpointStore, hub: Hub, session: Session) -> int:
    # The position first: everything up to it is then on the disk before a checkpoint says so.
    position = hub.position()
    name = store.save(session.round, {"session": session.state(), "telemetry": position})
    folder.log(f"saved {name}")
    return session.round


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask for a stop at the end of the epoch; a second Ctrl-C stops at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
