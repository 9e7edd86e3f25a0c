"""What Python does for each host and epoch besides the training: milliseconds of each part of an epoch, and of making a host.

    python benchmarks/bookkeeping.py [--hosts 16] [--controllers heuristic random] [--json FILE]

An engine that trains hundreds of hosts as one program is as fast as what is left to be done for one host after another. Hosts of the
digits family are played under each controller, all at the same epoch as such an engine has them, and every call of a part is timed in
processor time, without the parts that are called inside it. Training, evaluation and the order of the data belong to the engine and are
left out; there are few samples, because nothing here depends on their number. Each host is played once before: a structure that was
never seen costs more, and after some hosts none is.

`make` is a host made anew once its architecture is known; `first` is the first host of an architecture.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from esper.leyline.events import Envelope
from esper.leyline.reports import EpochReport, GateConfig
from esper.nissa import Hub
from esper.simic.growth import play
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.episode import Episode
from esper.simic.growth.host_run import HostRun
from esper.simic.growth.play import ControllerDecider, Play
from esper.tamiyo import make
from esper.tolaria.data import Split
from esper.tolaria.tasks import get
from esper.tolaria.training import host
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import Score, read_all

PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "begin": ((Host, "begin_epoch"),),
    "count": ((Host, "_count_training"), (Host, "_count_validation")),
    "conclude": ((Host, "conclude"),),
    "reward": ((HostRun, "_settle"),),
    "observe": ((Episode, "look"),),
    "decide": ((ControllerDecider, "decide"),),
    "carry out": ((Episode, "carry_out"),),
    "end": ((Host, "end_epoch"),),
    "events": ((play, "epoch_events"), (play, "decided")),
    "snapshot": ((Host, "_snapshot"),),
}
"""The functions whose time each part of an epoch is."""
ENGINE = ((host, "epoch_order"), (Host, "evaluate"), (Host, "train"))
"""What is called inside the parts, or beside them, and counts for none of them."""
APART = ("decide", "snapshot")
"""Parts that are no bookkeeping: whoever decides takes as long as it takes, and a snapshot copies the network."""

FEW = {"train_size": "150"}
"""Samples that the hosts are trained on."""


class Clock:
    """Adds up the seconds spent in functions, each without the functions that are timed inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside: list[float] = []

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as that part."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.seconds[part] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return run


class Together:
    """An engine with the order of one that trains many at once: every host begins, all are trained, every host concludes."""

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        """Train each host for one epoch and report, in order."""
        plans = [each.begin_epoch() for each in hosts]
        sums = [each.train(plan) for each, plan in zip(hosts, plans, strict=True)]
        evaluated = [each.evaluate() for each in hosts]
        tensors = zip(hosts, sums, evaluated, strict=True)
        found = [read_all([total, each.model.figures(), *scores.tensors()]) for each, total, scores in tensors]
        return [
            each.conclude(plan, total, scores.scores(*values), figures.tolist())
            for each, plan, scores, (total, figures, *values) in zip(hosts, plans, evaluated, found, strict=True)
        ]

    def score(self, hosts: Sequence[Host], split: Callable[[Host], Split]) -> list[Score]:
        """The network that would be harvested from each host now, on a split, in order."""
        return SerialEngine().score(hosts, split)

    def drain_notes(self) -> list[str]:
        """It has no remarks."""
        return []


class Listener:
    """A sink, so that there are events; it keeps none."""

    def write(self, envelope: Envelope) -> None:
        """Take one event."""

    def flush(self) -> None:
        """There is nothing to pass on."""

    def close(self) -> None:
        """There is nothing to let go of."""


def played(controller: str, growth: Growth, hosts: int) -> dict[str, Any]:
    """One play under a controller: how many epochs there were in all, and in how many of them it acted."""
    starts = [Start("digits", seed) for seed in range(hosts)]
    decider = ControllerDecider([make(controller)] * hosts)
    results = Play(growth, decider, starts, hub=Hub(sinks=[Listener()])).through()
    epochs = sum(sum(result.decisions.values()) for result in results)
    acts = epochs - sum(result.decisions.get("WAIT", 0) for result in results)
    return {"controller": controller, "host_epochs": epochs, "acts": acts}


def measure(controller: str, hosts: int) -> dict[str, Any]:
    """All figures under one controller: the hosts are played twice, and the second time counts."""
    gates = GateConfig.permissive() if controller == "random" else GateConfig()
    growth = Growth(GrowthConfig(member="family", fix=FEW, control=False, training=TrainingConfig(gates=gates)))
    growth.engine = Together()
    played(controller, growth, hosts)
    clock, kept = Clock(), []
    timed = PARTS | {"engine": ENGINE}
    for part, functions in timed.items():
        for owner, name in functions:
            kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, clock.timed(part, getattr(owner, name)))
    try:
        row = played(controller, growth, hosts)
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
    row |= {part: 1e3 * clock.seconds[part] / row["host_epochs"] for part in PARTS}
    return {**row, "bookkeeping": sum(row[part] for part in PARTS if part not in APART)}


def making(hosts: int) -> dict[str, float]:
    """Milliseconds of making a host: the first of an architecture, and any later one."""
    growth = Growth(GrowthConfig(member="family", control=False))
    growth.data(get("digits"))
    seconds: dict[str, list[float]] = {"first": [], "make": []}
    seen: set[object] = set()
    for seed in [*range(hosts)] * 2:
        began = time.process_time()
        run = growth.make(Start("digits", seed))
        took = time.process_time() - began
        seconds["make" if run.host.architecture in seen else "first"].append(took)
        seen.add(run.host.architecture)
    return {name: 1e3 * sum(values) / len(values) for name, values in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16, help="hosts that are played")
    parser.add_argument("--controllers", nargs="+", default=["heuristic", "random"], help="who decides")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # as esper train does
    made = making(arguments.hosts)
    rows = [measure(controller, arguments.hosts) for controller in arguments.controllers]
    print("ms per host    " + " ".join(f"{name:>10}" for name in made))
    print(f"{'making':14} " + " ".join(f"{value:10.3f}" for value in made.values()))
    print("ms per epoch   " + " ".join(f"{row['controller']:>10}" for row in rows))
    for part in (*(part for part in PARTS if part not in APART), "bookkeeping", *APART):
        print(f"{part:14} " + " ".join(f"{row[part]:10.3f}" for row in rows))
    print(f"{'host-epochs':14} " + " ".join(f"{row['host_epochs']:10,}" for row in rows))
    print(f"{'acts':14} " + " ".join(f"{row['acts']:10,}" for row in rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"making": made, "epochs": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
