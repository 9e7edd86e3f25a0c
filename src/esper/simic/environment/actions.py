"""Actions as Gymnasium has them: eight heads that are chosen apart, or one number for a whole decision; with their masks."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction
from numpy.typing import NDArray

from esper.leyline.actions import HEADS_FOR_OP, Decision, Head, Op, matters
from esper.leyline.errors import ConfigError, EsperError, nearest
from esper.tamiyo import HEAD_VALUES, Masks

BoolArray = NDArray[np.bool_]
Mask = NDArray[np.int8]
"""1 for what is legal, 0 for what is not: the type that Gymnasium's `sample(mask=...)` takes."""
Choice = Literal["core", "full"]

CORE_OPS = (Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE)
"""Ops of the short table. Without alpha targets below 1 there is nothing for SET_ALPHA_TARGET to do."""
CORE_HEADS = (Head.OP, Head.SLOT, Head.BLUEPRINT)
"""Heads that the short table chooses; the others are as in a Decision of which nothing more is said."""


class ActionError(EsperError, InvalidAction):
    """An action that is not in the action space."""


class Actions(Protocol):
    """A space of actions, and what its actions mean for the host of a moment."""

    space: spaces.Space[Any]

    def decision(self, action: Any, masks: Masks) -> Decision:
        """The decision that an action of the space stands for. It need not be legal."""

    def mask(self, masks: Masks) -> Any:
        """What is legal now, in the form that `space.sample(mask=...)` takes."""

    def flat_mask(self, masks: Masks) -> BoolArray:
        """The same as one array of bools, in the form that sb3-contrib takes."""


class Heads:
    """MultiDiscrete over the eight heads, in their order.

    A mask can say of a head's value only whether some legal decision has it. Which values go together it cannot say, so some actions
    that pass the masks are not legal.
    """

    def __init__(self, slots: int, blueprints: tuple[str, ...]) -> None:
        """Slots: the most that any host has. Blueprints: all there are."""
        self.sizes = tuple(_size(head, slots, blueprints) for head in Head)
        self.space: spaces.Space[Any] = spaces.MultiDiscrete(np.array(self.sizes))

    def decision(self, action: Any, masks: Masks) -> Decision:
        """The decision with these indices, one for each head; those of heads that do not matter for the op are not read."""
        return _decision([int(index) for index in action], masks)

    def mask(self, masks: Masks) -> tuple[Mask, ...]:
        """One array for each head: 1 where some legal decision for which the head matters has the value.

        A head that matters for no legal decision has one value left, which stands for "none".
        """
        legal = masks.ops()
        _assert_legal(legal, masks)
        found = []
        for head, size in zip(Head, self.sizes, strict=True):
            mask = np.zeros(size, dtype=np.int8)
            values = _marginal(head, masks, legal)
            mask[: len(values)] = values
            found.append(mask)
        return tuple(found)

    def flat_mask(self, masks: Masks) -> BoolArray:
        """[sum of the heads' sizes]: the masks of all heads, one after another."""
        return np.concatenate(self.mask(masks)).astype(np.bool_)


class Composites:
    """Discrete over whole decisions, WAIT first, then op by op. Its mask is exact: what passes it is legal."""

    def __init__(self, slots: int, blueprints: tuple[str, ...], choice: Choice = "core") -> None:
        """Choice: `full` has every value of every head; `core` chooses op, slot and blueprint and leaves the rest at its defaults."""
        if choice not in ("core", "full"):
            raise ConfigError(f"heads is {choice!r}; expected 'core' or 'full', {nearest(str(choice), ('core', 'full'))}")
        ops = tuple(Op) if choice == "full" else CORE_OPS
        chosen = tuple(Head) if choice == "full" else CORE_HEADS
        rows = [row for op in ops for row in _rows(op, chosen, slots, blueprints)]
        self.table: NDArray[np.int64] = np.array(rows, dtype=np.int64)
        """[actions, 8]: one index for each head in order, as `Masks.indices` has them."""
        self.table.setflags(write=False)
        self.space: spaces.Space[Any] = spaces.Discrete(len(rows))

    def decision(self, action: Any, masks: Masks) -> Decision:
        """The decision of that number."""
        return _decision(self.table[int(action)].tolist(), masks)

    def mask(self, masks: Masks) -> Mask:
        """[actions]: 1 for every legal decision."""
        return self.flat_mask(masks).astype(np.int8)

    def flat_mask(self, masks: Masks) -> BoolArray:
        """[actions]: True for every legal decision."""
        ops, slots, blueprints = self.table[:, 0], self.table[:, 1], self.table[:, 2]
        there = slots < len(masks.slot_names)
        # A slot that this host does not have is masked by `there`; its place in the arrays is taken by the first one.
        slots = np.where(there, slots, 0)
        legal = there & masks.slot_mask[ops, slots]
        legal &= (ops != Op.GERMINATE) | masks.blueprint_mask[slots, blueprints]
        legal |= ops == Op.WAIT
        _assert_legal(legal, masks)
        return np.asarray(legal, dtype=np.bool_)


def checked(space: spaces.Space[Any], action: Any) -> Any:
    """The action, if it is one of the space's; else ActionError."""
    if not space.contains(action):
        raise ActionError(f"{action!r} is not an action of {space}")
    return action


def _size(head: Head, slots: int, blueprints: tuple[str, ...]) -> int:
    return {Head.SLOT: slots, Head.BLUEPRINT: len(blueprints)}.get(head) or len(HEAD_VALUES[head])


def _rows(op: Op, chosen: tuple[Head, ...], slots: int, blueprints: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Every combination of the heads that matter for the op and are chosen; `idle` for the others."""
    values: list[range | tuple[int]] = [
        range(_size(head, slots, blueprints)) if matters(head, op) and head in chosen else (Masks.idle(head),) for head in Head
    ]
    values[0] = (op.value,)
    return list(product(*values))


def _marginal(head: Head, masks: Masks, legal: BoolArray) -> BoolArray:
    """[values of the head]: those that some legal decision has for which the head matters; else `idle` alone."""
    if head is Head.OP:
        return legal
    ops = [op for op in Op if legal[op] and head in HEADS_FOR_OP[op]]
    found: BoolArray = np.zeros(len(masks.choices(head)), dtype=np.bool_)
    if not ops:
        found[masks.idle(head)] = True
    elif head is Head.SLOT:
        found[:] = masks.slot_mask[ops].any(axis=0)
    elif head is Head.BLUEPRINT:
        found[:] = masks.blueprint_mask[masks.slots(Op.GERMINATE)].any(axis=0)
    else:
        found[:] = True
    return found


def _decision(indices: list[int], masks: Masks) -> Decision:
    """The decision with these indices. A slot that this host does not have gets its number for a name, which every mask refuses."""
    op, slot = Op(indices[0]), indices[1]
    if matters(Head.SLOT, op) and slot >= len(masks.slot_names):
        return Decision(op=op, slot=str(slot))
    return masks.decision(indices)


def _assert_legal(legal: BoolArray, masks: Masks) -> None:
    """WAIT is always legal, so that an empty mask is a mistake of ours and not a state of the host."""
    assert legal.any(), f"no legal action; slots {masks.slot_names}, slots by op:\n{masks.slot_mask}\nblueprints:\n{masks.blueprint_mask}"
