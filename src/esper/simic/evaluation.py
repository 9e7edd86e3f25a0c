"""What a user's evaluate function may return, and the points that gates and controllers think in."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline.errors import ConfigError
from esper.tolaria.training.validation import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluate function may return: validation accuracy in points (0 to 100) or a score of another kind, and what else it knows."""

    accuracy: float | None = None
    score: float | None = None
    """In place of accuracy: whatever is to become better, such as BLEU, R2, or an error of a regression."""
    higher_is_better: bool = True
    """Of the score."""
    scale: float | None = None
    """What 100 points of the score are: gates and controllers think in points. By default 100 where higher is better, so that BLEU and
    percentages count as they are; where lower is better, the first score that was seen, so that points are per cent of it saved."""
    unit: str = ""
    """Of the score, for what is shown."""
    loss: float = float("nan")
    correct: Tensor | Sequence[float] | None = None
    """One value for each validation sample, in the same order every time: 1 where it was predicted, 0 where not. From these the gardener
    knows how sure a seed's contribution is."""


@dataclass(slots=True)
class Scoring:
    """Turns evaluations into points."""

    scale: float | None = None
    """What 100 points are, of a score of which less is better: what was said, or else the first one seen."""

    def score(self, result: object) -> tuple[Score, str]:
        """What an evaluate function returned, in one form, and in words. Raises ConfigError for what it cannot have meant."""
        given = result if isinstance(result, Evaluation) else Evaluation(accuracy=_number("accuracy or an esper.Evaluation", result))
        if (given.accuracy is None) == (given.score is None):
            raise ConfigError("an Evaluation has an accuracy in points, or a score of another kind; one of the two")
        if given.score is not None:
            points, shown = self._points(given, _number("an Evaluation's score", given.score))
        else:
            points = _number("an Evaluation's accuracy", given.accuracy)
            if not 0.0 <= points <= 100.0:
                raise ConfigError(f"evaluate returns accuracy in points, 0 to 100, found {points}; another score is Evaluation(score=...)")
            shown = f"{points:.2f} points"
        return Score(accuracy=points, loss=_number("its loss", given.loss), hits=_hits(given.correct)), shown

    def _points(self, given: Evaluation, score: float) -> tuple[float, str]:
        """A score that is no accuracy, in points and in words."""
        shown = f"{score:.4g} {given.unit}".rstrip()
        if given.scale is not None and not 0.0 < given.scale < math.inf:
            raise ConfigError(f"an Evaluation's scale is what 100 points are, a number above 0, found {given.scale!r}")
        if not math.isfinite(score):
            return 0.0, shown
        if given.higher_is_better:
            return 100.0 * score / (given.scale or 100.0), shown
        if self.scale is None:
            self.scale = given.scale or score
        if not self.scale > 0.0:
            raise ConfigError(f"a score of which less is better begins above 0, found {score}; say what 100 points are with its scale")
        return 100.0 * (1.0 - score / self.scale), shown


def _hits(correct: object) -> NDArray[np.float64] | None:
    """An Evaluation's `correct` as numbers from 0 to 1."""
    if correct is None:
        return None
    try:
        hits = np.asarray(correct.detach().cpu() if isinstance(correct, Tensor) else correct, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"an Evaluation's correct is a value for each sample, found {type(correct).__name__}") from error
    if hits.ndim != 1 or not len(hits) or not ((hits >= 0.0) & (hits <= 1.0)).all():
        raise ConfigError(f"an Evaluation's correct is a value from 0 to 1 for each sample, found an array of shape {hits.shape}")
    return hits


def _number(what: str, value: object) -> float:
    """A number of Python's, numpy's or torch's."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"evaluate returns {what}, a number, found {type(value).__name__}")
    return float(value)
