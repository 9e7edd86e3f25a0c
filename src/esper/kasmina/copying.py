"""Deep copies of models that have just been trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

_ATOMS = (type, ModuleType, FunctionType, str, bytes, int, float, complex, type(None))


def copied(value: T) -> T:
    """A deep copy of a model, or of containers that hold some, right after a training step as well.

    torch refuses to copy a tensor that is the result of a computation, and a module may keep such ones, as a loss or as features for
    later. Copies of those are cut off from the graph that they came from, which belongs to the original.
    """
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in _computed(value, {})}
    return copy.deepcopy(value, memo)


def _computed(value: Any, seen: dict[int, Any]) -> Iterator[Tensor]:
    """The tensors that are results of a computation in whatever a deep copy would go through."""
    if isinstance(value, _ATOMS) or id(value) in seen:
        return
    seen[id(value)] = value  # held, so that no other object gets its id
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
        return
    for inner in _inside(value):
        yield from _computed(inner, seen)


def _inside(value: Any) -> Iterator[Any]:
    """What an object holds: items, values, the object of a method, and attributes, with slots or without."""
    if isinstance(value, MethodType):
        yield value.__self__
        return
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    if hasattr(value, "__dict__"):
        yield from vars(value).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                yield getattr(value, name)
