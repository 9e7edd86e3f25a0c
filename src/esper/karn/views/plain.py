"""What all views share: they are worked out once for each state of a record, and hold nothing that JSON has no word for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from esper.karn.record import Record

CURVE = 60
"""Points of a small curve at most."""

P = ParamSpec("P")
T = TypeVar("T")


def view(function: Callable[Concatenate[Record, P], T]) -> Callable[Concatenate[Record, P], T]:
    """A function of a record whose value is kept until the record changes, and in which NaN and infinities are None."""

    @wraps(function)
    def asked(record: Record, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function.__module__, function.__name__, args, tuple(sorted(kwargs.items())))  # numbers and names alone
        return record.remembered(key, lambda: plain(function(record, *args, **kwargs)))

    return asked


def plain(value: Any) -> Any:
    """The value with lists for tuples, and None for NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def thinned(values: Sequence[float], most: int = CURVE) -> list[float]:
    """No more than so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]
