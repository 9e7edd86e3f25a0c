"""How alpha, a seed's share of influence, moves from epoch to epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from esper.leyline.actions import Curve

SIGMOID_STEEPNESS: dict[Curve, float] = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID: 12.0, Curve.SIGMOID_SHARP: 24.0}


def curve_value(curve: Curve, t: float) -> float:
    """Share of a ramp that is done at time `t`; 0 at t = 0, 1 at t = 1, never falling in between."""
    if t <= 0.0:
        return 0.0
    if t >= 1.0:
        return 1.0
    if curve is Curve.LINEAR:
        return t
    if curve is Curve.COSINE:
        return 0.5 * (1.0 - math.cos(math.pi * t))
    k = SIGMOID_STEEPNESS[curve]
    low, high = _sigmoid(-k / 2), _sigmoid(k / 2)
    return (_sigmoid(k * (t - 0.5)) - low) / (high - low)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A move of alpha from `start` to `target` in `epochs` ticks; `elapsed` of them are done."""

    start: float
    target: float
    epochs: int
    curve: Curve = Curve.LINEAR
    elapsed: int = 0

    @property
    def value(self) -> float:
        """Alpha now; exactly `target` once the ramp is done."""
        if self.done:
            return self.target
        return self.start + (self.target - self.start) * curve_value(self.curve, self.elapsed / self.epochs)

    @property
    def done(self) -> bool:
        return self.elapsed >= self.epochs

    @property
    def left(self) -> int:
        """Ticks until alpha is at its target."""
        return max(0, self.epochs - self.elapsed)

    def step(self) -> Ramp:
        """The ramp one tick later."""
        return replace(self, elapsed=self.elapsed + 1)
