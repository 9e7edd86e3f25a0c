"""Configs: frozen dataclasses that are read from TOML and written back, with every mistake named by file and key.

A nested dataclass or a `dict[str, X]` is a table; an enum is written by its name; None is a key that is left out. A union is
read by the form of the value in the file, so its members must have different forms (`int | str`, never `Path | str`).
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from esper.leyline.errors import ConfigError, nearest
from esper.leyline.files import replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number, as in `Annotated[int, Range(1, 10)]`; None leaves that side open. NaN is never inside."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a Range needs at least one bound")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"Range({self.low}, {self.high}) is empty")

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside, bounds included."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        # typing keeps one of two equal annotations, so 0 and 0.0 must read the same.
        low, high = (int(bound) if bound is not None and float(bound).is_integer() else bound for bound in (self.low, self.high))
        return f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"


Count = Annotated[int, Range(1, 1_000_000)]
"""How many of something: at least one, and no more than any machine can hold."""
Size = Annotated[int, Range(1, 65_536)]
"""Of a layer, a batch or a pool of threads: more is a slip of the finger."""


def load(cls: type[T], path: str | Path) -> T:
    """The config in the TOML file at `path`. Raises ConfigError, with file and key, for anything that is wrong with it."""
    try:
        # Editors on Windows put a byte-order mark in front, which TOML itself does not allow.
        text = Path(path).read_text(encoding="utf-8-sig")
        return from_mapping(cls, tomllib.loads(text), source=str(path))
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file, byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at line {text.count(chr(10)) + 1}, end of document")
        raise ConfigError(f"{path}: not valid TOML: {reason}") from error


def from_mapping(cls: type[T], mapping: Mapping[str, object], source: str = "config") -> T:
    """The config in a mapping of plain values, such as `tomllib` gives; enums, paths and dataclasses may also be given ready-made.

    `source` is what messages name as the place: a file, or "flags".
    """
    return _read_table(cls, mapping, _Place(source))


def to_toml(config: DataclassInstance) -> str:
    """The config as TOML text that `load` reads back to an equal object. Raises ConfigError for a value that TOML cannot say."""
    place = _Place(type(config).__name__)
    lines: list[str] = []
    _write_table(lines, (), _plain(_read_table(type(config), config, place), place))
    return "\n".join(lines).lstrip("\n") + "\n"


def save(config: DataclassInstance, path: str | Path) -> None:
    """Write the config to `path`: whole or not at all, whatever happens meanwhile."""
    text = to_toml(config)
    try:
        replace_file(Path(path), text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def replace_fields(config: T, changes: Mapping[str, object], source: str = "overrides") -> T:
    """A copy of the config with other values under dotted keys: `replace_fields(run, {"train.epochs": 50})`.

    All changes are made before anything is checked, so that two that only fit together can be given together. Values have the
    field's own type, or the form they have in TOML.
    """
    tree = _shallow(config)
    for key, value in changes.items():
        *tables, name = key.split(".")
        table = tree
        for depth, part in enumerate(tables):
            # A part that does not exist gets a table as well; the reader below refuses it, with the nearest name.
            inner = table.setdefault(part, None)
            if inner is not None and _form(inner) != "table":
                raise ConfigError(f"{source}: cannot set {key!r}: {'.'.join(tables[: depth + 1])!r} is not a table")
            table[part] = _shallow(inner) if is_dataclass(inner) else dict(inner or {})
            table = table[part]
        table[name] = value
    return from_mapping(type(config), tree, source)


def check_ranges(config: DataclassInstance) -> None:
    """Raise ConfigError for a field outside its `Annotated[..., Range(...)]`, and for NaN; to be called in `__post_init__`."""
    for name, kind in _kinds(type(config)).items():
        if _is_number(kind):
            value, place = getattr(config, name), _Place(type(config).__name__, name)
            _read(kind, value, place)
            for each in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]:
                if _is_nan(each):
                    raise place.wrong(_words(kind), value)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands, for messages: the file, and the dotted key in it."""

    source: str
    key: str = ""

    def of(self, name: object) -> _Place:
        return _Place(self.source, f"{self.key}.{name}" if self.key else str(name))

    def item(self, index: int) -> _Place:
        return _Place(self.source, f"{self.key}[{index}]")

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.source}: {text}")

    def wrong(self, expected: str, value: object) -> ConfigError:
        found = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
        return self.error(f"{self.key or 'top level'!r} must be {expected}; found {found}")


_WORDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def _read(kind: Any, value: object, place: _Place) -> Any:
    """The value as the type `kind` wants it, or ConfigError."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _read_ranged(kind, value, place)
    if origin in (Union, UnionType):
        return _read_union(kind, value, place)
    if origin is Literal:
        if any(type(option) is type(value) and option == value for option in get_args(kind)):
            return value
        raise place.wrong(_words(kind), value)
    if origin is tuple:
        return _read_tuple(kind, value, place)
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise place.wrong(_words(kind), value)
        return {key: _read(get_args(kind)[1], item, place.of(key)) for key, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_table(kind, value, place)
    if issubclass(kind, Enum):
        return _read_enum(kind, value, place)
    return _read_simple(kind, value, place)


def _read_simple(kind: type, value: object, place: _Place) -> Any:
    accepted = (str, kind) if issubclass(kind, PurePath) else (int, float) if kind is float else kind
    # bool is an int and a StrEnum a str to Python; to a reader of the file they are not.
    if isinstance(value, accepted) and not isinstance(value, Enum) and isinstance(value, bool) == (kind is bool):
        try:
            return kind(value)
        except OverflowError as error:  # an integer that no float can hold
            raise place.wrong(_words(kind), value) from error
    raise place.wrong(_words(kind), value)


def _is_nan(value: object) -> bool:
    """NaN passes every comparison that would refuse it, so it is no setting."""
    return isinstance(value, float) and math.isnan(value)


def _read_enum(kind: type[Enum], value: object, place: _Place) -> Enum:
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        if value in kind.__members__:
            return kind.__members__[value]
        for name, member in kind.__members__.items():
            if name.casefold() == value.casefold():
                return member
        raise place.error(f"{place.key!r} must be {_words(kind)}; found {value!r}, {nearest(value, kind.__members__)}")
    raise place.wrong(_words(kind), value)


def _read_ranged(kind: Any, value: object, place: _Place) -> Any:
    base, *notes = get_args(kind)
    if _is_nan(value):
        raise place.wrong(_words(kind), value)
    result = _read(base, value, place)
    for note in notes:
        if isinstance(note, Range) and result is not None and not note.holds(result):
            raise place.wrong(_words(kind), value)
    return result


def _read_union(kind: Any, value: object, place: _Place) -> Any:
    members = [member for member in get_args(kind) if member is not NoneType]
    if value is None and len(members) < len(get_args(kind)):
        return None
    form = _form(value)
    if form == "integer" and form not in _forms(kind):
        form = "float"
    for member in members:
        if form in _forms(member):
            return _read(member, value, place)
    raise place.wrong(_words(kind), value)


def _read_tuple(kind: Any, value: object, place: _Place) -> tuple[Any, ...]:
    kinds = get_args(kind)
    if not isinstance(value, list | tuple):
        raise place.wrong(_words(kind), value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise place.wrong(_words(kind), value)
    return tuple(_read(each, item, place.item(index)) for index, (each, item) in enumerate(zip(kinds, value, strict=True)))


def _read_table(cls: type[T], value: object, place: _Place) -> T:
    mapping = _shallow(value) if is_dataclass(value) and type(value) is cls else value
    if not isinstance(mapping, Mapping):
        raise place.wrong("a table", value)
    kinds = _kinds(cls)
    for key in mapping:
        if key not in kinds:
            raise place.error(f"unknown key {place.of(key).key!r}; {nearest(str(key), kinds)}")
    values = {name: _read(kind, mapping[name], place.of(name)) for name, kind in kinds.items() if name in mapping}
    missing = [field.name for field in _settable(cls) if field.name not in values and not _has_default(field)]
    for name in missing:
        if not _optional(kinds[name]):
            raise place.error(f"missing key {place.of(name).key!r}: {_words(kinds[name])}")
        values[name] = None
    try:
        return cls(**values)
    except (ValueError, ConfigError) as error:
        raise place.error(f"table {place.key or 'top level'!r}: {error}") from error


@cache
def _kinds(cls: type[DataclassInstance]) -> dict[str, Any]:
    """The type of each field that can be set, and a TypeError for one that no file can hold."""
    hints = get_type_hints(cls, include_extras=True)
    kinds = {field.name: hints[field.name] for field in _settable(cls)}
    for name, kind in kinds.items():
        try:
            _forms(kind)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{name}: {error}") from None
    return kinds


def _settable(cls: Any) -> list[Field[Any]]:
    return [field for field in fields(cls) if field.init]


def _shallow(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in _settable(type(config))}


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _optional(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _optional(get_args(kind)[0])
    return get_origin(kind) in (Union, UnionType, Literal) and (NoneType in get_args(kind) or None in get_args(kind))


def _is_number(kind: Any) -> bool:
    """Whether a type has numbers in it that may be wrong: floats, which can be NaN, and whatever has a range."""
    return kind is float or isinstance(kind, Range) or any(_is_number(part) for part in get_args(kind))


def _form(value: object) -> str:
    """What a value looks like in a file."""
    if isinstance(value, str | PurePath | Enum):
        return "string"
    if is_dataclass(value) or isinstance(value, Mapping):
        return "table"
    forms = {"boolean": bool, "integer": int, "float": float, "array": list | tuple}
    return next((form for form, kind in forms.items() if isinstance(value, kind)), type(value).__name__)


def _forms(kind: Any) -> frozenset[str]:
    """What values of a type look like in a file; TypeError for a type that no file can hold."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _forms(parts[0])
    if origin in (Union, UnionType):
        forms = [form for part in parts if part is not NoneType for form in _forms(part)]
        if len(forms) != len(set(forms)):
            raise TypeError(f"members of {kind} look alike in a file")
        return frozenset(forms)
    if origin is Literal:
        return frozenset(_form(option) for option in parts if option is not None)
    if origin is tuple:
        for part in parts:
            if part is not Ellipsis:
                _forms(part)
        return frozenset({"array"})
    if origin is dict and parts[0] is str:
        _forms(parts[1])
        return frozenset({"table"})
    if is_dataclass(kind):
        return frozenset({"table"})
    if isinstance(kind, type) and issubclass(kind, Enum | PurePath):
        return frozenset({"string"})
    simple = {bool: "boolean", int: "integer", float: "float", str: "string"}
    if kind in simple:
        return frozenset({simple[kind]})
    raise TypeError(f"a config cannot hold {kind}")


