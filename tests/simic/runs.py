"""Configs of runs that take a second, for the tests of sessions, resuming and commands."""

from __future__ import annotations

from typing import Any

from esper.leyline.reports import GateConfig
from esper.simic.config import RunConfig
from esper.tamiyo import FixedConfig, RandomConfig
from esper.tolaria.config import TrainingConfig

MEMBER = {"widths": "[2,2,4]", "kernel": "3", "train_size": "192", "batch": "48"}
HASTY = TrainingConfig(gates=GateConfig(strict=False, min_training_epochs=1, min_gradient_health=0.0))


def small(**values: Any) -> RunConfig:
    """Two hosts and their twins for ten epochs, in which three seeds each come and some stay."""
    usual = {
        "hosts": 2,
        "epochs": 10,
        "fix": MEMBER,
        "controller": "fixed",
        "fixed": FixedConfig(first=1, period=1),
        "random": RandomConfig(wait=0.1),
        "checkpoint_every": 2,
        "training": HASTY,
    }
    return RunConfig(**{**usual, **values})
