"""What rows do at the slots, which seeds are stacked together, and how much room that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from esper.kasmina.blending import ADDITIVE
from esper.kasmina.growable import Growable
from esper.kasmina.slot import Form, Slot
from esper.kasmina.stacking.room import AHEAD_KINDS, Room
from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.stacked import StackedModule
from esper.kasmina.stacking.storage import Storage
from esper.leyline.actions import Style

if TYPE_CHECKING:
    from esper.kasmina.stacking.growables import StackedGrowables


class Kind(Enum):
    """What a row of the batch does at a slot with a seed."""

    ISOLATED = auto()
    FULL = auto()
    """The seed's output takes the place of the features."""
    ADD = auto()
    MULTIPLY = auto()
    GATED = auto()


class Part(NamedTuple):
    """What one row does at one slot: which kind, at which alpha."""

    kind: Kind
    alpha: float = 1.0


class Role(Enum):
    """How a seed, or a gate, takes part in training."""

    LEARNS = auto()
    """With its host."""
    ALONE = auto()
    """In a pass of its own, as seeds in TRAINING do in shadow isolation."""
    IDLE = auto()
    """Not yet: straight through, a gate learns once it is blended in."""


class SeedKey(NamedTuple):
    """Which seeds of a slot are stacked together."""

    slot: str
    blueprint: str
    """Empty for gates, which are alike whatever they belong to."""
    role: Role

    @property
    def name(self) -> str:
        """By which room for them is remembered."""
        return f"{self.slot}/{self.blueprint}/{self.role.name}"


@dataclass(slots=True, eq=False)
class Seeds:
    """Like seeds at one slot, or like gates, of several hosts."""

    module: StackedModule
    """The seeds' branches, or the gates: what a seed does besides is the same for all blueprints."""
    rows: Rows
    row_of: dict[int, int] = field(default_factory=dict)
    """By host."""
    checkpoint: bool = False
    """Whether branches are computed again in the backward pass."""


@dataclass(slots=True, eq=False)
class Needs:
    """Room that a view needs, or has: rows, seeds by key, and rows of each kind by slot."""

    rows: int = 0
    seeds: dict[SeedKey, int] = field(default_factory=dict)
    kinds: dict[tuple[str, Kind], int] = field(default_factory=dict)
    storage: Storage | None = None
    """What it is filled from: another storage is another view."""
    whole: bool = False
    """Whether its rows are all rows that there are."""

    def fitted(self, room: Room, stack: StackedGrowables) -> Needs:
        """What to make room for, in the order of the storage. room: that of the view."""
        seeds = {key: room.rows(f"seeds/{key.name}", self.seeds.get(key, 0)) for key in stack.seeds}
        every = [(id, kind) for id in stack.slots for kind in Kind]
        kinds = {(id, kind): room.rows(f"kinds/{id}/{kind.name}", self.kinds.get((id, kind), 0)) for id, kind in every}
        return Needs(
            rows=self.rows if self.whole else room.rows("rows", self.rows),
            seeds={key: size for key, size in seeds.items() if size},
            kinds={key: size for key, size in kinds.items() if size},
            storage=self.storage,
            whole=self.whole,
        )

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Needs)
        sizes = (self.rows, self.seeds, self.kinds) == (other.rows, other.seeds, other.kinds)
        return sizes and self.storage is other.storage


def needs_of(stack: StackedGrowables, hosts: list[int], forms: list[dict[str, Part]], learns: Role | None) -> Needs:
    found = Needs(len(hosts), whole=learns is Role.LEARNS)
    if not found.whole and stack.room.spare:
        found.rows += 1  # for the host that does not exist
    for key, seeds in stack.seeds.items():
        if key.role is learns:
            found.seeds[key] = len(seeds.rows)
        else:
            gated = not key.blueprint
            count = sum(1 for host, parts in zip(hosts, forms, strict=True) if host in seeds.row_of and _uses(parts, key.slot, gated))
            if count:
                found.seeds[key] = count + stack.room.spare
    for parts in forms:
        for id, part in parts.items():
            found.kinds[id, part.kind] = found.kinds.get((id, part.kind), 0) + 1
    if stack.ahead and learns is not Role.ALONE:
        share = -(-len(hosts) // AHEAD_KINDS)
        for id in stack.slots:
            for kind in Kind:
                if learns is Role.LEARNS or kind is not Kind.ISOLATED:
                    found.kinds[id, kind] = max(share, found.kinds.get((id, kind), 0))
        for key, seeds in stack.seeds.items():
            if learns is None:
                found.seeds[key] = max(len(seeds.rows), found.seeds.get(key, 0))
    found.storage = stack.storage
    return found


def _uses(parts: dict[str, Part], slot: str, gated: bool) -> bool:
    return slot in parts and (not gated or parts[slot].kind is Kind.GATED)


def parts_of(model: Growable, forms: dict[str, Form]) -> dict[str, Part]:
    """What each slot in these forms does to its rows; nothing for the others."""
    return {id: part for id, form in forms.items() if (part := _part(model.slots[id], form)) is not None}


def _part(slot: Slot, form: Form) -> Part | None:
    if form is Form.ABSENT:
        return None
    if form is Form.ISOLATED:
        return Part(Kind.ISOLATED)
    if form is Form.FOSSIL:
        return Part(Kind.FULL)
    alpha = slot.state.alpha_target if form is Form.TRIAL else slot.state.alpha
    if slot.gating is not None:
        return Part(Kind.GATED, alpha)
    if form is Form.TRIAL and alpha == 1.0 and slot.state.style in ADDITIVE:
        return Part(Kind.FULL)
    return Part(Kind.MULTIPLY if slot.state.style is Style.LINEAR_MULTIPLY else Kind.ADD, alpha)
