"""What may be decided now: one mask for each head, in the order of the heads, so that whatever passes them is legal.

WAIT is always legal. For the rest:

- GERMINATE: an enabled slot is DORMANT, the seed limit is not reached, and no seed anywhere is GERMINATED, TRAINING, PRUNED,
  EMBARGOED or RESETTING. The limit counts the seeds in the network now, live or fossil: a pruned one makes room again.
- ADVANCE: GERMINATED, TRAINING or BLENDING, its gate would pass, and it is not being ramped down to be pruned.
- FOSSILIZE: HOLDING, and G5 would pass.
- PRUNE: GERMINATED to HOLDING, old enough (sooner when it measurably harms), and not being ramped down already.
- SET_ALPHA_TARGET: BLENDING or HOLDING, and alpha is not on its way anywhere.

The other heads are free wherever they matter, but for the blueprint, which must be one for the shape of the slot's features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEADS_FOR_OP,
    TEMPOS,
    WAIT,
    Curve,
    Decision,
    Head,
    Op,
    Style,
    matters,
    value_text,
)
from esper.leyline.config import NonNegativeInt, Range, check_ranges
from esper.leyline.errors import BlueprintError, ConfigError, EsperError, GateError, TransitionError, unknown
from esper.leyline.reports import EpochReport, SeedReport, Topology
from esper.leyline.stages import CLEANUP, DEVELOPING, OCCUPIED, Stage

BoolArray = NDArray[np.bool_]
Blueprints = Mapping[Topology, tuple[str, ...]]
"""Names of the blueprints for each topology."""

GERMINATE_WAITS_FOR = DEVELOPING | CLEANUP
"""While a seed anywhere is in one of these stages no other is germinated: one start at a time."""

OPEN_STAGES: dict[Op, tuple[Stage, ...]] = {
    Op.GERMINATE: (Stage.DORMANT,),
    Op.ADVANCE: (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING),
    Op.FOSSILIZE: (Stage.HOLDING,),
    Op.PRUNE: (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING),
    Op.SET_ALPHA_TARGET: (Stage.BLENDING, Stage.HOLDING),
}
"""The stages in which each op can be legal."""
OPS_AT: dict[Stage, tuple[Op, ...]] = {stage: tuple(op for op, stages in OPEN_STAGES.items() if stage in stages) for stage in Stage}
"""The same by stage: the ops that can be legal in it."""

HEAD_VALUES: dict[Head, tuple[Any, ...]] = {
    Head.OP: tuple(Op),
    Head.STYLE: tuple(Style),
    Head.TEMPO: TEMPOS,
    Head.ALPHA_TARGET: ALPHA_TARGETS,
    Head.ALPHA_SPEED: ALPHA_SPEEDS,
    Head.ALPHA_CURVE: tuple(Curve),
}
"""Values of the heads that are the same for every host, in the order of their indices."""

_READ: dict[Op, tuple[tuple[int, Head], ...]] = {
    op: tuple((place, head) for place, head in enumerate(Head) if matters(head, op)) for op in Op
}
"""The heads that matter for each op, with their places in an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What limits a controller beyond the life of a seed itself."""

    max_seeds: Annotated[int | None, Range(1)] = None
    """Most seeds in the network at once, live or fossil; None for as many as there are slots."""
    prune_age: NonNegativeInt = 5
    """Epochs after germination before a seed may be pruned: everyone gets a fair trial."""
    harmful_prune_age: NonNegativeInt = 2
    """The same for a seed whose measured contribution, or trial contribution, is negative."""
    enabled: tuple[str, ...] | None = None
    """Slots in which seeds may be germinated; None for all."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def check_slots(self, slots: Sequence[str]) -> None:
        """Raise UnknownNameError for an enabled slot that the host does not have."""
        for slot in self.enabled or ():
            if slot not in slots:
                raise unknown("slot", slot, slots)

    def is_enabled(self, slot: str) -> bool:
        """Whether seeds may be germinated there."""
        return self.enabled is None or slot in self.enabled


def check_choice(head: Head, value: object) -> None:
    """Raise ConfigError for a value that a head of `HEAD_VALUES` does not have."""
    if value not in HEAD_VALUES[head]:
        options = ", ".join(map(value_text, HEAD_VALUES[head]))
        raise ConfigError(f"{head.value} is {value!r}; expected one of {options}")


def blueprint_names(blueprints: Blueprints) -> tuple[str, ...]:
    """Every blueprint of any topology once, sorted: the values of the blueprint head, the same for all hosts."""
    return tuple(sorted({name for names in blueprints.values() for name in names}))


