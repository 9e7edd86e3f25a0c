"""Contracts as plain values: any of our dataclasses to dicts, lists, text and numbers, and back, exactly. For checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from esper.leyline.errors import StateError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses become dicts, enums their names, tuples lists, and dicts lists of pairs, whose keys need not be text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    return value


def from_plain(kind: type[T], value: Any) -> T:
    """The inverse of to_plain; raises StateError for what it could not have written."""
    try:
        found: T = _read(kind, value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"a saved {getattr(kind, '__name__', kind)} cannot be read ({type(error).__name__}: {error})") from error
    return found


def _read(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        return _read(get_args(kind)[0], value)
    if origin in (Union, UnionType):
        if value is None:
            return None
        return _read(next(member for member in get_args(kind) if member is not NoneType), value)
    if origin is tuple:
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            return tuple(_read(kinds[0], item) for item in value)
        return tuple(_read(each, item) for each, item in zip(kinds, value, strict=True))
    if origin is dict:
        key_kind, item_kind = get_args(kind)
        return {_read(key_kind, key): _read(item_kind, item) for key, item in value}
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        if set(value) != {field.name for field in fields(kind)}:
            raise KeyError(f"{kind.__name__} has other fields")
        return kind(**{name: _read(hints[name], item) for name, item in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[value]
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
