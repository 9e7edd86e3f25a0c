"""An epoch of a host with dormant slots against a plain PyTorch loop over the same network.

    python benchmarks/hosts.py [--quick] [--device cuda]

`train` is the training alone; `whole` adds validation, batch norms made anew, the governor and the report. Both compute the same
numbers, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch
from plain_loop import MEMBERS, TASK, PlainLoop, member_named

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by member: the training alone, then whole epochs."""
    data = TASK.load(None, torch.device(settings.device))
    for name in ("standard",) if settings.quick else MEMBERS:
        member = member_named(name)
        host, plain = Host(TASK, data, member, 0, TrainingConfig()), PlainLoop(data, member, 0)
        train(host)
        plain.train()
        if settings.device == "cpu":
            for mine, theirs in zip(host.model.host.parameters(), plain.network.parameters(), strict=True):
                assert torch.equal(mine, theirs), "the two did not compute the same"
        seconds = in_turns(settings, {f"plain train, {name}": plain.train, f"host's train, {name}": partial(train, host)})
        yield from compared(seconds, f"plain train, {name}")
        whole = partial(SerialEngine().run_epoch, [host])
        seconds = in_turns(settings, {f"plain whole, {name}": plain.run_epoch, f"host's whole, {name}": whole})
        yield from compared(seconds, f"plain whole, {name}")


def train(host: Host) -> None:
    """An epoch's training, and nothing after it."""
    host.train(host.begin_epoch())


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
