"""How much of a run is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from esper.leyline.config import Count, Range, check_ranges
from esper.leyline.events import (
    Anomaly,
    ArmExamined,
    Event,
    HostFinished,
    HostStarted,
    Note,
    PlansPlayed,
    PolicyUpdated,
    RolledBack,
    RoundFinished,
    RunFinished,
    RunStarted,
    SinkBehind,
    SinkFailed,
)
from esper.nissa.anomalies.config import AnomalyConfig

LevelName = Literal["off", "minimal", "normal", "debug"]
LEVELS: tuple[LevelName, ...] = ("off", "minimal", "normal", "debug")
"""From nothing to everything."""

MINIMAL: frozenset[type[Event]] = frozenset(
    (
        *(RunStarted, RunFinished, RoundFinished, HostStarted, HostFinished, RolledBack, PolicyUpdated, ArmExamined, PlansPlayed),
        *(Anomaly, Note, SinkFailed, SinkBehind),
    )
)
"""What is recorded at every level but `off`: how the run went and how each host began and ended."""

THINNED_ROUNDS = 10
"""In a record that has reached its size, one host of every so manieth round is recorded in full, and nothing of the other hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """What is recorded of a run in its events.jsonl."""

    level: LevelName = "normal"
    """off: nothing, only the summary is written. minimal: rounds, what was learned in each, and how hosts began and ended. normal: also
    every epoch, decision, gate and stage of some hosts, and the course of all. debug: all of that of every host, and what each decision
    was made on."""
    hosts: Count = 16
    """At normal: hosts of each round that are recorded in full, their twins with them; of the others their beginning, course and end."""
    events: Annotated[int, Range(1)] = 500_000
    """Events after which a record has its size (about 200 MB at normal): from there on one host of every tenth round is recorded in full,
    and of the other hosts nothing but what a round says of all."""

    anomalies: AnomalyConfig = field(default_factory=AnomalyConfig)

    def __post_init__(self) -> None:
        check_ranges(self)

    def at_least(self, level: LevelName) -> bool:
        """Whether as much is recorded as at that level."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


EVERYTHING = TelemetryConfig(level="debug", events=1 << 62)
"""Every host in full, however many there are: for sinks that work with what they are told."""
