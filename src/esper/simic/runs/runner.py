"""Running work in a run folder: recorded, checkpointed, stopped by Ctrl-C without loss, and resumed bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from esper.leyline.config import replace_fields
from esper.leyline.errors import CheckpointError, ConfigError, EsperError, Interrupted
from esper.leyline.events import Note, RoundFinished, RunFinished
from esper.leyline.files import remove_unfinished
from esper.nissa import BEGINNING, Hub, JsonlSink, QueuedSink, Sink, find_sink, make_sink
from esper.nissa.trackers import TRACKERS, TrackerSink
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.naming import anchored, find_policy
from esper.simic.growth.recording import FOLDER
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.plugins import load_plugins
from esper.simic.runs.compare_config import CompareConfig
from esper.simic.runs.configs import Config, read_config
from esper.simic.runs.headroom_config import HeadroomConfig
from esper.simic.runs.practice_config import PracticeConfig
from esper.simic.runs.resuming import command_for, resume_command
from esper.simic.runs.search_config import SearchConfig
from esper.simic.runs.sweep_config import SweepConfig
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import RunFolder, read_run

if TYPE_CHECKING:
    from esper.simic.growth.play import Progress
    from esper.simic.runs.work import Work

WORK = {
    "run": "controller:ControllerRun",
    "learn": "ppo:PPORun",
    "expert": "expert:ExpertRun",
    "bc": "offline:OfflineRun",
    "iql": "offline:OfflineRun",
    "compare": "compare:CompareRun",
    "headroom": "headroom:HeadroomRun",
    "tune": "search:SearchRun",
    "sweep": "sweep:SweepRun",
}
"""By the config's kind: the module and the class of the run."""


class Stop:
    """Whether somebody asked the run to stop."""

    asked = False


def start(
    config: Config,
    path: Path | None,
    command: str,
    *,
    sinks: Sequence[Sink | str] = (),
    display: Sink | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Begin a run in a new folder, by default runs/TASK-CONTROLLER-NNN, and see it through. Returns the summary.

    sinks: whoever else wants the events, each in a thread of its own; the name of a tracker, or of one that a plug-in registers, makes it
    for the folder. display: gets the events in this thread, as they happen. progress: told what share of the present round is done.
    """
    load_plugins(_plugins(config))  # first, as a controller's name comes before that of a file
    config = _anchored(config)
    _find_sinks(sinks)
    with RunFolder.create(path, name=_name(config), config=config, command=command) as folder:
        try:
            return _run(folder, config, sinks, display, progress)
        except Interrupted:
            raise  # there is something to go on from
        except EsperError:
            # A mistake that only showed while hosts and data were made, or in the first round: no checkpoint is there.
            folder.withdraw(also=[name for name in TRACKERS if name in sinks])
            raise


def resume(
    path: Path,
    *,
    sinks: Sequence[Sink | str] = (),
    display: Sink | None = None,
    progress: Progress | None = None,
    reset_heads: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Go on with an interrupted run from its last whole checkpoint, or from the beginning when it has none.

    reset_heads: heads of a policy to make new first. settings: values to go on with in place of those in the run's config, by dotted
    keys; see ppo_config.CHANGEABLE. With more rounds than it had, a finished run that teaches a policy goes on as well.
    """
    read_run(path)
    saved = read_config(path / "config.toml")
    config = _with_settings(saved, settings or {})
    more = isinstance(config, PracticeConfig) and isinstance(saved, PracticeConfig) and config.rounds > saved.rounds
    with RunFolder.open(path, extend=more) as folder:
        if sinks:
            load_plugins(_plugins(config))
        _find_sinks(sinks)
        if settings:
            folder.change_config(config)
            folder.log("changed: " + ", ".join(f"{key} is {value}" for key, value in settings.items()))
        return _run(folder, config, sinks, display, progress, reset_heads)


def _plugins(config: Config) -> tuple[Path, ...]:
    """The plug-ins that a run names."""
    return config.plugins if isinstance(config, GrowthConfig | SweepConfig) else ()


def _find_sinks(sinks: Sequence[Sink | str]) -> None:
    """Raise UnknownNameError for a sink that nobody registers, and ConfigError for a tracker whose library is not here, before anything
    is made."""
    for name in sinks:
        if isinstance(name, str):
            find_sink(name)


def _anchored(config: Config) -> Config:
    """The config with the places that it names written in full, and policies that ship by their exact names, so that the run goes on
    and is exported from any folder."""
    places: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Path):
            places[field.name] = value.absolute()
        elif isinstance(value, GrowthConfig):
            places[field.name] = _anchored(value)  # type: ignore[arg-type]
        elif isinstance(value, tuple) and any(isinstance(each, Path) for each in value):
            places[field.name] = tuple(each.absolute() for each in value)
        elif isinstance(value, dict) and any(isinstance(each, Path) for each in value.values()):
            places[field.name] = {name: each.absolute() for name, each in value.items()}
    if isinstance(config, ControllerRunConfig):
        places["controller"] = anchored(config.controller)
    if isinstance(config, PracticeConfig) and config.from_policy is not None:
        places["from_policy"] = anchored(config.from_policy)
    if isinstance(config, CompareConfig):
        places["policies"] = tuple(anchored(policy) for policy in config.policies)
    return replace(config, **places)


