"""What every tracker has in common: the sink that feeds it, what it is told, and what it remembers for a run that goes on."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from esper.leyline.errors import ConfigError
from esper.leyline.events import Anomaly, Envelope, RunStarted
from esper.leyline.files import open_file, replace_file
from esper.nissa.scalars import Point, Scalars, remark

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Their names: of the module here, of the library, of the extra that installs it, and of the folder in a run."""

DISCREET = {"wandb": ("WANDB_ERROR_REPORTING", "false"), "mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true")}
"""Libraries that tell their makers how they are used: the variable that stops it, unless its user has set it otherwise."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """What a tracker is told at the start of a run, or when it goes on."""

    run: RunStarted
    config: Mapping[str, Any]
    """The run's config.toml, with dotted keys."""
    unit: str
    """What a step is: epoch or round."""
    step: int
    """Steps that are done."""
    time: float
    """When that was, in seconds since 1970."""


class Tracker(Protocol):
    """Where numbers go."""

    hint: str
    """How to see them, in a sentence."""

    def begin(self, tracked: Tracked) -> None:
        """The run begins, or goes on."""

    def log(self, point: Point, time: float) -> None:
        """Numbers of a step, and when it was, in seconds since 1970."""

    def remark(self, step: int, text: str, time: float, *, urgent: bool) -> None:
        """A sentence for people; urgent: something looks wrong."""

    def flush(self) -> None:
        """Bring what was logged to where it belongs."""

    def end(self, finished: bool) -> None:
        """The run is over, or was interrupted; its summary.json is there if it is finished."""


class TrackerSink:
    """A sink that makes numbers of events and gives them to a tracker. Nothing is made before the run begins."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.folder, self.tracker = folder, tracker
        self._scalars = Scalars()
        self._begun = False

    def write(self, envelope: Envelope) -> None:
        """Take an event."""
        time = 0.0 if envelope.time is None else envelope.time
        points = list(self._scalars.points(envelope))
        if isinstance(envelope.event, RunStarted) and not self._begun:
            config = dict(flattened(tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))))
            self.tracker.begin(Tracked(envelope.event, config, self._scalars.unit, self._scalars.step, time))
            self._begun = True
        if not self._begun:
            return
        for point in points:
            self.tracker.log(point, time)
        if (text := remark(envelope)) is not None:
            self.tracker.remark(self._scalars.step, text, time, urgent=isinstance(envelope.event, Anomaly))

    def flush(self) -> None:
        """Bring what was logged to where it belongs."""
        if self._begun:
            self.tracker.flush()

    def close(self) -> None:
        """End the tracker's own run."""
        if self._begun:
            self.tracker.end((self.folder / "summary.json").exists())


@dataclass(slots=True)
class Ledger:
    """What a tracker that cannot take numbers back remembers in the run folder: the id of its own run, and what it was given already.

    A run that goes on from a checkpoint repeats what came after it, with the same numbers; they are logged once.
    """

    path: Path
    run: str = ""
    """The id of the tracker's run; empty before there is one."""
    store: str = ""
    """Where that run is."""
    logged: dict[str, int] = field(default_factory=dict)
    """By name: the last step that was logged."""

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """What an earlier process wrote down; an empty one where there is none."""
        try:
            with open_file(path) as file:
                content = json.loads(file.read())
            return cls(path, str(content["run"]), str(content["store"]), {str(name): int(step) for name, step in content["logged"].items()})
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read, and with it where this run was tracked: {error}; remove it to track anew") from error

    def new(self, point: Point) -> dict[str, float]:
        """Those of a step's numbers that were not logged before; from now on they were."""
        values = {name: value for name, value in point.values.items() if self.logged.get(name, -1) < point.step}
        self.logged |= dict.fromkeys(values, point.step)
        return values

    def save(self) -> None:
        """Write it down."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps({"run": self.run, "store": self.store, "logged": self.logged}).encode() + b"\n")


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables, by dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def figures(folder: Path) -> dict[str, float]:
    """The single numbers of a finished run's summary.json, by dotted keys; what is a list, host by host, is left to the file."""
    with open_file(folder / "summary.json") as file:
        summary = dict(flattened(json.loads(file.read())))
    return {name: float(value) for name, value in summary.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def load_tracker(name: str) -> Any:
    """The module of a tracker. Raises ConfigError where its library is not installed."""
    if name in DISCREET:
        os.environ.setdefault(*DISCREET[name])  # read when the library is imported
    try:
        return import_module(f"esper.nissa.trackers.{name}")
    except ImportError as error:
        missing = f"needs a library that is not here ({error})"
        raise ConfigError(f"--track {name} {missing}; install it with: pip install 'esper-lite[{name}]'") from error


def make_tracker(name: str, folder: Path) -> TrackerSink:
    """The sink of that name for the run in a folder."""
    tracker: Tracker = load_tracker(name).make(folder)
    return TrackerSink(folder, tracker)
