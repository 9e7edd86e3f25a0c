"""The thresholds of the anomaly detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from esper.leyline.config import NonNegative, NonNegativeInt, Range, Share, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyConfig:
    """From where on something in a run counts as an anomaly. They are told and recorded; nothing else in the run depends on them."""

    patience: Annotated[int, Range(1, 1000)] = 3
    """Rounds in a row that a collapse has to last before it is told, and rounds in a row without an anomaly after which it is over."""

    entropy_floor: Share = 0.05
    """Entropy collapse: normalised entropy of a head, over the steps in which it mattered and had a choice, below this; 0 for never."""
    entropy_uses: NonNegative = 10.0
    """Steps of a round in which a head has to have mattered before the round says anything about its entropy."""
    entropy_acts: NonNegative = 1.0
    """Ops other than WAIT in the mean episode from which on the op head is alive, however sure of itself: most steps are for WAIT."""

    value_warmup: NonNegativeInt = 5
    """Rounds at the beginning that a critic is not judged in."""
    value_spread: Share = 0.1
    """Value collapse: standard deviation of the critic's values below this share of the returns'; 0 for never."""
    value_explained: Annotated[float, Range(-1.0, 1.0)] = 0.0
    """Value collapse: explained variance of the critic at this or below; -1 for never."""
    value_ceiling: Annotated[float, Range(-1.0, 1.0)] = 0.1
    """Explained variance that a linear regression has to reach before a critic is judged: with less there is nothing to foresee."""

    ratio_kl: NonNegative = 0.3
    """Ratio explosion: KL divergence of an update, exact where it is known, above this, or not finite; 0 for never."""
    ratio_clipped: Share = 0.6
    """Ratio explosion: share of the steps with a ratio outside of the clip range after an update, above this; 1 for never."""
    ratio_error: NonNegative = 0.05
    """Ratio explosion: largest distance of a ratio from 1 before the first step, above this: drawing and scoring disagree, by more than
    bfloat16 explains; 0 for never."""

    gradient_factor: NonNegative = 30.0
    """Gradient pathology: norm of a part of the policy above so many times its median of the last rounds, or not finite; 0 for never."""
    gradient_usual: NonNegative = 1.0
    """Norms up to this are never too large: a head that is hardly used has next to no gradient in most rounds."""
    gradient_vanished: NonNegative = 1e-7
    """Gradient pathology: norm of a part of the policy that had something to learn from, below this; 0 for never."""

    hacking_window: Annotated[int, Range(6, 100)] = 12
    """Rounds over which the reward is held against what it stands for."""
    hacking_trend: Share = 0.7
    """Reward hacking: the reward rises and accuracy falls, each with a rank correlation with the round of at least this; 0 for never."""
    hacking_fall: NonNegative = 1.0
    """Points that accuracy, against the control where there is one, has to have fallen by from the window's first third to its last."""
    hacking_dominance: Share = 0.8
    """Reward hacking, also without a rise of the whole: one rising component has more than this share of the reward; 1 for never."""

    rollbacks_in_row: NonNegativeInt = 3
    """Rollbacks: so many of one host in a row; 0 for never."""
    rollback_gap: Annotated[int, Range(1)] = 3
    """Epochs between two rollbacks up to which they count as in a row: the governor itself may wait for three before it is sure."""
    rollback_share: Share = 0.2
    """Rollbacks: the governor rolled back a larger share of the hosts of a round, and more than one of them; 1 for never."""

    def __post_init__(self) -> None:
        check_ranges(self)
