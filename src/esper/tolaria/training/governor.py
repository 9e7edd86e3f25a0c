"""The governor: watches one host's losses and puts it back on its feet when training goes wrong.

Anomalies: a loss that is not finite, at once; divergence, a loss above mean + 6 sigma and above 3 times the mean, three epochs running;
collapse to the uniform prediction, by loss and by accuracy, after the host had learned something; and collapse to chance, by accuracy
alone, after the host was well above it. Those that need statistics, divergence and the uniform prediction, are inactive until ten losses
are known. An anomalous loss never enters the window, else the next one would no longer stand out.

What the governor knows is of one network. Where a decision takes from it on purpose, or a rollback restores less than there was, it begins
anew with what that network is measured to be.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any

from esper.leyline.config import NonNegative, Range, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorConfig:
    """When a host is rolled back, and how often it is saved."""

    window: Annotated[int, Range(1)] = 20
    """Healthy losses that mean and sigma are taken over."""
    warmup: Annotated[int, Range(1)] = 10
    """Losses that must be known before divergence and collapse are judged; NaN and infinity always are."""
    sigmas: NonNegative = 6.0
    factor: Annotated[float, Range(1)] = 3.0
    """A diverging loss is also above this multiple of the mean."""
    patience: Annotated[int, Range(1)] = 3
    """Anomalous epochs in a row that make a divergence."""
    uniform_band: Annotated[float, Range(0, 1)] = 0.065
    """|loss - ln K| below this share of ln K is the uniform prediction."""
    learned_below: Annotated[float, Range(0, 1)] = 0.6
    """A host has learned something once its loss was below this share of ln K."""
    collapsed_below: Annotated[float, Range(0, 1)] = 0.5
    """A collapsed host has less than this share of its best accuracy: one that is sure of itself and often wrong may have the loss of
    the uniform prediction too."""
    chance_band: Annotated[float, Range(1)] = 1.5
    """An accuracy up to this multiple of 1 / K is chance; a host was well above it with twice as much. 1 never judges by it alone."""
    snapshot_every: Annotated[int, Range(1)] = 5
    """Epochs between snapshots; one is also taken after each fossilisation, and after the first healthy epoch since a rollback."""

    def __post_init__(self) -> None:
        check_ranges(self)


class Governor:
    """Judges one host's losses, epoch by epoch. `classes` is K: ln K is the loss of the uniform prediction."""

    def __init__(self, config: GovernorConfig, classes: int) -> None:
        self.config, self.uniform, self.chance = config, math.log(classes), 100.0 / classes
        self.losses: deque[float] = deque(maxlen=config.window)
        self.streak = 0
        self.has_learned = False
        self.best_accuracy = 0.0

    def judge(self, train_loss: float, val_loss: float, val_accuracy: float, *, restored: bool = False) -> str:
        """Why the host must be rolled back, in words; empty when it need not.

        restored: the host was put back to its snapshot before. Once more would bring the same, so that only a loss that is not finite is
        a reason.
        """
        if not math.isfinite(train_loss) or not math.isfinite(val_loss):
            which = "train" if not math.isfinite(train_loss) else "val"
            return f"the {which} loss is {train_loss if which == 'train' else val_loss}"
        if self.ordinary(val_loss, val_accuracy):
            self.streak = 0
            self.losses.append(val_loss)
            self.has_learned = self.has_learned or self._low(val_loss)
            self.best_accuracy = max(self.best_accuracy, val_accuracy)
            return ""
        self.streak += 1
        if restored:
            return ""
        if self._at_chance(val_accuracy):
            return f"val accuracy {val_accuracy:.1f} is chance ({self.chance:.1f}) after the host had {self.best_accuracy:.1f}"
        if self._collapsed(val_loss, val_accuracy):
            return f"val loss {val_loss:.3f} is that of the uniform prediction ({self.uniform:.3f}) after the host had learned"
        if self.streak >= self.config.patience:
            return f"val loss {val_loss:.3f} diverged from a mean of {self._mean():.3f}, {self.config.patience} epochs running"
        return ""

    def ordinary(self, val_loss: float, val_accuracy: float) -> bool:
        """Whether this is what could be expected of the network that the governor knows."""
        return not (self._at_chance(val_accuracy) or self._collapsed(val_loss, val_accuracy) or self._anomalous(val_loss))

    def begin_anew(self, val_loss: float = math.inf, val_accuracy: float = 0.0) -> None:
        """The network is another one from here on, of which nothing is known but how it was measured, if it was."""
        self.losses.clear()
        self.streak = 0
        self.has_learned, self.best_accuracy = self._low(val_loss), val_accuracy

    @property
    def healthy(self) -> bool:
        """Whether the last loss was an ordinary one: only then may a snapshot be taken."""
        return self.streak == 0

    def _low(self, loss: float) -> bool:
        return loss < self.config.learned_below * self.uniform

    def _at_chance(self, accuracy: float) -> bool:
        most = self.config.chance_band * self.chance
        return self.config.chance_band > 1.0 and accuracy <= most and self.best_accuracy >= 2.0 * most

    def _collapsed(self, loss: float, accuracy: float) -> bool:
        near = abs(loss - self.uniform) < self.config.uniform_band * self.uniform
        lost = accuracy < self.config.collapsed_below * self.best_accuracy
        return near and lost and self.has_learned and len(self.losses) >= self.config.warmup

    def _anomalous(self, loss: float) -> bool:
        if len(self.losses) < self.config.warmup:
            return False
        mean = self._mean()
        sigma = math.sqrt(sum((x - mean) ** 2 for x in self.losses) / len(self.losses))
        return loss > mean + self.config.sigmas * sigma and loss > self.config.factor * mean

    def _mean(self) -> float:
        return sum(self.losses) / len(self.losses)

    def state(self) -> dict[str, Any]:
        """Everything to go on from, in plain containers."""
        figures = {"has_learned": self.has_learned, "best_accuracy": self.best_accuracy}
        return {"losses": list(self.losses), "streak": self.streak, **figures}

    def load_state(self, state: dict[str, Any]) -> None:
        self.losses = deque(state["losses"], maxlen=self.config.window)
        self.streak, self.has_learned, self.best_accuracy = state["streak"], state["has_learned"], state["best_accuracy"]
