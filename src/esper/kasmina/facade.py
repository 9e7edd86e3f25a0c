"""What makes a Growable look like its host: a class for each class of host, the host's own signature, and what is shown of it."""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from esper.leyline.stages import BLENDED, OCCUPIED

if TYPE_CHECKING:
    from esper.kasmina.growable import Growable


_CLASSES: dict[tuple[type, type], type[Growable]] = {}
"""Those that were made, by what they were made from."""


def class_for(growable: type[Growable], host: type[nn.Module]) -> type[Growable]:
    """The class of a Growable around a host of that class: `GrowableResNet`, whose forward has the signature of ResNet's.

    Frameworks ask classes and instances for it: which columns of the data the model takes, what its labels are called.
    """
    if (growable, host) not in _CLASSES:
        known = {"__doc__": growable.__doc__, "__module__": growable.__module__, "made_from": (growable, host)}
        made = type(f"{growable.__name__}{host.__name__}", (growable,), {**known, "forward": _forward(growable, host)})
        _CLASSES[growable, host] = made
    return _CLASSES[growable, host]


def rebuild(growable: type[Growable], host: type[nn.Module]) -> Growable:
    """An empty instance of that class, for copies and pickles, which know the two classes that it was made from."""
    made = class_for(growable, host)
    return made.__new__(made)


def _forward(growable: type[Growable], host: type[nn.Module]) -> FunctionType:
    """A copy of the forward method that tells the host's signature. The code object is the same, and so torch.compile treats it the same.

    A host's forward that is not written in Python may tell none; then it stays (*args, **kwargs)."""
    original: Any = growable.forward
    made = FunctionType(original.__code__, original.__globals__, original.__name__, original.__defaults__, original.__closure__)
    made.__dict__.update(original.__dict__)
    made.__doc__, made.__kwdefaults__ = original.__doc__, original.__kwdefaults__
    made.__qualname__ = f"{growable.__name__}{host.__name__}.forward"
    with suppress(TypeError, ValueError):
        made.__signature__ = inspect.signature(host.forward)  # type: ignore[attr-defined]
    return made


def shown(model: Growable) -> str:
    """A model in a few lines: its host, and what is at each slot. The host's own modules are what `repr(model.host)` is for."""
    host = model.host
    lines = [f"host: {type(host).__name__}, {sum(p.numel() for p in host.parameters()):,} parameters"]
    for slot in model.slots.values():
        at = "" if slot.id == slot.place.path else f" at {slot.place.path}"
        told = f"slot {slot.id}{at}, {slot.place.shape.topology.value} of width {slot.place.shape.width}: {slot.state.stage.name}"
        if slot.state.stage in OCCUPIED:
            told += f" {slot.state.blueprint}, {slot.size():,} parameters"
        if slot.state.stage in BLENDED:
            told += f", alpha {slot.state.alpha:.2f}"
        lines.append(told)
    return f"{type(model).__name__}(\n  " + "\n  ".join(lines) + "\n)"
