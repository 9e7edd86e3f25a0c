"""What rows do at the slots, which seeds are stacked together, and how much room that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from esper.kasmina.blending import ADDITIVE
from esper.kasmina.growable import Growable
from esper.kasmina.slot import Form, Slot
from esper.kasmina.stacking.room import AHEAD_KINDS, spare
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

    def fitted(self, there: Needs, stack: StackedGrowables) -> Needs:
        """What to make room for, given what there is room for."""
        room = stack.room

        def grown(mine: dict[Any, int], before: dict[Any, int]) -> dict[Any, int]:
            sizes = {key: room(mine.get(key, 0), before.get(key, 0)) for key in {**before, **mine}}
            return {key: size for key, size in sizes.items() if size}

        seeds = {key: size for key, size in grown(self.seeds, there.seeds).items() if key in stack.seeds}
        rows = self.rows if self.whole else room(self.rows, there.rows)
        return Needs(rows, seeds, grown(self.kinds, there.kinds), self.storage, self.whole)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Needs)
        sizes = (self.rows, self.seeds, self.kinds) == (other.rows, other.seeds, other.kinds)
        return sizes and self.storage is other.storage


def needs_of(stack: StackedGrowables, hosts: list[int], forms: list[dict[str, Part]], learns: Role | None) -> Needs:
    found = Needs(len(hosts), whole=learns is Role.LEARNS)
    if not found.whole and stack.room is spare:
        found.rows += 1  # for the host that does not exist
    for key, seeds in stack.seeds.items():
        if key.role is learns:
            found.seeds[key] = len(seeds.rows)
        else:
            gated = not key.blueprint
            count = sum(1 for host, parts in zip(hosts, forms, strict=True) if host in seeds.row_of and _uses(parts, key.slot, gated))
            if count:
                found.seeds[key] = count + (stack.room is spare)
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
