"""Running work in a run folder: recorded, checkpointed, stopped by Ctrl-C without loss, and resumed bit for bit."""

from __future__ import annotations

import shlex
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, EsperError, RunError
from esper.leyline.files import remove_unfinished
from esper.nissa import BEGINNING, Hub, JsonlSink, NullHub
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.deciding import is_policy_file
from esper.simic.growth.recording import FOLDER
from esper.simic.learning.offline_config import BCConfig, IQLConfig, StudyConfig
from esper.simic.runs.ppo_config import CHANGEABLE, PPORunConfig
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import RunFolder

Config = GrowthConfig | StudyConfig
"""Whatever decides a run."""


class Work(Protocol):
    """What a run does: hosts under a controller (ControllerRun), a policy that learns by playing (PPORun) or from recordings (OfflineRun).

    A round is the unit between checkpoints.
    """

    round: int
    """Rounds done."""

    @property
    def epochs(self) -> int:
        """Rounds in all."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing is left but to end."""
        ...

    def begin(self) -> None:
        """Record the start of a new run."""
        ...

    def run_epoch(self, progress: Callable[[int], None] | None = None) -> object:
        """One round more."""
        ...

    def end(self) -> dict[str, Any]:
        """Record the end and return the summary."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything to go on from."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        ...

    def close(self) -> None:
        """Let go of data and processes."""
        ...


class Watcher(Protocol):
    """Whatever is told how a run goes: a display, or a test."""

    def start(self, work: Any) -> None:
        """The run begins, or goes on."""

    def progress(self, done: int) -> None:
        """So many hosts of the present round are done."""

    def epoch(self, work: Any) -> None:
        """A round is over."""

    def stop(self) -> None:
        """Nothing more will come."""


class Interrupted(EsperError):
    """The run was asked to stop, and stopped after a checkpoint."""


class Stop:
    """Whether somebody asked the run to stop."""

    asked = False


def start(config: Config, path: Path | None, command: str, watcher: Watcher | None = None, telemetry: bool = True) -> dict[str, Any]:
    """Begin a run in a new folder, by default runs/TASK-CONTROLLER-NNN, and see it through. Returns the summary."""
    config = _anchored(config)
    with RunFolder.create(path, name=_name(config), config=config, command=command) as folder:
        try:
            return _run(folder, config, watcher, telemetry)
        except EsperError:
            folder.withdraw()  # a mistake that only showed while hosts and data were made
            raise


def resume(
    path: Path,
    watcher: Watcher | None = None,
    telemetry: bool = True,
    change: Callable[[Any], None] | None = None,
    settings: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Go on with an interrupted run from its last whole checkpoint, or from the beginning when it has none.

    change: what to do to the work once it is restored, such as making heads of a policy new.
    settings: values to go on with in place of those in the run's config, by dotted keys; see learn_config.CHANGEABLE.
    """
    with RunFolder.open(path) as folder:
        config = read_config(folder.config)
        if settings:
            config = _with_settings(config, settings)
            folder.change_config(config)
            folder.log("changed: " + ", ".join(f"{key} is {value}" for key, value in settings.items()))
        return _run(folder, config, watcher, telemetry, change)


def _anchored(config: Config) -> Config:
    """The config with the places that it names written in full, so that the run goes on and is exported from any folder."""
    places: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Path):
            places[field.name] = value.absolute()
        elif isinstance(value, tuple) and any(isinstance(each, Path) for each in value):
            places[field.name] = tuple(each.absolute() for each in value)
    if isinstance(config, ControllerRunConfig) and is_policy_file(config.controller):
        places["controller"] = str(Path(config.controller).absolute())
    return replace(config, **places)


def _with_settings(config: Config, settings: Mapping[str, object]) -> Config:
    """The config with these settings, if a run may go on with others."""
    allowed = CHANGEABLE if isinstance(config, PPORunConfig) else ()
    for key in settings:
        if key.split(".")[0] not in allowed or key.startswith("ppo.prior."):
            can = f"what can: {', '.join(allowed)}" if allowed else "this kind of run goes on as it began"
            raise ConfigError(f"{key!r} cannot change when a run goes on; {can}")
    return replace_fields(config, settings, source="esper train --resume")


