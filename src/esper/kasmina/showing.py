"""The network shown otherwise than it is: with some seeds switched off, with others on trial, or several configurations in one pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from esper.kasmina.slot import Form, Slots
from esper.leyline.errors import TransitionError
from esper.leyline.stages import OCCUPIED, Stage


def forms_of(slots: Slots, on: Collection[str]) -> dict[str, Form]:
    """The form of every slot in a configuration, those that are switched on; one in TRAINING is shown at its target alpha."""
    forms: dict[str, Form] = dict.fromkeys(slots, Form.ABSENT)
    for id in on:
        stage = slots[id].state.stage
        if stage not in OCCUPIED or stage is Stage.GERMINATED:
            raise TransitionError(f"slot {id!r} is {stage.name}; it has nothing to switch on")
        forms[id] = Form.TRIAL if stage is Stage.TRAINING else slots[id].form
    return forms


@contextmanager
def shown_as(slots: Slots, forms: Mapping[str, Form]) -> Iterator[None]:
    """Inside, these slots have other forms. Put back on the way out, whatever happens inside."""
    before = [(slots[id], slots[id].form, slots[id].state.stage) for id in forms]
    try:
        for slot, _, _ in before:
            slot.form = forms[slot.id]
        yield
    finally:
        for slot, form, stage in before:
            slot.form = form
            if slot.state.stage is not stage:  # moved on inside
                slot.settle()


@contextmanager
def shared_out(slots: Slots, configurations: Sequence[frozenset[str]], batch: int) -> Iterator[None]:
    """Inside, each slot takes part for the samples of its configurations alone: `batch` of them for each, one after another."""
    with ExitStack() as stack:
        for id in frozenset[str]().union(*configurations):
            slot = slots[id]
            # One flag for each configuration, (C,), repeated for its samples: (C * batch,).
            share = torch.tensor([id in c for c in configurations], device=slot.alpha.device).repeat_interleave(batch)
            stack.callback(setattr, slot, "share", slot.share)
            slot.share = share
        yield
