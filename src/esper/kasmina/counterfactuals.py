"""The network as it is not: some slots empty, seeds shown before their time, or several such configurations in one pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from esper.kasmina.slot import Form, Slots
from esper.leyline.errors import TransitionError
from esper.leyline.stages import OCCUPIED, Stage

Configuration = frozenset[str]
"""The slots that are switched on."""


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


def trial(slots: Slots, on: Collection[str]) -> AbstractContextManager[None]:
    """These seeds, still in TRAINING, at their target alpha."""
    for id in on:
        if slots[id].state.stage is not Stage.TRAINING:
            raise TransitionError(f"slot {id!r} is {slots[id].state.stage.name}; a trial is for a seed in TRAINING")
    return shown_as(slots, dict.fromkeys(on, Form.TRIAL))


def showing(slots: Slots, on: Collection[str]) -> AbstractContextManager[None]:
    """Exactly these slots switched on; one in TRAINING at its target alpha."""
    return shown_as(slots, forms_showing(slots, on))


def forms_showing(slots: Slots, on: Collection[str]) -> dict[str, Form]:
    """The form of each slot when exactly these are switched on."""
    forms: dict[str, Form] = dict.fromkeys(slots, Form.ABSENT)
    for id in on:
        slot = slots[id]
        if slot.state.stage not in OCCUPIED or slot.state.stage is Stage.GERMINATED:
            raise TransitionError(f"slot {id!r} is {slot.state.stage.name}; it has nothing to switch on")
        forms[id] = Form.TRIAL if slot.state.stage is Stage.TRAINING else slot.form
    return forms


@contextmanager
def stacked(slots: Slots, configurations: Sequence[Configuration], batch: int) -> Iterator[None]:
    """Several configurations, each for `batch` samples of the input, one after another."""
    on = Configuration().union(*configurations)
    with showing(slots, on):
        try:
            for id in on:
                # One flag for each configuration, (C,), repeated for its samples: (C * batch,).
                share = torch.tensor([id in c for c in configurations], device=slots[id].alpha.device)
                slots[id].share = share.repeat_interleave(batch)
            yield
        finally:
            for id in on:
                slots[id].share = None
