"""Paired comparison: the mean of differences over hosts that share their seed, with a bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How much better one arm did than another on the same hosts."""

    pairs: int
    mean: float
    low: float
    high: float
    """Bounds of the 95 % interval of the mean; NaN for a single pair, which has none."""
    wins: int
    """Pairs in which the first arm did better."""

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.mean:+.2f} on one host"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}], better on {self.wins} of {self.pairs}"


def paired_difference(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """first minus second, host by host; the percentile bootstrap over hosts, from a fixed stream."""
    if len(first) != len(second) or not first:
        raise ValueError(f"a paired comparison needs as many results in both arms, found {len(first)} and {len(second)}")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    low = high = math.nan
    if len(differences) > 1:
        draws = np.random.default_rng(0).integers(0, len(differences), size=(RESAMPLES, len(differences)))
        low, high = np.percentile(differences[draws].mean(axis=1), [2.5, 97.5])
    return PairedDifference(
        pairs=len(differences), mean=float(differences.mean()), low=float(low), high=float(high), wins=int((differences > 0).sum())
    )
