"""The life of a seed: its stages and the one table that says which may follow which."""

from __future__ import annotations

from enum import IntEnum

from esper.leyline.errors import TransitionError


class Stage(IntEnum):
    """Where a slot's seed is in its life. 5 was a stage once; its number stays retired."""

    UNKNOWN = 0
    DORMANT = 1
    GERMINATED = 2
    TRAINING = 3
    BLENDING = 4
    HOLDING = 6
    FOSSILIZED = 7
    PRUNED = 8
    EMBARGOED = 9
    RESETTING = 10

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        # As text, so that f-strings and print agree; its number is stage.value.
        return format(self.name, spec)


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.UNKNOWN: frozenset(),
    Stage.DORMANT: frozenset({Stage.GERMINATED}),
    Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.PRUNED}),
    Stage.TRAINING: frozenset({Stage.BLENDING, Stage.PRUNED}),
    Stage.BLENDING: frozenset({Stage.HOLDING, Stage.PRUNED}),
    Stage.HOLDING: frozenset({Stage.FOSSILIZED, Stage.BLENDING, Stage.PRUNED}),
    Stage.FOSSILIZED: frozenset(),
    Stage.PRUNED: frozenset({Stage.EMBARGOED}),
    Stage.EMBARGOED: frozenset({Stage.RESETTING}),
    Stage.RESETTING: frozenset({Stage.DORMANT}),
}
"""The whole life of a seed. Nothing else in Esper knows which transitions are legal."""

LIVE = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING})
"""Stages in which a seed exists and its fate is still open."""

DEVELOPING = frozenset({Stage.GERMINATED, Stage.TRAINING})
"""Stages before a seed has any influence on the host."""

BLENDED = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages in which the seed changes what the network computes."""

CLEANUP = frozenset({Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING})
"""Stages of a slot on its way back to DORMANT."""

OCCUPIED = LIVE | {Stage.FOSSILIZED}
"""Stages in which the slot holds a module."""


def check_transition(slot: str, before: Stage, after: Stage) -> None:
    """Raise TransitionError unless the table allows `before` to become `after`."""
    if after in TRANSITIONS[before]:
        return
    allowed = ", ".join(stage.name for stage in sorted(TRANSITIONS[before])) or "nothing, it is final"
    raise TransitionError(f"slot {slot!r} cannot go from {before.name} to {after.name}; from {before.name} it may go to: {allowed}")
