"""How a controller that knows nothing should choose: mostly wait, take what is ready, and give a seed its full influence.

It is what a policy is kept near while it learns, and what the random baseline samples from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.leyline.actions import Curve, Head, Op, Style
from esper.leyline.config import Share, check_ranges
from esper.leyline.errors import ConfigError
from esper.tamiyo.observe.masks import HEAD_VALUES, BoolArray

USUAL: dict[Head, object] = {Head.STYLE: Style.LINEAR_ADD, Head.TEMPO: 3, Head.ALPHA_SPEED: 0, Head.ALPHA_CURVE: Curve.LINEAR}
"""The usual value of each head that hardly matters: to draw it by lot costs episodes and teaches little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Probabilities of the legal values of each head: the same for all, but for op, alpha_target and what has a usual value."""

    wait: Share = 0.9
    """Probability of WAIT while neither ADVANCE nor FOSSILIZE is legal."""
    wait_when_ready: Share = 0.5
    """Probability of WAIT when ADVANCE or FOSSILIZE is legal, if `wait` is not smaller still."""
    prune: Share = 0.1
    """PRUNE's share of what WAIT leaves; the other legal ops have equal parts of the rest, and WAIT what nobody takes."""
    retarget: Share | None = None
    """SET_ALPHA_TARGET's share of what WAIT leaves; None for a part equal to the others'."""
    full_influence: Share = 0.7
    """Probability of the alpha target 1.0, the only one that leads to HOLDING."""
    usual: Share | None = None
    """Probability of the usual value of each head in `USUAL`, the others sharing the rest; None for all alike."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.prune + (self.retarget or 0.0) > 1.0:
            raise ConfigError(f"'prune' and 'retarget' are shares of the same whole; found {self.prune} and {self.retarget}")

    def probabilities(self, head: Head, mask: BoolArray) -> NDArray[np.float64]:
        """[..., values] for a mask [..., values] of the head's legal values. Each row sums to 1, or is 0 if nothing is legal."""
        legal = mask.astype(np.float64)
        if head is Head.OP:
            return self._ops(legal)
        if head is Head.ALPHA_TARGET:
            legal = _favouring(HEAD_VALUES[head].index(1.0), self.full_influence, legal)
        elif head in USUAL and self.usual is not None:
            legal = _favouring(HEAD_VALUES[head].index(USUAL[head]), self.usual, legal)
        total = legal.sum(axis=-1, keepdims=True)
        return np.divide(legal, total, out=np.zeros_like(legal), where=total > 0.0)

    def _ops(self, legal: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the ops [..., 6], from 1.0 for each that is legal and 0.0 for the rest."""
        ready = legal[..., [Op.ADVANCE, Op.FOSSILIZE]].any(axis=-1)
        rest = 1.0 - np.where(ready, min(self.wait, self.wait_when_ready), self.wait)
        shares = {Op.PRUNE: self.prune} | ({} if self.retarget is None else {Op.SET_ALPHA_TARGET: self.retarget})
        parts = {op: rest * share * legal[..., op] for op, share in shares.items()}
        others = legal.copy()
        others[..., [Op.WAIT, *shares]] = 0.0
        found = others * ((rest - sum(parts.values())) / _at_least_one(others.sum(axis=-1)))[..., None]
        for op, part in parts.items():
            found[..., op] = part
        found[..., Op.WAIT] = 1.0 - found.sum(axis=-1)
        return found


def _favouring(value: int, share: float, legal: NDArray[np.float64]) -> NDArray[np.float64]:
    """[..., values]: `share` for one value where it is legal, the rest in equal parts for the others that are."""
    others = legal.copy()
    others[..., value] = 0.0
    found: NDArray[np.float64] = others * (1.0 - share) / _at_least_one(others.sum(axis=-1, keepdims=True))
    found[..., value] = share * legal[..., value]
    return found


def _at_least_one(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(counts, 1.0)
