"""Engines train many hosts. All give the same reports; they differ in how the hosts share a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from esper.leyline.reports import EpochReport
from esper.tolaria.training.host import Host


class Engine(Protocol):
    """Whatever can run one epoch of some hosts."""

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""
        ...


class SerialEngine:
    """One host after another, on any device."""

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        reports = []
        for done, host in enumerate(hosts, start=1):
            reports.append(host.train_epoch())
            if progress is not None:
                progress(done)
        return reports
