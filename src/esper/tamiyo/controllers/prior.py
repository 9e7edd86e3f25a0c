"""How a controller that knows nothing should choose: mostly wait, take what is ready, and give a seed its full influence.

It is what a policy is kept near while it learns, and what the random baseline samples from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.leyline.actions import ALPHA_TARGETS, Head, Op
from esper.leyline.config import Share, check_ranges
from esper.tamiyo.observe.masks import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Probabilities of the legal values of each head: the same for all, but for op and alpha_target."""

    wait: Share = 0.9
    """Probability of WAIT while neither ADVANCE nor FOSSILIZE is legal."""
    wait_when_ready: Share = 0.5
    """Probability of WAIT when ADVANCE or FOSSILIZE is legal, if `wait` is not smaller still."""
    prune: Share = 0.1
    """PRUNE's share of what WAIT leaves; the other legal ops have equal parts of the rest, and WAIT what nobody takes."""
    full_influence: Share = 0.7
    """Probability of the alpha target 1.0, the only one that leads to HOLDING."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def probabilities(self, head: Head, mask: BoolArray) -> NDArray[np.float64]:
        """[..., values] for a mask [..., values] of the head's legal values. Each row sums to 1, or is 0 if nothing is legal."""
        legal = mask.astype(np.float64)
        if head is Head.OP:
            return self._ops(legal)
        if head is Head.ALPHA_TARGET:
            full = ALPHA_TARGETS.index(1.0)
            others = legal.copy()
            others[..., full] = 0.0
            legal = others * (1.0 - self.full_influence) / _at_least_one(others.sum(axis=-1, keepdims=True))
            legal[..., full] = np.where(mask[..., full], self.full_influence, 0.0)
        total = legal.sum(axis=-1, keepdims=True)
        return np.divide(legal, total, out=np.zeros_like(legal), where=total > 0.0)

    def _ops(self, legal: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the ops [..., 6], from 1.0 for each that is legal and 0.0 for the rest."""
        ready = legal[..., [Op.ADVANCE, Op.FOSSILIZE]].any(axis=-1)
        rest = 1.0 - np.where(ready, min(self.wait, self.wait_when_ready), self.wait)
        prune = rest * self.prune * legal[..., Op.PRUNE]
        others = legal.copy()
        others[..., [Op.WAIT, Op.PRUNE]] = 0.0
        found = others * ((rest - prune) / _at_least_one(others.sum(axis=-1)))[..., None]
        found[..., Op.PRUNE] = prune
        found[..., Op.WAIT] = 1.0 - found.sum(axis=-1)
        return found


def _at_least_one(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(counts, 1.0)
