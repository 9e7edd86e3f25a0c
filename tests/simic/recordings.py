"""Run folders with recorded episodes, for the tests of what learns from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from esper.leyline.actions import WAIT, Decision, Op
from esper.nissa import TelemetryConfig
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.recording import FOLDER, EpisodeRecorder, rules_of
from esper.simic.runs.runner import start
from esper.tamiyo import FixedConfig, Observation
from esper.tolaria.storage.runs import RunFolder
from tests.simic.runs import HASTY

MEMBER = {"widths": "[2,2,2]", "kernel": "3", "train_size": "100", "batch": "50"}
SMALL: dict[str, Any] = {"hidden": 16, "slot_width": 8, "learning_rate": 5e-3}
"""A policy that learns in seconds."""
END = {"accuracy": 50.0, "size": 0.0, "rent": 0.0}
"""How an episode ended of which nothing else is said."""


def record(path: Path, **settings: Any) -> Path:
    """A real run under a controller, by default the fixed plan, that ends in a few seconds."""
    usual: dict[str, Any] = {"controller": "fixed", "fixed": FixedConfig(first=2, period=2), "control": False, "training": HASTY}
    usual |= {"hosts": 10, "epochs": 8, "fix": MEMBER}
    start(ControllerRunConfig(**{**usual, "telemetry": TelemetryConfig(level="off"), **settings}), path, "esper train heuristic")
    return path


@cache
def first_observation() -> Observation:
    """What is seen of a tiny host after its first epoch: every slot is free."""
    growth = Growth(GrowthConfig(epochs=8, fix=MEMBER, control=False))
    growth.begin({0: Start("digits", 0)})
    seen = growth.train()[0].observation
    growth.close()
    return seen


def germinate(style: int = 0) -> Decision:
    """A seed for the first slot."""
    return Decision(op=Op.GERMINATE, slot=first_observation().masks.slot_names[0], blueprint="norm", style=style)  # type: ignore[arg-type]


def place(number: int) -> Observation:
    """The first observation, marked so that a policy can tell places of a made-up problem apart."""
    seen = first_observation()
    host = np.zeros_like(seen.host)
    host[number] = 3.0
    return replace(seen, host=host)


def write_run(
    path: Path,
    episodes: Iterable[Sequence[tuple[Observation, Decision, float]]],
    scores: Sequence[float] = (),
    seeds: Sequence[int] = (),
    abouts: Sequence[dict[str, Any]] = (),
    **about: Any,
) -> Path:
    """A run folder with episodes that somebody made up, each a list of what was seen, decided and earned; all end with a score of 50, and
    each is of a host of its own, if nothing else is said."""
    with RunFolder.create(path, name="made-up", config=ControllerRunConfig(), command="esper train heuristic"):
        for number, episode in enumerate(episodes):
            recorder = EpisodeRecorder()
            for seen, decision, reward in episode:
                recorder.decided(seen, decision)
                recorder.earned(reward)
            final = {**END, "accuracy": scores[number]} if scores else END
            told = {"task": "digits", "seed": seeds[number] if seeds else number, "controller": "made up", "final": final}
            told |= {"rules": rules_of(GrowthConfig()), **(abouts[number] if abouts else {}), **about}
            recorder.save(path / FOLDER / f"host-{number:04}.safetensors", **told)
    return path


def waiting(count: int = 2, steps: int = 2) -> list[list[tuple[Observation, Decision, float]]]:
    """Episodes in which nothing is done and nothing earned."""
    return [[(first_observation(), WAIT, 0.0)] * steps for _ in range(count)]


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> None:
    """Change a recorded episode in its file."""
    with safetensors.safe_open(str(path), framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    change(tensors, metadata)
    path.write_bytes(safetensors.torch.save(tensors, metadata))


def summary_of(path: Path) -> dict[str, Any]:
    """The figures of a finished run."""
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found
