"""The register of sinks: what else a run's events can be sent to, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from esper.leyline.errors import ConfigError
from esper.leyline.plugins import Register, telling
from esper.nissa.hub import Sink

SinkFactory = Callable[[Path], Sink]
"""Makes a sink for the run in a folder."""
SINKS: Register[SinkFactory] = Register("sink")


def sink(name: str) -> Callable[[SinkFactory], SinkFactory]:
    """Register the decorated function or class, which makes a sink for the run in a folder, under a name."""
    return SINKS.named(name)


def make_sink(name: str, folder: Path) -> Sink:
    """The sink of that name for the run in `folder`."""
    entry = SINKS.find(name)
    with telling(f"sink {name!r}", entry.file):
        made = entry.value(folder)
    if not isinstance(made, Sink):
        raise ConfigError(f"sink {name!r} in {entry.where} is a {type(made).__name__}; expected an object with write, flush and close")
    return made
