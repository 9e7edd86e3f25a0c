"""Gradient flow: whether host and seeds learn, by the stage that a seed is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.karn.episodes import Episode
from esper.leyline.reports import GradientStats
from esper.leyline.stages import OCCUPIED, Stage

HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Gradients of so many epochs."""

    epochs: int
    norm: float
    """Median over epochs of the mean norm."""
    vanishing: float
    exploding: float
    """Mean share of tensors whose gradient is next to nothing beside the others, or too large; the bounds are in leyline/reports.py."""
    broken: float
    """Share of epochs with a gradient that is not finite."""


def gradient_flow(episodes: Sequence[Episode]) -> dict[str, Flow]:
    """Of the host, and of seeds in each stage; no entry for what was never measured."""
    measured: dict[str, list[GradientStats]] = {HOST: [], **{stage.name: [] for stage in Stage if stage in OCCUPIED}}
    for step in (step for episode in episodes for step in episode.steps):
        if step.gradients is not None:
            measured[HOST].append(step.gradients)
        for seed in step.seeds:
            if seed.stage in OCCUPIED and seed.gradients is not None:
                measured[seed.stage.name].append(seed.gradients)
    return {name: _flow(stats) for name, stats in measured.items() if stats}


def _flow(stats: Sequence[GradientStats]) -> Flow:
    finite = [each for each in stats if each.finite]
    return Flow(
        epochs=len(stats),
        norm=float(np.median([each.norm for each in finite])) if finite else float("nan"),
        vanishing=float(np.mean([each.vanishing for each in finite])) if finite else float("nan"),
        exploding=float(np.mean([each.exploding for each in finite])) if finite else float("nan"),
        broken=1.0 - len(finite) / len(stats),
    )
