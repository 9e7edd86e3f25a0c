"""What a module's state dict holds besides tensors, written as JSON: numbers, texts, and lists, tuples and dicts of them.

Functions, classes and the like cannot be made from a file. They are written by their names, and whoever reads has to have the same ones.
"""

from __future__ import annotations

import enum
import math
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from esper.leyline.errors import StateError

TUPLE, NAMED, PAIRS = "!tuple", "!named", "!pairs"
"""Keys that tell what JSON has no word for: a tuple, something known by its name, a dict whose keys are no words or look like these."""


def write(value: Any) -> Any:
    """A value as JSON has it. Raises TypeError, with what it is about, for what JSON has no way to write."""
    if type(value) is float and not math.isfinite(value):
        raise TypeError(f"the number {value}")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [write(item) for item in value]
    if type(value) is tuple:
        return {TUPLE: [write(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("!") for key in value):
            return {key: write(item) for key, item in value.items()}
        return {PAIRS: [[write(key), write(item)] for key, item in value.items()]}
    name = name_of(value)
    if name is None:
        raise TypeError(f"an object of class {type(value).__name__}")
    return {NAMED: name}


def read(written: Any, mine: Any, name: str) -> Any:
    """The value that was written. mine: the one that is here in its place, where what goes by its name is looked for. name: for errors."""
    if isinstance(written, list):
        return [read(item, _item(mine, i), f"{name}[{i}]") for i, item in enumerate(written)]
    if not isinstance(written, dict):
        return written
    if TUPLE in written:
        return tuple(read(written[TUPLE], mine, name))
    if PAIRS in written:
        keys = [read(key, None, name) for key, _ in written[PAIRS]]
        return {key: read(item, _item(mine, key), f"{name}[{key!r}]") for key, (_, item) in zip(keys, written[PAIRS], strict=True)}
    if NAMED in written:
        if name_of(mine) != written[NAMED]:
            raise StateError(f"{name} was {written[NAMED]} there and is {name_of(mine) or type(mine).__name__} here")
        return mine
    return {key: read(item, _item(mine, key), f"{name}[{key!r}]") for key, item in written.items()}


def name_of(value: Any) -> str | None:
    """What a value goes by that is the same wherever it is known; None for one without such a name, as a lambda."""
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, enum.Enum):
        return f"{name_of(type(value))}.{value.name}"
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _item(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (LookupError, TypeError):
        return None
