"""Epochs of hosts in a second, by engine and number of hosts, against a plain PyTorch loop over the same networks.

    python benchmarks/engines.py [--quick] [--device cuda]

The hosts are those of the digits with all slots dormant, so that everybody trains the same networks on the same batches. The loop trains
and validates; an engine also makes batch norms anew, counts operations, judges and reports. An engine that there is gets its row.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from plain_loop import TASK, PlainLoop, member_named

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import ENGINES
from esper.tolaria.training.host import Host

HOSTS = {"cpu": {1: 15, 4: 9, 16: 9}, "cuda": {16: 5, 64: 3, 256: 3}}
"""Numbers of hosts, each with the rounds that it is measured in."""


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by number of hosts, then by engine."""
    data, member = TASK.load(None, torch.device(settings.device)), member_named("standard")
    sizes = HOSTS[torch.device(settings.device).type]
    for count in list(sizes)[:2] if settings.quick else sizes:
        loops = [PlainLoop(data, member, seed) for seed in range(count)]
        suffix = f"{count} host{'s' if count > 1 else ''}"
        tasks: dict[str, Callable[[], object]] = {f"plain loop, {suffix}": partial(_run_all, loops)}
        for name, engine in ENGINES.items():
            hosts = [Host(TASK, data, member, seed, TrainingConfig()) for seed in range(count)]
            tasks[f"{name}, {suffix}"] = partial(engine().run_epoch, hosts)
        rate = partial(operator.truediv, count)
        yield from compared(in_turns(settings, tasks, sizes[count]), f"plain loop, {suffix}", unit="host-epochs/s", value_of=rate)


def _run_all(loops: list[PlainLoop]) -> None:
    for loop in loops:
        loop.run_epoch()


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
