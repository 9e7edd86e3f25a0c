"""The report of an evaluation: every figure by name, for programs, for people and for a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from esper.karn.diagnostics.actions import Actions, HeadEntropy
from esper.karn.diagnostics.gates import Audit
from esper.karn.diagnostics.gradients import Flow
from esper.karn.diagnostics.lives import Success, Timing
from esper.karn.diagnostics.outcomes import Chance, Earned, Outcomes
from esper.karn.diagnostics.response import Response
from esper.karn.diagnostics.values import Calibration
from esper.karn.red_flags import RedFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One policy or controller."""

    name: str
    kind: str
    """policy or controller."""
    gamma: float
    """Discount of the returns."""
    outcomes: Outcomes
    actions: Actions
    entropies: dict[str, HeadEntropy] | None
    """By head; None for a controller."""
    timing: Timing
    calibration: Calibration | None
    """None for a controller, and where nothing can be told."""
    responses: dict[str, Response]
    seeds: dict[str, dict[str, Success]]
    """By blueprint, slot and style, and `all`: by value."""
    rewards: dict[str, Earned]
    audit: Audit
    gradients: dict[str, Flow]
    chance: Chance | None
    """None unless hosts were played several times."""
    course: tuple[dict[str, float], ...]
    """Of each round that it learned in: entropy of each head while it practised; empty where that is not known."""
    absent: dict[str, str]
    """What could not be told, and why."""
    remarks: tuple[str, ...]
    flags: tuple[RedFlag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks in bytes."""

    process: int
    worker: int
    """The largest of the worker processes; 0 without any."""
    gpu: int
    """Of torch on the first GPU, in this process; 0 without one."""
    machine: int
    """What the machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everybody who was evaluated, on the same hosts."""

    tasks: tuple[str, ...]
    member: str
    hosts: int
    first_seed: int
    draws: int
    """Plays of each host by a policy: 1 unless decisions were drawn."""
    diagnoses: tuple[Diagnosis, ...]
    memory: Memory

    @property
    def flagged(self) -> bool:
        """Whether anybody raises a red flag."""
        return any(diagnosis.flags for diagnosis in self.diagnoses)

    def to_plain(self) -> dict[str, Any]:
        """Everything in plain containers; None where there is no number."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def to_json(self) -> str:
        """The same as text, for programs."""
        return json.dumps(self.to_plain(), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
