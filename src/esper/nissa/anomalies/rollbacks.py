"""Rollbacks that do not help: one host again and again, or many hosts of a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from esper.leyline.events import Anomaly, Envelope, HostFinished, HostStarted, RolledBack
from esper.nissa.anomalies.alarms import Detector
from esper.nissa.anomalies.config import AnomalyConfig

MOST_HOSTS = 256
"""Hosts whose rollbacks are followed at a time: those that were rolled back last."""
MOST_TOLD = 10
"""Hosts of a round that are told of, each by itself; where there are more, their share says it."""


class Rollbacks(Detector):
    """A host that cannot be put back on its feet, or a round in which many fell.

    The hosts of a round are those that began with the same round and arm, twins included.
    """

    name = "rollbacks"
    what = "The governor rolled one host back several times in a row, or a large share of a round's hosts."
    thresholds = ("rollbacks_in_row", "rollback_gap", "rollback_share", "patience")
    events = (HostStarted, RolledBack, HostFinished)

    def __init__(self, config: AnomalyConfig) -> None:
        super().__init__(config)
        self.rows: dict[int, tuple[int, int]] = {}
        """By host, the epoch of its last rollback and how many there were in a row; the host that was rolled back last is the last."""
        self.round, self.arm = 0, ""
        self.started = self.finished = self.fallen = self.told = 0
        """Hosts of this round: begun, ended, ended after a rollback, and told of."""
        self.last_host = -1
        """The highest number of a host that began: whoever watches a run that goes on is told of hosts again."""

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Count hosts and their rollbacks."""
        if envelope.host is None:
            return
        match envelope.event:
            case HostStarted() as event if envelope.host > self.last_host:
                self.last_host = envelope.host
                if (event.round, event.arm) != (self.round, self.arm):
                    if self.finished and not self._too_many():
                        self.alarms.begins("share", False)
                    self.round, self.arm = event.round, event.arm
                    self.started = self.finished = self.fallen = self.told = 0
                self.started += 1
            case RolledBack() as event if envelope.epoch is not None:
                yield from self._rolled_back(envelope.host, envelope.epoch, event.reason)
            case HostFinished() as event:
                self.rows.pop(envelope.host, None)
                yield from self._ended(event.rollbacks > 0)

    def _rolled_back(self, host: int, epoch: int, reason: str) -> Iterator[Anomaly]:
        before, count = self.rows.pop(host, (epoch, 0))
        count = count + 1 if epoch - before <= self.config.rollback_gap else 1
        self.rows[host] = (epoch, count)
        if len(self.rows) > MOST_HOSTS:
            del self.rows[next(iter(self.rows))]
        if count == self.config.rollbacks_in_row and self.told < MOST_TOLD:
            self.told += 1
            times = f"{count} times in a row" if count > 1 else "once"
            yield self.anomaly(f"host {host} was rolled back {times}, the last time because {reason}", count, self.config.rollbacks_in_row)

    def _ended(self, fallen: bool) -> Iterator[Anomaly]:
        already = self._too_many()
        self.finished += 1
        self.fallen += fallen
        if self._too_many() and not already and self.alarms.begins("share", True):
            hosts = max(self.started, self.finished)
            share, limit = self.fallen / hosts, self.config.rollback_share
            where = f" of the arm {self.arm}" if self.arm else f" of round {self.round}" if self.round else ""
            text = f"the governor rolled back at least {self.fallen} of {hosts} hosts{where}, {share:.0%}, above {limit:.0%}"
            yield self.anomaly(text, share, limit)

    def _too_many(self) -> bool:
        """Whether the share is too large already, however the hosts end that have not ended yet."""
        return self.fallen > 1 and self.fallen > self.config.rollback_share * max(self.started, self.finished)

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it."""
        rows = [[host, epoch, count] for host, (epoch, count) in self.rows.items()]
        return {**super().state(), "rows": rows, **{name: getattr(self, name) for name in _COUNTERS}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state(state)
        self.rows = {host: (epoch, count) for host, epoch, count in state["rows"]}
        for name in _COUNTERS:
            setattr(self, name, state[name])


_COUNTERS = ("round", "arm", "started", "finished", "fallen", "told", "last_host")
