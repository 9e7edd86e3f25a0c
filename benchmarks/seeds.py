"""An epoch of hosts by the number of seeds in them, in training or blended in, against the same hosts without any.

    python benchmarks/seeds.py [--quick] [--device cuda]

Whole epochs under each engine: training, validation and the counterfactuals that tell what each seed brings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from growing import KINDS, check, grown
from plain_loop import TASK

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.tolaria.training.engine import ENGINES

HOSTS = {"cpu": 4, "cuda": 32}
ROUNDS = 7


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by engine, then by number of seeds."""
    device = torch.device(settings.device)
    data, count = TASK.load(None, device), HOSTS[device.type]
    for name, engine in ENGINES.items():
        hosts = {kind: [grown(data, seed, kind) for seed in range(count)] for kind in KINDS}
        tasks: dict[str, Callable[[], object]] = {
            f"{name}, {count} hosts, {kind}": partial(engine().run_epoch, each) for kind, each in hosts.items()
        }
        yield from compared(in_turns(settings, tasks, ROUNDS), f"{name}, {count} hosts, no seeds")
        for kind, each in hosts.items():
            for host in each:
                check(host, kind)


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