def _words(kind: Any) -> str:
    """A type in words, for messages."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return ", ".join([_words(parts[0]), *(str(note) for note in parts[1:] if isinstance(note, Range))])
    if origin in (Union, UnionType):
        return " or ".join(_words(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in parts if option is not None)
    if origin is tuple:
        return "a list" if Ellipsis in parts else f"a list of {len(parts)} values"
    if origin is dict or is_dataclass(kind):
        return "a table"
    if issubclass(kind, Enum):
        return "one of " + ", ".join(kind.__members__)
    return "a path" if issubclass(kind, PurePath) else _WORDS[kind]


def _plain(value: Any, place: _Place) -> Any:
    """The value made of what TOML has: dicts, lists, text, numbers and bools."""
    if is_dataclass(value):
        plain = {}
        for field in _settable(type(value)):
            item, inner = getattr(value, field.name), place.of(field.name)
            if item is not None:
                plain[field.name] = _plain(item, inner)
            elif _has_default(field) and field.default is not None:
                raise place.error(f"{inner.key!r} is None, which TOML says by leaving the key out, and that means its default")
        return plain
    if isinstance(value, dict):
        return {_text(key, place): _plain(item, place.of(key)) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, place.item(index)) for index, item in enumerate(value)]
    if value is None:
        raise place.error(f"{place.key!r} is None, and TOML has no word for that in a list or a table of values")
    if isinstance(value, Enum):
        return value.name
    return _text(str(value), place) if isinstance(value, str | PurePath) else value


def _text(text: str, place: _Place) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise place.error(f"{place.key!r} cannot be written as UTF-8: {text!r}")
    return text


def _write_table(lines: list[str], path: tuple[str, ...], table: dict[str, Any]) -> None:
    if path:
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_inline(item)}" for key, item in table.items() if not isinstance(item, dict)]
    for key, item in table.items():
        if isinstance(item, dict):
            _write_table(lines, (*path, key), item)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _inline(key)


def _inline(value: Any) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)
