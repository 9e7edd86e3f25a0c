"""Whether the critic knows what is coming: its values against the returns that followed, on a scale that any reward has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.karn.episodes import Episode, Floats

BINS = 10
"""Groups of equal size, by value, of the reliability curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Values against Monte-Carlo returns: what was earned from there to the end of the episode, discounted."""

    steps: int
    correlation: float
    normalised_error: float
    """Mean distance of a value from its return, in standard deviations of the returns."""
    bias: float
    """Mean of value minus return, in the same unit: above 0, too much is expected."""
    explained_variance: float
    """1 - Var(return - value) / Var(return): 1 is perfect, 0 as good as a constant, below 0 worse."""
    target_explained_variance: float
    """The same against what the critic is taught, which leans on its own later values; it flatters."""
    return_mean: float
    return_std: float
    curve: tuple[tuple[float, float], ...]
    """Tenths of the steps by value, from the lowest: mean value and mean return. A critic that is right has them equal."""


def value_calibration(episodes: Sequence[Episode]) -> Calibration | None:
    """The critic's record; None for controllers, and where all returns or all values are the same, so that nothing could be told."""
    minds = [episode.mind for episode in episodes if episode.mind is not None]
    if not minds:
        return None
    return calibration(*(np.concatenate([getattr(mind, name) for mind in minds]) for name in ("value", "returns", "targets")))


def calibration(value: Floats, returns: Floats, targets: Floats) -> Calibration | None:
    """Values against returns and against targets, each [steps]."""
    std = float(returns.std())
    if std == 0.0 or float(value.std()) == 0.0:
        return None
    order = np.array_split(np.argsort(value, kind="stable"), BINS)
    return Calibration(
        steps=len(value),
        correlation=float(np.corrcoef(value, returns)[0, 1]),
        normalised_error=float(np.abs(value - returns).mean() / std),
        bias=float((value - returns).mean() / std),
        explained_variance=_explained(value, returns),
        target_explained_variance=_explained(value, targets),
        return_mean=float(returns.mean()),
        return_std=std,
        curve=tuple((float(value[group].mean()), float(returns[group].mean())) for group in order if len(group)),
    )


def _explained(value: Floats, aim: Floats) -> float:
    variance = float(aim.var())
    return 1.0 - float((aim - value).var()) / variance if variance > 0.0 else float("nan")