class Masks:
    """The masks of one host after one epoch. Never changed once made."""

    __slots__ = ("_blueprints", "_report", "_rules", "blueprint_mask", "blueprint_names", "slot_mask", "slot_names")

    slot_mask: BoolArray
    """[6, slots]: for each op the slots that it may name; all False for WAIT, which names none."""
    blueprint_mask: BoolArray
    """[slots, blueprints]: what can grow in each slot."""

    def __init__(self, report: EpochReport, rules: Rules, blueprints: Blueprints) -> None:
        self._report, self._rules, self._blueprints = report, rules, blueprints
        self.slot_names = tuple([seed.slot for seed in report.seeds])
        rules.check_slots(self.slot_names)
        topologies = tuple([seed.topology for seed in report.seeds])
        self.blueprint_names, self.blueprint_mask = _fitting(tuple(blueprints.items()), topologies)
        mask = np.zeros((len(Op), len(report.seeds)), dtype=bool)
        for index, seed in enumerate(report.seeds):
            for op in OPS_AT[seed.stage]:
                mask[op, index] = self._refusal(op, index) is None
        self.slot_mask = _frozen(mask)

    # Masks

    def ops(self) -> BoolArray:
        """[6]: the ops that are legal for some slot; WAIT always is."""
        mask: BoolArray = np.asarray(self.slot_mask.any(axis=1))
        mask[Op.WAIT] = True
        return mask

    def slots(self, op: Op) -> BoolArray:
        """[slots]: where the op is legal."""
        return self.slot_mask[op]

    def blueprints(self, slot: str) -> BoolArray:
        """[blueprints]: what can grow in the slot."""
        return self.blueprint_mask[self._index(slot)]

    def head(self, head: Head, decision: Decision = WAIT) -> BoolArray:
        """[choices of the head]: its legal values, given the heads before it as they are in `decision`; later ones are not read.

        A head that does not matter for the op has one legal value, `idle(head)`.
        """
        if head is Head.OP:
            return self.ops()
        mask = np.zeros(len(self.choices(head)), dtype=bool)
        if not matters(head, decision.op):
            mask[self.idle(head) : self.idle(head) + 1] = True
            return mask
        if head is Head.SLOT:
            return self.slots(decision.op)
        if head is Head.BLUEPRINT:
            return self.blueprints(decision.slot)
        mask[:] = True
        return mask

    def choices(self, head: Head) -> tuple[Any, ...]:
        """The values of a head, in the order of the mask."""
        if head is Head.SLOT:
            return self.slot_names
        return self.blueprint_names if head is Head.BLUEPRINT else HEAD_VALUES[head]

    @staticmethod
    def idle(head: Head) -> int:
        """The index that stands in where a head does not matter: that of a Decision's default, and 0 for slot and blueprint."""
        return HEAD_VALUES[head].index(getattr(WAIT, head.value)) if head in HEAD_VALUES else 0

    # Decisions

    def decision(self, indices: Sequence[int]) -> Decision:
        """The decision with these indices, one for each head in order; those of heads that do not matter are not read."""
        return Decision(**{head.value: self.choices(head)[indices[place]] for place, head in _READ[Op(indices[0])]})

    def indices(self, decision: Decision) -> tuple[int, ...]:
        """One index for each head in order; `idle` for those that do not matter. Raises as `check` does for an unknown value."""
        found = [self._value(head, decision) if matters(head, decision.op) else self.idle(head) for head in Head]
        return tuple(found)

    def legal(self, decision: Decision) -> bool:
        """Whether the decision may be carried out now. Fields that do not matter for the op are not read."""
        return self._objection(decision) is None

    def check(self, decision: Decision) -> None:
        """Raise the error that says why the decision may not be carried out, if so."""
        error = self._objection(decision)
        if error is not None:
            raise error

    def why_not(self, op: Op, slot: str) -> str:
        """Why an op other than WAIT is not legal for the slot, in words; empty when it is."""
        error = self._refusal(op, self._index(slot))
        return "" if error is None else str(error)

    def _objection(self, decision: Decision) -> EsperError | None:
        try:
            indices = {head: self._value(head, decision) for head in HEADS_FOR_OP[decision.op]}
        except EsperError as error:
            return error
        if decision.op is Op.WAIT:
            return None
        refused = self._refusal(decision.op, indices[Head.SLOT])
        if refused is None and decision.op is Op.GERMINATE and not self.blueprints(decision.slot)[indices[Head.BLUEPRINT]]:
            seed = self._report.seeds[indices[Head.SLOT]]
            here = ", ".join(self._names_for(seed))
            return BlueprintError(f"blueprint {decision.blueprint!r} does not fit slot {seed.slot!r}; {seed.topology} has: {here}")
        return refused

    def _value(self, head: Head, decision: Decision) -> int:
        value, choices = getattr(decision, head.value), self.choices(head)
        if head in HEAD_VALUES:
            check_choice(head, value)
        elif value not in choices:
            raise unknown(head.value, str(value), choices)
        return choices.index(value)

    # The rules

    def _refusal(self, op: Op, index: int) -> EsperError | None:
        """Why an op other than WAIT is not legal for the slot; None when it is. The only place that knows."""
        seed, verdict = self._report.seeds[index], self._report.verdicts[index]
        if op is Op.GERMINATE and not self._rules.is_enabled(seed.slot):
            return TransitionError(f"GERMINATE {seed.slot}: the slot is not enabled; enabled: {', '.join(self._rules.enabled or ())}")
        if seed.stage not in OPEN_STAGES[op]:
            *others, last = (stage.name for stage in OPEN_STAGES[op])
            expected = f"{', '.join(others)} or {last}" if others else last
            return TransitionError(f"{op.name} {seed.slot}: the slot is {seed.stage.name}; expected {expected}")
        if op is Op.GERMINATE:
            return self._no_germinate(seed)
        if op is Op.SET_ALPHA_TARGET:
            if not seed.pruning and seed.ramp_left <= 0:
                return None
            return TransitionError(f"{op.name} {seed.slot}: alpha is on its way to {seed.alpha_target:g}, {seed.ramp_left} epochs left")
        if seed.pruning and op is not Op.FOSSILIZE:
            return TransitionError(f"{op.name} {seed.slot}: it is being ramped down to be pruned, {seed.ramp_left} epochs left")
        if op is Op.PRUNE:
            return self._no_prune(seed)
        assert verdict is not None, f"the report has no verdict for slot {seed.slot!r}, which is {seed.stage.name}"
        return None if verdict.passed else GateError(f"{op.name} {seed.slot}: {verdict}")

    def _no_germinate(self, seed: SeedReport) -> EsperError | None:
        grown, limit = sum(other.stage in OCCUPIED for other in self._report.seeds), self._rules.max_seeds
        if limit is not None and grown >= limit:
            return TransitionError(f"GERMINATE {seed.slot}: {grown} seeds are in the network; at most {limit} may be")
        for other in self._report.seeds:
            if other.stage in GERMINATE_WAITS_FOR:
                return TransitionError(f"GERMINATE {seed.slot}: slot {other.slot!r} is {other.stage.name}; one start at a time")
        if not self._names_for(seed):
            return BlueprintError(f"GERMINATE {seed.slot}: there is no blueprint for {seed.topology}")
        return None

    def _no_prune(self, seed: SeedReport) -> EsperError | None:
        worth = seed.trial_contribution if seed.contribution is None else seed.contribution
        harms = worth is not None and worth < 0.0
        age = min(self._rules.prune_age, self._rules.harmful_prune_age) if harms else self._rules.prune_age
        if seed.age < age:
            return TransitionError(f"PRUNE {seed.slot}: its seed is {seed.age} epochs old; at least {age} needed")
        return None

    def _names_for(self, seed: SeedReport) -> tuple[str, ...]:
        # A shape of features without an entry has nothing that can grow.
        return self._blueprints.get(seed.topology, ())

    def _index(self, slot: str) -> int:
        if slot not in self.slot_names:
            raise unknown("slot", slot, self.slot_names)
        return self.slot_names.index(slot)


@lru_cache
def _fitting(
    blueprints: tuple[tuple[Topology, tuple[str, ...]], ...], topologies: tuple[Topology, ...]
) -> tuple[tuple[str, ...], BoolArray]:
    """The values of the blueprint head, and which of them fit slots of these topologies, [slots, blueprints]. Remembered: hosts ask for
    the same in every epoch."""
    known = dict(blueprints)
    names = blueprint_names(known)
    fits = [[name in known.get(topology, ()) for name in names] for topology in topologies]
    return names, _frozen(np.array(fits, dtype=bool).reshape(len(topologies), len(names)))


def _frozen(mask: BoolArray) -> BoolArray:
    mask.setflags(write=False)
    return mask


def choose(masks: Masks, pick: Callable[[Head, BoolArray], int]) -> Decision:
    """A legal decision, head by head: `pick` is asked for an index only where a head matters, and gets the mask of its legal values."""
    decision = WAIT
    for head in Head:
        if matters(head, decision.op):
            decision = replace(decision, **{head.value: masks.choices(head)[pick(head, masks.head(head, decision))]})
    return decision
