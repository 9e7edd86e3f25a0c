"""Configs: frozen dataclasses that are read from TOML and written back, with every mistake named by file and key.

A nested dataclass or a `dict[str, X]` is a table; an enum is written by its name; None is a key that is left out. `codec.py` says how
each type is written.
"""

from __future__ import annotations

import json
import re
import reprlib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from esper.leyline.codec import codec_of, field_kinds, shallow
from esper.leyline.codec_values import Codec, Dialect, Mismatch, Range, form_of, inside
from esper.leyline.errors import ConfigError
from esper.leyline.files import open_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Count = Annotated[int, Range(1, 1_000_000)]
"""How many of something: at least one, and no more than any machine can hold."""
Size = Annotated[int, Range(1, 65_536)]
"""Of a layer, a batch or a pool of threads: more is a slip of the finger."""
NonNegative = Annotated[float, Range(0.0)]
NonNegativeInt = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0)]


def load(cls: type[T], path: str | Path) -> T:
    """The config in the TOML file at `path`. Raises ConfigError, with file and key, for anything that is wrong with it."""
    return from_mapping(cls, read_toml(path), source=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file holds, whatever it means. Raises ConfigError for a file that cannot be read or is no TOML."""
    try:
        with open_file(Path(path)) as file:
            # Editors on Windows put a byte-order mark in front, which TOML itself does not allow.
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file, byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at line {text.count(chr(10)) + 1}, end of document")
        raise ConfigError(f"{path}: not valid TOML: {reason}") from error
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read: its lists and tables are nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: it has an integer of thousands of digits") from error


def from_mapping(cls: type[T], mapping: Mapping[str, object], source: str = "config") -> T:
    """The config in a mapping of plain values, such as `tomllib` gives; enums, paths and dataclasses may also be given ready-made.

    `source` is what messages name as the place: a file, or "flags".
    """
    try:
        config: T = codec_of(cls, Dialect.SETTINGS).read(mapping)
    except Mismatch as error:
        said = str(error).removeprefix(f"{source}: ")  # a class that checks itself names itself
        raise ConfigError(f"{source}: {said}") from error
    return config


def to_mapping(config: DataclassInstance) -> dict[str, Any]:
    """The config as plain values that `from_mapping` reads back to an equal object."""
    plain: dict[str, Any] = codec_of(type(config), Dialect.SETTINGS).write(config)
    return plain


def to_toml(config: DataclassInstance, table: str = "") -> str:
    """The config as TOML text that `load` reads back to an equal object. Raises ConfigError for a value that TOML cannot say.

    table: the dotted name of a table to write it as, for a file that holds more than this config.
    """
    codec = codec_of(type(config), Dialect.SETTINGS)
    lines: list[str] = []
    try:
        _write_table(lines, tuple(table.split(".")) if table else (), codec.write(codec.read(config)))
    except Mismatch as error:
        raise ConfigError(f"{type(config).__name__}: {error}") from error
    text = "\n".join(lines).lstrip("\n") + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)]
        raise ConfigError(f"{type(config).__name__}: {reprlib.repr(line)} cannot be written as UTF-8") from error
    return text


def replace_fields(config: T, changes: Mapping[str, object], source: str = "overrides") -> T:
    """A copy of the config with other values under dotted keys: `replace_fields(run, {"train.epochs": 50})`.

    All changes are made before anything is checked, so that two that only fit together can be given together. Values have the
    field's own type, or the form they have in TOML.
    """
    tree = shallow(config)
    for key, value in changes.items():
        *tables, name = key.split(".")
        table = tree
        for depth, part in enumerate(tables):
            # A part that does not exist gets a table as well; the reader below refuses it, with the nearest name.
            inner: Any = table.setdefault(part, None)
            if inner is not None and form_of(inner) != "table":
                raise ConfigError(f"{source}: cannot set {key!r}: {'.'.join(tables[: depth + 1])!r} is not a table")
            table[part] = dict(inner) if isinstance(inner, Mapping) else {} if inner is None else shallow(inner)
            table = table[part]
        table[name] = value
    return from_mapping(type(config), tree, source)


def check_ranges(config: DataclassInstance) -> None:
    """Raise ConfigError for a field outside its `Annotated[..., Range(...)]`, and for NaN; to be called in `__post_init__`."""
    for name, codec in _numbers(type(config)).items():
        try:
            inside(name, codec.read, getattr(config, name))
        except Mismatch as error:
            raise ConfigError(f"{type(config).__name__}: {error}") from error


@cache
def _numbers(cls: type[DataclassInstance]) -> dict[str, Codec]:
    """The codecs of the fields that have numbers in them."""
    return {name: codec_of(kind, Dialect.SETTINGS) for name, kind in field_kinds(cls).items() if _is_number(kind)}


def _is_number(kind: Any) -> bool:
    """Whether a type has numbers in it that may be wrong: floats, which can be NaN, and whatever has a range."""
    return kind is float or isinstance(kind, Range) or any(_is_number(part) for part in get_args(kind))


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
