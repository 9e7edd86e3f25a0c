"""The gate audit: every recorded change of stage replayed against the one table of the life of a seed, and against the gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from esper.karn.episodes import Episode
from esper.leyline.events import GateChecked, Refused, StageChanged
from esper.leyline.reports import GATE_BEFORE
from esper.leyline.stages import TRANSITIONS, Stage

GUARDED = {stage: gate for gate, stage in GATE_BEFORE.items()}
"""The gate before each stage that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the record says of stages and gates."""

    transitions: int
    violations: tuple[str, ...]
    """A sentence for each change that the table or a gate does not allow."""
    gates: dict[str, tuple[int, int]]
    """By gate: how often it passed, and how often it refused."""
    refused: int
    """Decisions that were not carried out."""


def gate_audit(episodes: Sequence[Episode]) -> Audit:
    """Replay what was recorded."""
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    violations, transitions, refused = [], 0, 0
    for episode in episodes:
        violations += list(_violations(episode))
        for event in (event for step in episode.steps for event in step.events):
            transitions += isinstance(event, StageChanged)
            refused += isinstance(event, Refused)
            if isinstance(event, GateChecked):
                (passed if event.passed else failed)[event.gate.value] += 1
    gates = {gate.value: (passed[gate.value], failed[gate.value]) for gate in GATE_BEFORE}
    return Audit(transitions=transitions, violations=tuple(violations), gates=gates, refused=refused)


def _violations(episode: Episode) -> Iterator[str]:
    stages = dict.fromkeys(episode.started.slots, Stage.DORMANT)
    for step in episode.steps:
        opened = set()
        for event in step.events:
            if isinstance(event, GateChecked) and event.passed:
                opened.add((event.slot, event.gate))
            if not isinstance(event, StageChanged):
                continue
            where = f"host {episode.started.seed}, epoch {step.epoch}, slot {event.slot}"
            change = f"{event.before.name} to {event.after.name}"
            if event.before is not stages[event.slot]:
                yield f"{where}: recorded {change}, but the slot was {stages[event.slot].name}"
            elif event.after not in TRANSITIONS[event.before]:
                yield f"{where}: {change} is not in the table"
            elif _guarded(event) and (event.slot, GUARDED[event.after]) not in opened:
                yield f"{where}: {change} without a passed {GUARDED[event.after].value}"
            stages[event.slot] = event.after


def _guarded(event: StageChanged) -> bool:
    """Whether a gate stands before the change: a seed that goes back from HOLDING to BLENDING has passed it."""
    return event.after in GUARDED and (event.before, event.after) != (Stage.HOLDING, Stage.BLENDING)
