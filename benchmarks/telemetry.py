"""What telemetry costs: epochs of training with it switched on against switched off, and events per second on their own.

    python benchmarks/telemetry.py

Ten small networks train for an epoch on images of the size of the digits, one after another; each then tells what a growing host
tells, eight events. Epochs with and without alternate, so that a busy machine disturbs both alike; where it still does, the share that is
measured inside the epoch says more than the ratio. Prints a line and JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from esper.leyline.actions import Decision, Op
from esper.leyline.events import Decided, EpochFinished, Event, GateChecked, SeedMeasured, StageChanged
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage
from esper.nissa import Hub, JsonlSink

HOSTS = 10
IMAGES, BATCH = 1437, 64
EPOCHS = 5
"""Of each kind, after one of each to warm up."""
BURST = 20_000
"""Events that are emitted one after another to measure how many go through in a second."""


def network() -> nn.Module:
    """About the size of the smallest host."""
    widths = [1, 8, 16, 32]
    blocks = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def events(epoch: int) -> list[Event]:
    """What one host tells about one epoch: itself, four seeds, a decision, a gate and a transition."""
    loss = 1.0 / (1 + epoch)
    seeds = [
        SeedMeasured(
            slot=f"r0c{column}",
            stage=Stage.BLENDING,
            alpha=0.4,
            contribution=1.25 * loss,
            contribution_error=None,
            contribution_loss=None,
            trial_contribution=None,
            trial_error=None,
            trial_loss=None,
            gradient_norm=0.031 * loss,
            gradient_health=1.0,
            gradient_ratio=0.05,
        )
        for column in range(4)
    ]
    return [
        EpochFinished(
            train_loss=loss,
            train_accuracy=91.2,
            val_loss=loss,
            val_accuracy=90.1,
            learning_rate=0.05,
            parameters=6418,
            per_class=tuple(90.0 + loss * index for index in range(10)),
            gradient_norm=0.7,
            flops={"training": 10**9, "validation": 10**8, "counterfactuals": 10**8},
        ),
        *seeds,
        Decided(
            decision=Decision(op=Op.ADVANCE, slot="r0c1", reason="trial contribution 1.25 points"),
            legal=("WAIT", "ADVANCE", "PRUNE"),
        ),
        GateChecked(gate=Gate.G2, slot="r0c1", passed=True, reasons=()),
        StageChanged(
            slot="r0c1", before=Stage.TRAINING, after=Stage.BLENDING, cause="advance", blueprint="conv_light", parameters=2320
        ),
    ]


def train_epoch(hub: Hub, epoch: int, hosts: list[nn.Module], images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Seconds that an epoch of all hosts takes, and how many of them are telemetry."""
    start, telling = time.perf_counter(), 0.0
    for index, host in enumerate(hosts):
        for first in range(0, IMAGES, BATCH):
            loss = nn.functional.cross_entropy(host(images[first : first + BATCH]), labels[first : first + BATCH])
            gradients = torch.autograd.grad(loss, list(host.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(host.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.05)
        told = time.perf_counter()
        if hub.on:
            for event in events(epoch):
                hub.emit(event, host=index, epoch=epoch)
        if index == len(hosts) - 1:
            hub.flush()
        telling += time.perf_counter() - told
    return time.perf_counter() - start, telling


def burst(folder: Path) -> float:
    """Events per second through a hub into a journal, with a flush after every eighty, as at the end of an epoch."""
    hub = Hub(JsonlSink(folder / "burst.jsonl"))
    told = events(3)
    start = time.perf_counter()
    for number in range(BURST):
        hub.emit(told[number % len(told)], host=number % HOSTS, epoch=number)
        if number % 80 == 79:
            hub.flush()
    hub.close()
    return BURST / (time.perf_counter() - start)


def measure(folder: Path) -> dict[str, float]:
    """All figures; times in seconds."""
    torch.manual_seed(0)
    images, labels = torch.randn(IMAGES, 1, 8, 8), torch.randint(10, (IMAGES,))
    hosts = [network() for _ in range(HOSTS)]
    hubs = {"on": Hub(JsonlSink(folder / "events.jsonl")), "off": Hub()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in hubs}
    for epoch in range(EPOCHS + 1):
        for name in ("on", "off") if epoch % 2 else ("off", "on"):
            times[name].append(train_epoch(hubs[name], epoch, hosts, images, labels))
    hubs["on"].close()
    on, off = (statistics.median(seconds for seconds, _ in times[name][1:]) for name in ("on", "off"))
    telling = statistics.median(telling for _, telling in times["on"][1:])
    rate = burst(folder)
    return {
        "events_per_epoch": HOSTS * len(events(0)),
        "epoch_seconds_on": on,
        "epoch_seconds_off": off,
        "ratio": on / off,
        "telemetry_seconds_per_epoch": telling,
        "share_of_epoch": telling / on,
        "events_per_second": rate,
        "bytes_per_event": (folder / "burst.jsonl").stat().st_size / BURST,
    }


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    print(
        f"an epoch of {HOSTS} hosts takes {figures['epoch_seconds_on']:.3f} s with telemetry and {figures['epoch_seconds_off']:.3f} s "
        f"without (ratio {figures['ratio']:.3f}); telemetry itself takes {100 * figures['share_of_epoch']:.2f} % of an epoch; "
        f"{figures['events_per_second']:,.0f} events/s on their own"
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
