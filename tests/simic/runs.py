"""Configs of runs that take a second, for the tests of sessions, resuming and commands."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.kasmina.blueprints import names
from esper.leyline.actions import Op
from esper.leyline.events import Envelope, RoundFinished
from esper.leyline.reports import GateConfig, Topology
from esper.simic.growth.config import ControllerRunConfig
from esper.tamiyo import FixedConfig, RandomConfig
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run
from esper.tolaria.training.config import TrainingConfig

MEMBER = {"widths": "[2,2,4]", "kernel": "3", "train_size": "192", "batch": "48"}
HASTY = TrainingConfig(gates=GateConfig(strict=False, min_training_epochs=1, min_gradient_health=0.0))


def small(**values: Any) -> ControllerRunConfig:
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
    return ControllerRunConfig(**{**usual, **values})


def opinionated() -> Policy:
    """An untrained policy that acts, and differently from epoch to epoch."""
    blueprints = tuple(dict.fromkeys(name for topology in Topology for name in names(topology)))
    policy = Policy(PolicyConfig(blueprints=blueprints, hidden=16, slot_width=8), torch.Generator().manual_seed(4))
    with torch.no_grad():
        policy.heads.op.weight.mul_(300.0)  # decisions that change with what is seen
        policy.heads.op.bias[Op.GERMINATE] = 5.0  # and growth among them
    return policy


class Crash(BaseException):
    """Something that no code expects."""


class CrashAfter:
    """A sink that ends the process, as it were, when a round is over: before its checkpoint."""

    def __init__(self, round: int) -> None:
        self.at = round

    def write(self, envelope: Envelope) -> None:
        if isinstance(envelope.event, RoundFinished) and envelope.event.round == self.at:
            raise Crash

    def flush(self) -> None: ...

    def close(self) -> None: ...


class StopAfter:
    """A sink that asks for a stop after so many rounds, as Ctrl-C would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def write(self, envelope: Envelope) -> None:
        if isinstance(envelope.event, RoundFinished) and envelope.event.round == self.rounds:
            os.kill(os.getpid(), signal.SIGINT)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def keep_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from, or left in, the caches of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("ESPER_DATA", str(folder / "data"))


def policy_of(run: Path) -> dict[str, torch.Tensor]:
    """What a run has learned at its newest checkpoint."""
    checkpoint = CheckpointStore(run / "checkpoints", run=read_run(run).id).latest()
    assert checkpoint is not None
    found: dict[str, torch.Tensor] = checkpoint.state["work"]["learner"]["policy"]
    return found
