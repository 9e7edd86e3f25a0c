"""What a controller can do: the eight heads of a decision, their values, and which head matters for which op."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from esper.leyline.travel import travels


class Op(IntEnum):
    """The first head: what to do."""

    WAIT = 0
    GERMINATE = 1
    ADVANCE = 2
    FOSSILIZE = 3
    PRUNE = 4
    SET_ALPHA_TARGET = 5


class Style(IntEnum):
    """How a seed is blended in: how it is combined with the host's features, and along which curve alpha first rises."""

    LINEAR_ADD = 0
    SIGMOID_ADD = 1
    LINEAR_MULTIPLY = 2
    GATED = 3


class Curve(IntEnum):
    """The shape of a ramp of alpha. The three sigmoids differ in steepness."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


TEMPOS: tuple[int, ...] = (3, 5, 7, 10)
"""Epochs that the first blending takes."""

ALPHA_TARGETS: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
"""Shares of influence that alpha can be sent to."""

ALPHA_SPEEDS: tuple[int, ...] = (0, 3, 5, 8)
"""Epochs that a later ramp of alpha takes; 0 is at once."""


class Head(StrEnum):
    """The parts of a decision, in the order in which they are chosen."""

    OP = "op"
    SLOT = "slot"
    BLUEPRINT = "blueprint"
    STYLE = "style"
    TEMPO = "tempo"
    ALPHA_TARGET = "alpha_target"
    ALPHA_SPEED = "alpha_speed"
    ALPHA_CURVE = "alpha_curve"


HEADS_FOR_OP: dict[Op, tuple[Head, ...]] = {
    Op.WAIT: (Head.OP,),
    Op.GERMINATE: (Head.OP, Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET),
    Op.ADVANCE: (Head.OP, Head.SLOT),
    Op.FOSSILIZE: (Head.OP, Head.SLOT),
    Op.PRUNE: (Head.OP, Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE),
    Op.SET_ALPHA_TARGET: (Head.OP, Head.SLOT, Head.STYLE, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE),
}
"""The only place that says which head matters for which op; losses, entropy, logs and diagnostics read it."""


def matters(head: Head, op: Op) -> bool:
    """Whether `head` has any effect when `op` is chosen."""
    return head in HEADS_FOR_OP[op]


def value_text(value: object) -> str:
    """A value of a head as people and records have it: an enum by its name."""
    return value.name if isinstance(value, IntEnum) else str(value)


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of a controller. Fields that do not matter for `op` keep their defaults and are ignored."""

    op: Op
    slot: str = ""
    blueprint: str = ""
    style: Style = Style.LINEAR_ADD
    tempo: int = 5
    alpha_target: float = 1.0
    alpha_speed: int = 0
    alpha_curve: Curve = Curve.LINEAR
    reason: str = ""
    """Why, in the controller's words; shown to people, never read by code."""

    def __str__(self) -> str:
        return " ".join([self.op.name, *(value_text(getattr(self, head.value)) for head in HEADS_FOR_OP[self.op][1:])])


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A seed that is part of a network from its first step on, as in one that does not grow."""

    slot: str
    blueprint: str
    style: Style = Style.LINEAR_ADD


WAIT = Decision(op=Op.WAIT)
"""The decision to leave everything as it is."""
