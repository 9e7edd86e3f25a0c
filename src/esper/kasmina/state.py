"""Checking a state dict whole before any of it is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from esper.kasmina.slot import module_name
from esper.leyline.errors import StateError, nearest

if TYPE_CHECKING:
    from esper.kasmina.growable import Growable

OF_A_SEED = re.compile(r"slots\.[^.]+\.(seed|gating)(\.|$)")
"""Names of what a slot holds while it has a seed."""


def check_state(model: Growable, state: Mapping[str, Any], strict: bool) -> None:
    """Raise StateError unless `state` fits this model, grown to where the state says it was."""
    if not isinstance(state, Mapping):
        raise StateError(f"a state dict is a mapping of names to tensors, found {type(state).__name__}")
    for name in state:
        if not isinstance(name, str):
            raise StateError(f"names of a state dict are strings, found {name!r}")
    expected: dict[str, Any] = {k: v for k, v in model.state_dict().items() if not OF_A_SEED.match(k)}
    for id, slot in model.slots.items():
        prefix = f"slots.{module_name(id)}"
        name = f"{prefix}._extra_state"
        if name not in state:
            known = {k.split(".")[1].replace("/", ".") for k in state if k.startswith("slots.")}
            hint = f"it knows the slots {', '.join(sorted(known))}" if known else "it holds no slots; load a bare host through model.host"
            raise StateError(f"the state dict has no record of slot {id!r}; {hint}")
        for part, child in zip(("seed", "gating"), slot.modules_for(slot.read_extra_state(state[name])), strict=True):
            if child is not None:
                expected.update({f"{prefix}.{part}.{k}": v for k, v in child.state_dict().items()})
    if strict:
        for name in expected:
            if name not in state:
                raise StateError(f"the state dict lacks {name!r}; {nearest(name, state)}")
        for name in state:
            if name not in expected:
                raise StateError(f"the state dict holds {name!r}, which this model does not have; {nearest(name, expected)}")
    for name, value in expected.items():
        # A module may keep extra state of any kind, and a host may put into its state dict whatever it likes.
        if name not in state or name.endswith("_extra_state") or not isinstance(value, Tensor):
            continue
        found = state[name]
        if not isinstance(found, Tensor):
            raise StateError(f"{name!r} should be a tensor, found {type(found).__name__}")
        if found.shape != value.shape:
            raise StateError(f"{name!r} has shape {tuple(found.shape)}, expected {tuple(value.shape)}")
        if found.is_complex() != value.is_complex() or found.is_floating_point() != value.is_floating_point():
            raise StateError(f"{name!r} has dtype {found.dtype}, expected {value.dtype}")