def read_config(path: Path) -> Config:
    """The config of a run, of the kind that it says it is."""
    kinds: dict[str, type[Config]] = {"run": ControllerRunConfig, "learn": PPORunConfig, "bc": BCConfig, "iql": IQLConfig}
    try:
        kind = tomllib.loads(path.read_text(encoding="utf-8"))["kind"]
    except KeyError:
        kind = None
    except (OSError, ValueError):
        kind = "run"  # `load` says what is wrong with the file
    if not isinstance(kind, str) or kind not in kinds:
        expected = ", ".join(f'"{name}"' for name in kinds)
        raise RunError(f"{path} does not say what kind of run it is; expected a kind that is one of {expected}")
    return load(kinds[kind], path)


def _name(config: Config) -> str:
    if isinstance(config, BCConfig | IQLConfig):
        return config.kind
    if isinstance(config, PPORunConfig):
        return f"{'-'.join(config.task)}-ppo"
    assert isinstance(config, ControllerRunConfig)
    return f"{config.task}-{'policy' if is_policy_file(config.controller) else config.controller}"


def _work(folder: RunFolder, config: Config, hub: Hub) -> Work:
    if isinstance(config, BCConfig | IQLConfig):
        from esper.simic.runs.offline import OfflineRun

        return OfflineRun(config, hub, folder.command, folder.path)
    if isinstance(config, PPORunConfig):
        from esper.simic.runs.ppo import PPORun

        return PPORun(config, hub, folder.command, folder.path)
    from esper.simic.runs.controller import ControllerRun

    assert isinstance(config, ControllerRunConfig)
    return ControllerRun(config, hub, folder.command, episodes=folder.path / FOLDER)


def _run(
    folder: RunFolder, config: Config, watcher: Watcher | None, telemetry: bool, change: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    store = CheckpointStore(folder.checkpoints, run=folder.id)
    hub: Hub = Hub(JsonlSink(folder.events), log=folder.log) if telemetry else NullHub()
    work: Work | None = None
    try:
        work = _work(folder, config, hub)
        _restore(folder, store, hub, work)
        if change is not None:
            change(work)
        return _loop(folder, store, hub, work, config.checkpoint_every, watcher)
    except EsperError as error:
        folder.log(f"stopped: {error}")
        raise
    finally:
        if work is not None:
            work.close()
        hub.close()


def _restore(folder: RunFolder, store: CheckpointStore, hub: Hub, work: Work) -> None:
    """Bring work and record to the newest checkpoint; a new run has none and begins."""
    remove_unfinished(folder.path / FOLDER)
    checkpoint = store.latest()
    for problem in store.problems:
        folder.log(f"passed over: {problem}")
    if checkpoint is None:
        hub.restore(BEGINNING)
        work.begin()
        folder.log(f"begins: {folder.command}")
        return
    work.load_state(checkpoint.state["session"])
    # First the checkpoints: one that is newer than the record would not fit it.
    store.rewind(checkpoint.step)
    hub.restore(checkpoint.state["telemetry"])
    folder.log(f"goes on from {checkpoint.name}, round {work.round}")


def _loop(folder: RunFolder, store: CheckpointStore, hub: Hub, work: Work, every: int, watcher: Watcher | None) -> dict[str, Any]:
    if watcher is not None:
        watcher.start(work)
    try:
        with stop_on_signal() as stop:
            while not work.done:
                before = work.round
                work.run_epoch(watcher.progress if watcher is not None else None)
                hub.flush()
                if watcher is not None:
                    watcher.epoch(work)
                if work.round > before and (work.round % every == 0 or work.round >= work.epochs or stop.asked):
                    _save(folder, store, hub, work)
                if stop.asked and not work.done:
                    again = shlex.join(["esper", "train", "--resume", str(folder.path)])
                    raise Interrupted(f"stopped after {work.round} of {work.epochs}; go on with: {again}")
    finally:
        if watcher is not None:
            watcher.stop()
    summary = work.end()
    hub.flush(fsync=True)
    folder.finish(summary)
    folder.log("finished")
    return {**summary, "run": str(folder.path)}


def _save(folder: RunFolder, store: CheckpointStore, hub: Hub, work: Work) -> None:
    # The position first: everything up to it is then on the disk before a checkpoint says so.
    position = hub.position()
    name = store.save(work.round, {"session": work.state(), "telemetry": position})
    folder.log(f"saved {name}")


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