def _with_settings(config: Config, settings: Mapping[str, object]) -> Config:
    """The config with these settings, if a run may go on with others."""
    allowed = config.changeable if isinstance(config, GrowthConfig) else ()
    for key in settings:
        if key.split(".")[0] not in allowed or key.startswith("ppo.prior."):
            can = f"what can: {', '.join(allowed)}" if allowed else "this kind of run goes on as it began"
            raise ConfigError(f"{key!r} cannot change when a run goes on; {can}")
    return replace_fields(config, settings, source=f"esper {command_of(config)} --resume")


def command_of(config: Config) -> str:
    """The command that such a run is started with, and gone on with."""
    return command_for(config.kind)


def go_on(config: Config, run: Path) -> str:
    """How to go on with a run, for a message."""
    return f"go on with: {resume_command(config.kind, run)}"


def _name(config: Config) -> str:
    if isinstance(config, BCConfig | IQLConfig):
        return config.kind
    if isinstance(config, PracticeConfig):
        return f"{'-'.join(config.task)}-{config.method}"
    if isinstance(config, CompareConfig | HeadroomConfig):
        return f"{'-'.join(config.task)}-{config.kind}"
    if isinstance(config, SearchConfig):
        return f"{'-'.join(config.task)}-{config.controller}-tune"
    if isinstance(config, SweepConfig):
        return f"{_name(config.method_config)}-sweep"
    assert isinstance(config, ControllerRunConfig)
    policy = find_policy(config.controller)
    return f"{config.task}-{config.controller if policy is None else policy.name or 'policy'}"


def _work(folder: RunFolder, config: Config, hub: Hub) -> Work:
    """The run of that kind. Its module loads torch, which reading a config does not need."""
    module, _, name = WORK[config.kind].partition(":")
    made: Work = getattr(import_module(f"esper.simic.runs.{module}"), name)(config, hub, folder.command, folder.path)
    return made


