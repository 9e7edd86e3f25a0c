"""Engines train many hosts. All give the same reports; they differ in how the hosts share a machine.

An epoch of a host has three parts: the host begins it, the engine trains and evaluates, the host concludes. An engine may do the middle
for many hosts at once; it reads what came out of the device once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from esper.leyline.reports import EpochReport
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import read_all


class Engine(Protocol):
    """Whatever can run one epoch of some hosts."""

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""


class SerialEngine:
    """One host after another, on any device."""

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order; `progress` is told how many are done."""
        reports = []
        for done, host in enumerate(hosts, start=1):
            plan = host.begin_epoch()
            sums = host.train(plan)
            evaluated = host.evaluate()
            *values, figures = read_all([sums, *evaluated.tensors(), host.model.figures()])
            reports.append(host.conclude(plan, evaluated, *values, figures=figures.tolist()))
            if progress is not None:
                progress(done)
        return reports


ENGINES: dict[str, type[Engine]] = {"serial": SerialEngine}
"""Every engine by its name in `training.engine`."""
