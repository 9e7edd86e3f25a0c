"""An epoch of small networks with telemetry switched on against switched off, and how many events go through in a second.

    python benchmarks/telemetry.py [--quick]

Ten networks train for an epoch on images of the size of the digits, one after another; each then tells what a growing host tells, eight
events, which go into a journal. `the events alone` are those of one epoch, without the training: their ratio is telemetry's share.
Always on the CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import torch
from torch import nn

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.leyline.actions import Decision, Op
from esper.leyline.events import Decided, EpochFinished, Event, GateChecked, SeedMeasured, StageChanged
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage
from esper.nissa import Hub, JsonlSink

HOSTS = 10
IMAGES, BATCH = 1437, 64
ROUNDS = 7
BURST = 800
"""Events that are emitted one after another to measure how many go through in a second: ten epochs of all hosts."""


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
            blueprint="conv_light",
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
            legal={"op": ("WAIT", "ADVANCE", "PRUNE"), "slot": ("r0c1",)},
            probabilities={},
            value=None,
        ),
        GateChecked(gate=Gate.G2, slot="r0c1", passed=True, reasons=(), figures={"epochs_in_stage": 3.0, "trial_contribution": 1.25}),
        StageChanged(slot="r0c1", before=Stage.TRAINING, after=Stage.BLENDING, cause="advance", blueprint="conv_light", parameters=2320),
    ]


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of an epoch, of a burst of events, and of their size."""
    torch.manual_seed(0)
    images, labels = torch.randn(IMAGES, 1, 8, 8), torch.randint(10, (IMAGES,))
    hosts, epochs = [network() for _ in range(HOSTS)], count()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "events.jsonl"
        on, off = Hub(JsonlSink(journal)), Hub()
        quiet = "an epoch without telemetry"
        tasks = {
            quiet: lambda: train(hosts, images, labels, off, next(epochs)),
            "an epoch with telemetry": lambda: train(hosts, images, labels, on, next(epochs)),
            "the events alone": lambda: tell_all(on, next(epochs)),
        }
        yield from compared(in_turns(settings, tasks, ROUNDS), quiet)
        lines = journal.read_bytes().splitlines()[-len(events(0)) * HOSTS :]
        contents = [json.loads(line) for line in lines]
        plain = "json.dumps and write"
        with (Path(folder) / "plain.jsonl").open("w") as file:
            burst = {
                plain: lambda: file.writelines(json.dumps(contents[n % len(contents)]) + "\n" for n in range(BURST)),
                "a hub with its journal": lambda: tell_all(on, *range(BURST // len(contents))),
            }
            yield from compared(in_turns(settings, burst), plain, unit="events/s", value_of=lambda taken: BURST / taken)
        on.close()
        yield Row(what="size of an event", value=sum(map(len, lines)) / len(lines), unit="bytes")


def train(hosts: list[nn.Module], images: torch.Tensor, labels: torch.Tensor, hub: Hub, epoch: int) -> None:
    """An epoch of all hosts, and what they tell of it."""
    for host in hosts:
        for first in range(0, IMAGES, BATCH):
            loss = nn.functional.cross_entropy(host(images[first : first + BATCH]), labels[first : first + BATCH])
            gradients = torch.autograd.grad(loss, list(host.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(host.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.05)
    tell_all(hub, epoch)


def tell_all(hub: Hub, *epochs: int) -> None:
    """What all hosts tell of these epochs."""
    for epoch in epochs:
        if hub.on:
            for index in range(HOSTS):
                for event in events(epoch):
                    hub.emit(event, host=index, epoch=epoch)
        hub.flush()


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
