"""What a host costs beside a bare PyTorch loop over the same network: time of an epoch, and memory.

    python benchmarks/tolaria.py [--epochs 30] [--hosts 40] [--json FILE]

All slots are dormant, so both compute the same numbers, bit for bit. Epochs of the two alternate and the medians of their processor
time are compared, so that a busy machine disturbs both alike. `train` is the training alone; `whole` adds validation, the governor
and the report. Memory is what a process grows by for each further host that has trained an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from esper.tolaria.data import Data, epoch_order, stream_seed
from esper.tolaria.tasks import Member, get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host

MEMBERS: dict[str, dict[str, Any]] = {
    "standard": {},
    "3x3": {"widths": (8, 16, 32), "kernel": 3},
    "deep": {"widths": (16, 32, 64), "kernel": 3, "depth": 2},
}
"""The digits' hosts that are measured: what is changed of the standard one."""


class Bare:
    """What anybody would write for the same training."""

    def __init__(self, data: Data, member: Member, seed: int) -> None:
        self.data, self.member, self.seed, self.epoch = data, member, seed, 0
        self.network, _, _ = get("digits").build_host(member, data.classes, seed)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=member.learning_rate, momentum=member.momentum, nesterov=True, weight_decay=member.weight_decay
        )

    def train(self) -> tuple[float, float]:
        split, network = self.data.train, self.network
        network.train()
        loss_sum, correct = torch.zeros(()), torch.zeros(())
        for index in epoch_order(len(split), stream_seed("host", self.seed), self.epoch).split(self.member.batch):
            x, y = split.x[index], split.y[index]
            self.optimizer.zero_grad()
            logits = network(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            self.optimizer.step()
            loss_sum += loss.detach() * len(x)
            correct += (logits.argmax(-1) == y).sum()
        self.epoch += 1
        return float(loss_sum) / len(split), float(correct) / len(split)

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        split = self.data.val
        self.network.eval()
        logits = self.network(split.x)
        return float(F.cross_entropy(logits, split.y)), float((logits.argmax(-1) == split.y).sum()) / len(split)

    def whole(self) -> None:
        self.train()
        self.validate()


def make_host(data: Data, member: Member, seed: int) -> Host:
    return Host(get("digits"), data, member, seed, TrainingConfig())


def alternate(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median processor seconds of each; the two take turns, and turns at being first."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            (one, other)[which]()
            if number >= 2:  # the first rounds warm caches up
                seconds[which].append(time.process_time() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def memory(make: Callable[[int], Callable[[], object]], count: int) -> float:
    """Kilobytes by which a process grows for each of `count` hosts that are made and trained for an epoch, measured in a fork."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = [make(1000)]
        kept[0]()
        before = _resident()
        for seed in range(count):
            kept.append(make(seed))
            kept[-1]()
        os.write(writer, f"{(_resident() - before) / count / 1024}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return float(text)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str, data: Data, epochs: int, hosts: int) -> dict[str, Any]:
    """All figures of one member."""
    member = get("digits").family.with_fixed(epochs=10_000, **MEMBERS[name]).standard
    kilobytes = {
        "host_kb": memory(lambda seed: partial(SerialEngine().run_epoch, [make_host(data, member, seed)]), hosts),
        "bare_kb": memory(lambda seed: Bare(data, member, seed).whole, hosts),
    }
    host, bare = make_host(data, member, 0), Bare(data, member, 0)

    def train() -> None:
        host.train(host.begin_epoch())

    train_host, train_bare = alternate(train, bare.train, epochs)
    whole_host, whole_bare = alternate(partial(SerialEngine().run_epoch, [host]), bare.whole, epochs)
    for mine, theirs in zip(host.model.host.parameters(), bare.network.parameters(), strict=True):
        assert torch.equal(mine, theirs), "the two did not compute the same"
    seconds = {"train": train_host, "bare_train": train_bare, "whole": whole_host, "bare_whole": whole_bare}
    ratios = {"train_ratio": train_host / train_bare, "whole_ratio": whole_host / whole_bare}
    milliseconds = {f"{what}_ms": 1e3 * value for what, value in seconds.items()}
    return {"member": name, "parameters": host.start_parameters, **milliseconds, **ratios, **kilobytes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="timed epochs of each")
    parser.add_argument("--hosts", type=int, default=40, help="hosts that memory is measured over")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = get("digits").load(None, torch.device("cpu"))
    rows = [measure(name, data, arguments.epochs, arguments.hosts) for name in MEMBERS]
    columns = {"train": 10, "bare": 10, "ratio": 6, "whole": 10, "bare ": 10, "ratio ": 6, "kB/host": 8, "bare  ": 6}
    print(f"{'member':10} {'parameters':>10} " + " ".join(f"{name.strip():>{width}}" for name, width in columns.items()))
    for row in rows:
        train = f"{row['train_ms']:8.1f}ms {row['bare_train_ms']:8.1f}ms {row['train_ratio']:6.2f}"
        whole = f"{row['whole_ms']:8.1f}ms {row['bare_whole_ms']:8.1f}ms {row['whole_ratio']:6.2f}"
        print(f"{row['member']:10} {row['parameters']:10,} {train} {whole} {row['host_kb']:8.0f} {row['bare_kb']:6.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
