"""The record of one slot's seed: everything about it but its tensors. Frozen, so that a command replaces it whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from esper.kasmina.alpha import Ramp
from esper.leyline.codec import from_plain
from esper.leyline.errors import StateError
from esper.leyline.reports import SeedRecord
from esper.leyline.stages import BLENDED, Stage, check_transition


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedState(SeedRecord):
    """The record as the body keeps it: with the ramp that alpha is on, and the count of seeds."""

    ramp: Ramp | None = None
    germinations: int = 0
    """Seeds this slot has had; part of the next one's random stream."""

    @property
    def alpha(self) -> float:
        return 0.0 if self.ramp is None else self.ramp.value

    @property
    def ramp_left(self) -> int:
        return 0 if self.ramp is None else self.ramp.left

    @property
    def planted(self) -> bool:
        """Whether it never lived as a seed, but was part of the network at once."""
        return self.stage is Stage.FOSSILIZED and self.previous_stage is Stage.DORMANT

    def enter(self, slot: str, stage: Stage, **changes: Any) -> SeedState:
        """The record one transition on; raises TransitionError unless the table allows it."""
        check_transition(slot, self.stage, stage)
        return self.changed(stage=stage, previous_stage=self.stage, epochs_in_stage=0, **changes)

    def changed(self, **changes: Any) -> SeedState:
        """As dataclasses.replace, in a third of its time: the record of every seed changes several times in an epoch."""
        made = object.__new__(SeedState)
        for name, value in zip(_NAMES, _values(self), strict=True):
            object.__setattr__(made, name, value)
        for name, value in changes.items():
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> SeedState:
        """The inverse of to_plain; raises StateError for anything that it could not have written."""
        state = from_plain(cls, record)
        problem = state._contradiction()
        if problem:
            raise StateError(f"the record of a seed contradicts itself: {problem}")
        return state

    def _contradiction(self) -> str:
        """What no sequence of commands could have led to; empty for a sound record."""
        ramp = self.ramp
        if self.stage is Stage.UNKNOWN:
            return "its stage is UNKNOWN"
        if (ramp is not None) != (self.stage in BLENDED):
            return f"it is {self.stage.name} {'without' if ramp is None else 'with'} a ramp of alpha"
        if ramp is not None and not (0.0 <= ramp.start <= 1.0 and ramp.target == self.alpha_target and ramp.elapsed >= 0):
            return f"its ramp runs from {ramp.start} to {ramp.target}, {ramp.elapsed} epochs done, and its target is {self.alpha_target}"
        if not 0.0 <= self.alpha_target <= 1.0:
            return f"its alpha target is {self.alpha_target}"
        if self.pruning and (self.stage is not Stage.BLENDING or self.alpha_target != 0.0):
            return f"it is being pruned while {self.stage.name} with a target of {self.alpha_target}"
        counts = {"epochs_in_stage": self.epochs_in_stage, "age": self.age, "germinations": self.germinations}
        return next((f"{name} is {count}" for name, count in counts.items() if count < 0), "")


_NAMES = tuple(field.name for field in fields(SeedState))
_values = attrgetter(*_NAMES)
