"""Hosts small enough to train in milliseconds, for the tests of training and of runs."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import asdict
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.attach.running import evaluating
from esper.leyline.actions import Decision, Op
from esper.leyline.events import Event
from esper.leyline.reports import EpochReport, GateConfig
from esper.leyline.stages import Stage
from esper.tolaria.data import Data, Split
from esper.tolaria.tasks import Task, get
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import measured

OPEN = GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0)
"""Gates that ask for next to nothing, so that a seed comes through its life in a few epochs."""
EASY = TrainingConfig(gates=OPEN)
MEMBER: dict[str, Any] = {"widths": (2, 2, 4), "kernel": 3, "train_size": 192, "epochs": 12, "batch": 48}


@cache
def data(task: str = "digits", device: str = "cpu") -> Data:
    """The task's data, loaded once for all tests of a process."""
    return get(task).load(None, device_named(device))


def make_host(seed: int = 0, config: TrainingConfig = EASY, task: str = "digits", device: str = "cpu", **member: Any) -> Host:
    """A host of the task, with some of its member's fields set."""
    torch.set_num_threads(1)
    chosen = get(task).family.with_fixed(**{**(MEMBER if task == "digits" else {}), **member}).standard
    return Host(get(task), data(task, device), chosen, seed, config)


def train_epoch(host: Host) -> EpochReport:
    """One epoch, as the serial engine runs it."""
    (report,) = SerialEngine().run_epoch([host])
    return report


def epoch(host: Host, *decisions: Decision) -> tuple[EpochReport, list[Event]]:
    """One epoch, what was decided after it, and its end."""
    report = train_epoch(host)
    for decision in decisions:
        host.model.act(decision)
    return report, host.end_epoch()


def looked(host: Host) -> SimpleNamespace:
    """What an epoch's report would say of the host's model now, by the report's names."""
    scores = host.evaluate().read()
    return SimpleNamespace(**measured(host.model, scores.by), per_class=scores.per_class)


def germinate(slot: str = "r0c1", blueprint: str = "conv_light", **values: Any) -> Decision:
    return Decision(op=Op.GERMINATE, slot=slot, blueprint=blueprint, **{"tempo": 3, **values})


def grow_to(host: Host, stage: Stage, slot: str = "r0c1", blueprint: str = "conv_light", **values: Any) -> list[Event]:
    """Train until the slot's seed has come to the stage; returns what happened on the way."""
    events = epoch(host, germinate(slot, blueprint, **values))[1]
    while host.model.report(slot).stage is not stage:
        decisions = {
            Stage.TRAINING: Decision(op=Op.ADVANCE, slot=slot),
            Stage.HOLDING: Decision(op=Op.FOSSILIZE, slot=slot),
        }
        report = train_epoch(host)
        now = next(seed.stage for seed in report.seeds if seed.slot == slot)
        if now in decisions:
            host.model.act(decisions[now])
        events += host.end_epoch()
        assert host.epoch < 40, f"the seed never came to {stage.name}"
    return events


def bits(value: Any) -> Any:
    """The value in a form in which `==` means the same types and the same bits."""
    if isinstance(value, Tensor):
        plain = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        return ("tensor", str(value.dtype), tuple(value.shape), plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return ("dict", [(bits(key), bits(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [bits(item) for item in value])
    return value


def facts(report: EpochReport) -> Any:
    """A report in a form to compare."""
    return bits(asdict(report))


def plain_score(network: nn.Module, task: Task, split: Split) -> tuple[float, float]:
    """Loss and accuracy of a plain network on a split, as anybody would compute them."""
    with evaluating(network):
        logits = network(split.x)
        return float(task.loss(logits, split.y)), 100.0 * float((logits.argmax(-1) == split.y).sum()) / split.y.numel()


def fingerprint(*values: Any) -> str:
    """A hash of everything in the values."""
    return hashlib.sha256(repr([bits(value) for value in values]).encode()).hexdigest()
