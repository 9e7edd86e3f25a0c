"""Hosts with seeds in them, for the benchmarks that measure what seeds cost. No benchmark itself."""

from __future__ import annotations

from plain_loop import TASK, member_named

from esper.leyline.reports import GateConfig
from esper.leyline.stages import BLENDED, Stage
from esper.tolaria.data import Data
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import SerialEngine
from esper.tolaria.training.host import Host

MEMBER, BLUEPRINT = "3x3", "conv_light"
OPEN = GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0)
"""Gates that let every seed through."""
KINDS = {
    "no seeds": (0, Stage.DORMANT),
    "1 seed in training": (1, Stage.TRAINING),
    "3 seeds in training": (3, Stage.TRAINING),
    "1 seed blended in": (1, Stage.HOLDING),
    "3 seeds blended in": (3, Stage.HOLDING),
}
"""How many seeds a host has, and at which stage."""


def grown(data: Data, seed: int, kind: str) -> Host:
    """A host of MEMBER with the seeds of that kind."""
    count, stage = KINDS[kind]
    host = Host(TASK, data, member_named(MEMBER), seed, TrainingConfig(gates=OPEN))
    slots = host.model.slot_ids[:count]
    for slot in slots:
        host.model.germinate(slot, BLUEPRINT, tempo=1)
    host.end_epoch()
    if stage is Stage.HOLDING:
        SerialEngine().run_epoch([host])  # a gate asks for a gradient
        host.end_epoch()
        for slot in slots:
            host.model.advance(slot)
        while len(host.model.at(Stage.HOLDING)) < count:
            host.end_epoch()
    check(host, kind)
    return host


def check(host: Host, kind: str) -> None:
    """The seeds are what they were made as; the governor may take some away."""
    count, stage = KINDS[kind]
    found = host.model.at(Stage.TRAINING, *BLENDED)
    assert len(found) == count, f"{kind}: {found}"
    assert found == host.model.at(stage) or not count, f"{kind}: {found}"
