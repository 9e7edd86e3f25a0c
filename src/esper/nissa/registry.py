"""The register of sinks: what else a run's events can be sent to, by name. Esper's own are the trackers; plug-ins add theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from esper.leyline.errors import ConfigError
from esper.leyline.plugins import Entry, Register, telling
from esper.nissa.hub import Sink
from esper.nissa.trackers import TRACKERS, load_tracker, make_tracker

SinkFactory = Callable[[Path], Sink]
"""Makes a sink for the run in a folder."""
SINKS: Register[SinkFactory] = Register("sink")


def sink(name: str) -> Callable[[SinkFactory], SinkFactory]:
    """Register the decorated function or class, which makes a sink for the run in a folder, under a name."""
    return SINKS.named(name)


for _name in TRACKERS:
    sink(_name)(partial(make_tracker, _name))


def find_sink(name: str) -> Entry[SinkFactory]:
    """What makes the sink of that name. Raises UnknownNameError, and ConfigError for a tracker whose library is not here."""
    entry = SINKS.find(name)
    if name in TRACKERS:
        load_tracker(name)
    return entry


def make_sink(name: str, folder: Path) -> Sink:
    """The sink of that name for the run in `folder`."""
    entry = find_sink(name)
    with telling(f"sink {name!r}", entry.file):
        made = entry.value(folder)
    if not isinstance(made, Sink):
        raise ConfigError(f"sink {name!r} in {entry.where} is a {type(made).__name__}; expected an object with write, flush and close")
    return made
