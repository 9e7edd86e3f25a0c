"""Records that travel between processes: frozen dataclasses whose pickling costs little."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

R = TypeVar("R", bound=type[Any])


def travels(cls: R) -> R:
    """Make a frozen dataclass with slots quick to pickle: as the list of its values, in the order of its fields.

    What dataclasses do by themselves is the same, but asks for the fields anew for every object, which takes most of the time.
    """
    names = tuple(field.name for field in fields(cls))
    # The slots' own way in: what is frozen refuses every other.
    setters = tuple(getattr(cls, name).__set__ for name in names)

    def getstate(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def setstate(self: Any, state: Iterable[Any]) -> None:
        for put, value in zip(setters, state, strict=True):
            put(self, value)

    made: Any = cls
    made.__getstate__, made.__setstate__ = getstate, setstate
    return cls
