"""What detectors have in common: alarms that are told once, and figures over a few rounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from esper.leyline.events import Anomaly, Envelope, Event
from esper.nissa.anomalies.config import AnomalyConfig

MOST_ALARMS = 256
"""Alarms that are on, or about to be, in one detector; more are not taken."""


class Alarms:
    """Which conditions hold, each by its key. One begins after `patience` rounds in a row in which it was met, and is over after
    `recovery` rounds in a row in which it was not. A round that cannot tell changes nothing."""

    def __init__(self, recovery: int) -> None:
        self.recovery = recovery
        self._held: dict[str, tuple[bool, int]] = {}
        """By key, whether it is on, and the rounds in a row that have said otherwise. Whatever is off and quiet is left out."""

    def begins(self, key: str, met: bool | None, patience: int = 1) -> bool:
        """Take what a round says, None for nothing; whether the alarm goes on with it."""
        if met is None:
            return False
        on, against = self._held.pop(key, (False, 0))
        against = against + 1 if met != on else 0
        turns = against >= (self.recovery if on else patience)
        if turns:
            on, against = not on, 0
        if (not on and not against) or len(self._held) >= MOST_ALARMS:
            return False
        self._held[key] = (on, against)
        return turns and on

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it."""
        return {key: list(self._held[key]) for key in sorted(self._held)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._held = {key: (bool(on), int(against)) for key, (on, against) in state.items()}


class Detector(ABC):
    """Notices one kind of anomaly. Its state is plain and small, however long the run and however many its hosts."""

    name: ClassVar[str]
    """What its anomalies are known by."""
    what: ClassVar[str]
    """What it notices, in a sentence."""
    thresholds: ClassVar[tuple[str, ...]]
    """The fields of AnomalyConfig that it goes by."""
    events: ClassVar[tuple[type[Event], ...]]
    """What it wants to see."""

    def __init__(self, config: AnomalyConfig) -> None:
        self.config = config
        self.alarms = Alarms(config.patience)

    @abstractmethod
    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """What this event makes it say."""

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it."""
        return {"alarms": self.alarms.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.alarms.load_state(state["alarms"])

    def anomaly(self, text: str, value: float, threshold: float) -> Anomaly:
        """One of its own."""
        return Anomaly(detector=self.name, text=text, value=float(value), threshold=float(threshold))


def figure(metrics: Mapping[str, float], name: str) -> float | None:
    """A finite figure; None where there is none."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and of the last third."""
    size = max(1, len(values) // 3)
    return sum(value / size for value in values[:size]), sum(value / size for value in values[-size:])


def trend(values: Sequence[float]) -> float:
    """Spearman's rank correlation with time: 1 for a series that only rises, -1 for one that only falls, 0 for one that stays."""
    ordered = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(ordered):
        places.setdefault(value, []).append(place)
    middle = (len(values) - 1) / 2
    ranks = [sum(places[value]) / len(places[value]) - middle for value in values]
    times = [time - middle for time in range(len(values))]
    norm = math.sqrt(sum(rank * rank for rank in ranks) * sum(time * time for time in times))
    return sum(rank * time for rank, time in zip(ranks, times, strict=True)) / norm if norm > 0.0 else 0.0
