"""The record of one slot's seed: everything about it but its tensors. Frozen, so that a command replaces it whole or not at all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from esper.kasmina.alpha import Ramp
from esper.leyline.actions import Curve, Style
from esper.leyline.errors import StateError
from esper.leyline.reports import GradientStats
from esper.leyline.stages import Stage, check_transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Where a seed is in its life. Epoch counts include the present epoch, so at decision time they say how many were trained."""

    stage: Stage = Stage.DORMANT
    previous_stage: Stage = Stage.UNKNOWN
    epochs_in_stage: int = 0
    age: int = 0
    blueprint: str = ""
    style: Style = Style.LINEAR_ADD
    tempo: int = 0
    alpha_target: float = 0.0
    ramp: Ramp | None = None
    pruning: bool = False
    contribution: float | None = None
    contribution_age: int = 0
    trial_contribution: float | None = None
    gradients: GradientStats | None = None
    gradient_ratio: float | None = None
    germinations: int = 0
    """Seeds this slot has had; part of the next one's random stream."""

    @property
    def alpha(self) -> float:
        return 0.0 if self.ramp is None else self.ramp.value

    @property
    def ramp_left(self) -> int:
        return 0 if self.ramp is None else self.ramp.left

    def enter(self, slot: str, stage: Stage, **changes: Any) -> Life:
        """This life one transition on; raises TransitionError unless the table allows it."""
        check_transition(slot, self.stage, stage)
        return replace(self, stage=stage, previous_stage=self.stage, epochs_in_stage=0, **changes)

    def emptied(self, stage: Stage) -> Life:
        """A new record at `stage` that remembers only how many seeds there have been."""
        return Life(stage=stage, previous_stage=self.stage, germinations=self.germinations)

    def to_json(self) -> dict[str, Any]:
        """Plain containers, enums by name."""
        record = dataclasses.asdict(self)
        record.update(stage=self.stage.name, previous_stage=self.previous_stage.name, style=self.style.name)
        if self.ramp is not None:
            record["ramp"]["curve"] = self.ramp.curve.name
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Life:
        """The inverse of to_json; raises StateError for anything that to_json could not have written."""
        try:
            fields = dict(record)
            fields["stage"], fields["previous_stage"] = Stage[fields["stage"]], Stage[fields["previous_stage"]]
            fields["style"] = Style[fields["style"]]
            if fields["ramp"] is not None:
                fields["ramp"] = Ramp(**{**fields["ramp"], "curve": Curve[fields["ramp"]["curve"]]})
            if fields["gradients"] is not None:
                fields["gradients"] = GradientStats(**fields["gradients"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the record of a seed cannot be read ({type(error).__name__}: {error})") from error
