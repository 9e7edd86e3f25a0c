"""What workers lose by waiting for each other: hosts dealt to them in turn, and by what an epoch of each will cost.

    python benchmarks/workers.py [--task digits] [--hosts 64] [--workers 2 4 8 16] [--real 2] [--json FILE]

Every host of a family plays one episode under an untrained policy, in this process, and the processor time of each of its epochs is
noted. With so many workers an epoch lasts as long as the largest sum of a worker; `idle` is the share of their time in which workers have
nothing to do, and host-epochs/s what one core for each of them would reach, bookkeeping apart. `--real` plays the same episodes in so
many worker processes, twice in turn; there `idle` is the share of the time in which a worker neither ran nor waited for a core (Linux).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from esper.leyline.reports import EpochReport
from esper.nissa import Hub
from esper.simic.growth import workers
from esper.simic.growth.dealing import Load, deal
from esper.simic.growth.environment import Environment, Growth
from esper.simic.growth.play import Play
from esper.simic.growth.workers import GrowthWorkers
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host

Deal = Callable[[Mapping[int, Load], Sequence[Sequence[Load]]], dict[int, int]]


def in_turn(hosts: Mapping[int, Load], carried: Sequence[Sequence[Load]]) -> dict[int, int]:
    """With n workers, w has the places w, w + n, w + 2n and so on."""
    return {place: place % len(carried) for place in hosts}


DEALS: dict[str, Deal] = {"in turn": in_turn, "by cost": deal}


class Timed(SerialEngine):
    """Notes the processor seconds of each epoch, by host seed."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        reports = []
        for host in hosts:
            began = time.process_time()
            reports += super().run_epoch([host])
            self.seconds.setdefault(host.seed, []).append(time.process_time() - began)
        return reports


def played(run: PPORun, environment: Environment) -> int:
    """One episode of every host of the pool; how many host-epochs that were."""
    playing = Play(environment, PolicyDecider(run.policy, 5, explore=run.explore), run.pool)
    playing.through()
    return sum(host.epochs for host in playing.started)


def replayed(seconds: Mapping[int, Sequence[float]], dealt: Mapping[int, int], count: int) -> dict[str, float]:
    """Idle share and speed with so many workers, from the seconds of each place's epochs."""
    wall = 0.0
    for epoch in range(max(map(len, seconds.values()))):
        sums = [0.0] * count
        for place, each in seconds.items():
            sums[dealt[place]] += each[epoch] if epoch < len(each) else 0.0
        wall += max(sums)
    return {"idle": 1 - sum(map(sum, seconds.values())) / (count * wall), "speed": sum(map(len, seconds.values())) / wall}


def simulated(run: PPORun, counts: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of workers."""
    growth, engine = Growth(run.config), Timed()
    growth.engine = engine
    played(run, growth)
    seconds = {place: engine.seconds[start.seed] for place, start in enumerate(run.pool)}
    loads = {place: growth.weigh(start) for place, start in enumerate(run.pool)}
    rows = []
    for count in counts:
        figures = {name: replayed(seconds, how(loads, [[] for _ in range(count)]), count) for name, how in DEALS.items()}
        rows.append({"workers": count, "real": False, **figures})
    return rows


def measured(run: PPORun, count: int) -> dict[str, Any]:
    """The row of real workers."""
    environment = GrowthWorkers(run.config, count)
    pids = [process.pid for process in environment._processes]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in DEALS}
    try:
        environment.begin(dict(enumerate(run.pool)))  # torch is imported, data loaded and every host weighed
        for _ in range(2):
            for name, how in DEALS.items():
                with patch.object(workers, "deal", how):
                    before, began = sum(map(_busy, pids)), time.perf_counter()
                    epochs = played(run, environment)
                    wall, busy = time.perf_counter() - began, sum(map(_busy, pids)) - before
                found[name].append({"idle": 1 - busy / (count * wall), "speed": epochs / wall})
    finally:
        environment.close()
    means = {name: {key: sum(each[key] for each in both) / len(both) for key in ("idle", "speed")} for name, both in found.items()}
    return {"workers": count, "real": True, **means}


def _busy(pid: int) -> float:
    """Seconds in which a process has run or waited for a core."""
    running, queued, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return (int(running) + int(queued)) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits", help="whose family the hosts are of")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16], help="numbers of workers to work out")
    parser.add_argument("--real", type=int, nargs="*", default=[], help="numbers of workers to play in as well")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hosts = arguments.hosts
    run = PPORun(PPORunConfig(task=(arguments.task,), hosts=hosts, pool=hosts, control=False), Hub())
    rows = simulated(run, arguments.workers) if arguments.workers else []
    rows += [measured(run, count) for count in arguments.real]
    print(f"{'workers':>12}  " + "  ".join(f"{name:>8}: {'idle':>5} {'host-epochs/s':>13}" for name in DEALS))
    for row in rows:
        label = f"{row['workers']}{' real' if row['real'] else ''}"
        print(f"{label:>12}  " + "  ".join(f"{'':8}  {row[name]['idle']:5.1%} {row[name]['speed']:13.1f}" for name in DEALS))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