def _run(
    folder: RunFolder,
    config: Config,
    sinks: Sequence[Sink | str],
    display: Sink | None,
    progress: Progress | None,
    reset_heads: Sequence[str] = (),
) -> dict[str, Any]:
    store = CheckpointStore(folder.checkpoints, run=folder.id)
    made = [make_sink(each, folder.path) if isinstance(each, str) else each for each in sinks]
    journal = JsonlSink(folder.events) if config.telemetry.at_least("minimal") else None
    queued = [QueuedSink(sink, each if isinstance(each, str) else "") for each, sink in zip(sinks, made, strict=True)]
    hub = Hub(journal, [*queued, *([] if display is None else [display])], log=folder.log, config=config.telemetry)
    work: Work | None = None
    try:
        with stop_on_signal() as stop:
            work = _work(folder, config, hub)
            _restore(folder, store, hub, work)
            with hub.unrecorded():
                for each, sink in zip(sinks, made, strict=True):
                    if isinstance(sink, TrackerSink):
                        hub.emit(Note(text=f"{each}: {sink.tracker.hint}"))
            if reset_heads and not isinstance(config, PracticeConfig):
                raise ConfigError("--reset-heads is for runs that learn a policy by playing; this one does not")
            if reset_heads:
                work.reset_heads(reset_heads)  # type: ignore[attr-defined]
            return _loop(folder, store, hub, work, config, progress, stop)
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
    if checkpoint is None:
        hub.restore(BEGINNING)
        work.begin()
        folder.log(f"begins: {folder.command}")
        return
    work.load_state(checkpoint.state["work"])
    # First the checkpoints: one that is newer than the record would not fit it.
    store.rewind(checkpoint.step)
    hub.restore(checkpoint.state["telemetry"])
    with hub.unrecorded():  # the record has it; whoever watches from now on has not
        work.begin()
        for problem in store.problems:
            folder.log(f"passed over: {problem}")
            hub.emit(Note(text=f"a checkpoint was passed over, and what came after it happens again: {problem}"))
    folder.log(f"goes on from {checkpoint.name}, round {work.round}")


def _loop(
    folder: RunFolder, store: CheckpointStore, hub: Hub, work: Work, config: Config, progress: Progress | None, stop: Stop
) -> dict[str, Any]:
    hub.flush()
    unsaved = ""
    while not work.done:
        before = work.round
        work.run_round(progress)
        if work.round > before:
            hub.emit(RoundFinished(round=work.round, rounds=work.rounds))
        hub.flush()
        if work.round > before and (work.round % config.checkpoint_every == 0 or work.round >= work.rounds or stop.asked):
            unsaved = _save(folder, store, hub, work, before=unsaved)
        if stop.asked and not work.done:
            how = f", and goes on from an earlier checkpoint ({unsaved})" if unsaved else ""
            raise Interrupted(f"stopped after {work.round} of {work.rounds}{how}; {go_on(config, folder.path)}")
    folder.keep()
    summary = work.end()
    if unsaved and (unsaved := _save(folder, store, hub, work, before=unsaved)):
        # A finished run has the networks that its figures are of; and one that is not finished can be brought to its end again.
        raise CheckpointError(f"the run is at its end and cannot be finished: {unsaved}; make room, and {go_on(config, folder.path)}")
    hub.emit(RunFinished(outcome="finished"))
    hub.flush(fsync=True)
    folder.finish(summary)
    folder.log("finished")
    return {**summary, "run": str(folder.path)}


def _save(folder: RunFolder, store: CheckpointStore, hub: Hub, work: Work, before: str) -> str:
    """Save a checkpoint. Returns why a disk that is full, or fails, did not take it; that is said when it begins, as `before` tells, and
    when it is over."""
    # The position first: everything up to it is then on the disk before a checkpoint says so.
    position = hub.position()
    try:
        name = store.save(work.round, {"work": work.state(), "telemetry": position})
    except CheckpointError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if not before:
            hub.remark(f"{error}; the run goes on, and the next one is tried")
        return str(error)
    if before:
        hub.remark(f"checkpoints can be saved again: {name}")
    folder.log(f"saved {name}")
    return ""


class _Ask:
    """The handler of signals that ask for a stop. outer: of the run that this one is part of."""

    def __init__(self, stop: Stop, outer: Stop | None) -> None:
        self.stop, self.outer = stop, outer

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stop.asked:
            self.stop.asked = True
            if self.outer is not None:
                self.outer.asked = True
            with suppress(OSError):  # nobody may be left to read it
                os.write(2, b"\nesper: stopping after this round, with a checkpoint; Ctrl-C again stops at once\n")


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Ctrl-C, SIGTERM and a terminal that is closed ask for a stop at the end of the round; a second Ctrl-C stops at once.

    Within a run that is part of another one, as a point is of a sweep, both are asked.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    outer = getattr(signal.getsignal(signal.SIGINT), "stop", None)
    ask = _Ask(stop, outer if isinstance(outer, Stop) else None)
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
