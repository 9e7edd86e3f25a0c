"""The one codec: from a Python value and its type to plain values (dict, list, str, int, float, bool, None) and back, strictly.

Known are bool, int, float, str and None; enums, by name; tuples, as lists; dicts, as objects where keys are text and as lists of pairs
elsewhere; Literal; paths, as text; dataclasses, as objects; `Annotated[..., Range(...)]`; `Annotated[Base, Tagged(...)]` for a hierarchy
whose members are written with their kind. A union is read by the form of the value, so its members must have different forms (`int | str`,
never `Path | str`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from esper.leyline.codec_values import (
    SIMPLE,
    Codec,
    Dialect,
    Mismatch,
    form_of,
    inside,
    literal,
    named,
    nothing,
    number_or_text,
    ranged,
    shown,
    simple,
    wrong,
)
from esper.leyline.errors import StateError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """The members of a hierarchy by kind, as in `Annotated[Event, Tagged(EVENT_TYPES)]`; written as {"kind": ..., "data": {...}}."""

    kinds: Mapping[str, type]


def to_plain(value: object) -> dict[str, Any]:
    """A dataclass of ours as plain values that JSON can hold, for checkpoints and caches. Raises StateError for a value of a wrong type."""
    try:
        plain: dict[str, Any] = codec_of(type(value), Dialect.RECORD).write(value)
    except Mismatch as error:
        raise StateError(f"a {type(value).__name__} cannot be saved: {error}") from error
    return plain


def from_plain(cls: type[T], plain: object) -> T:
    """The inverse of to_plain; raises StateError for what it could not have written."""
    try:
        value: T = codec_of(cls, Dialect.RECORD).read(plain)
    except Mismatch as error:
        raise StateError(f"a saved {cls.__name__} cannot be read: {error}") from error
    return value


def codec_of(kind: Any, dialect: Dialect) -> Codec:
    """The codec of a type, made once. Raises TypeError, with the field, for a type that cannot be written."""
    return _codec(kind, dialect)


@cache  # as a function of its own, because mypy does not take every type for hashable
def _codec(kind: Any, dialect: Dialect) -> Codec:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        tags = [note.kinds for note in parts[1:] if isinstance(note, Tagged)]
        return _tagged(tags[0], dialect) if tags else ranged(codec_of(parts[0], dialect), parts[1:])
    if origin in (Union, UnionType):
        return _union(kind, dialect)
    if origin is Literal:
        return literal(parts)
    if origin is tuple:
        return _tuple(parts, dialect)
    if origin is dict and (parts[0] is str or dialect is Dialect.RECORD):
        return _table(codec_of(parts[1], dialect)) if parts[0] is str else _pairs(_tuple((GenericAlias(tuple, parts), ...), dialect))
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, dialect)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return named(kind, dialect)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        path = simple(kind, "a path", "string", str)
        return replace(path, write=lambda value: str(path.write(value)))
    if kind not in SIMPLE:
        raise TypeError(f"a config or a record cannot hold {kind}")
    return SIMPLE[kind][dialect]


def bare(kind: Any) -> Any:
    """The type without its range and without `| None`."""
    if get_origin(kind) is Annotated:
        return bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        inner = [member for member in get_args(kind) if member is not NoneType]
        return bare(inner[0]) if len(inner) == 1 else kind
    return kind


def field_kinds(cls: type[DataclassInstance]) -> dict[str, Any]:
    """The fields that a dataclass's constructor takes, each with its type."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _union(kind: Any, dialect: Dialect) -> Codec:
    codecs = [codec_of(part, dialect) for part in get_args(kind) if part is not NoneType]
    words = " or ".join(codec.words for codec in codecs)
    members = {form: codec for codec in codecs for form in codec.forms}
    forms, optional = frozenset(members), NoneType in get_args(kind)
    if len(forms) < sum(len(codec.forms) for codec in codecs):
        raise TypeError(f"members of {kind} look alike in a file")
    if optional:
        members["nothing"] = nothing(dialect)
    if "float" in forms:
        members.setdefault("integer", members["float"])
        if dialect is Dialect.RECORD:
            members["string"] = number_or_text(members["float"], members.get("string"))

    def member(value: object) -> Codec:
        try:
            return members[form_of(value)]
        except KeyError:
            raise wrong(words, value) from None

    def write(value: Any) -> Any:
        writer = writers.get(type(value))
        if writer is None:
            writer = writers[type(value)] = member(value).write
        return writer(value)

    writers: dict[type, Callable[[Any], Any]] = {}
    """By class, which says the form."""
    return Codec(words, forms, lambda plain: member(plain).read(plain), write, optional)


def _tuple(kinds: tuple[Any, ...], dialect: Dialect) -> Codec:
    codecs = [codec_of(kind, dialect) for kind in kinds if kind is not Ellipsis]
    size, many = (None, "") if Ellipsis in kinds else (len(kinds), f" of {len(kinds)} values")

    def check(items: Any, container: Any, words: str) -> list[Codec]:
        if isinstance(items, container) and size in (None, len(items)):
            return codecs if size is not None else codecs * len(items)
        raise wrong(words + many, items)

    def read(plain: Any) -> Any:
        each = check(plain, list | tuple, "a list")
        return tuple(inside(index, codec.read, item) for index, (codec, item) in enumerate(zip(each, plain, strict=True)))

    def write(value: Any) -> Any:
        each = check(value, tuple, "a tuple")
        try:
            return [codec.write(item) for codec, item in zip(each, value, strict=True)]
        except Mismatch:
            return [inside(index, codec.write, item) for index, (codec, item) in enumerate(zip(each, value, strict=True))]

    return Codec(f"a list{many}", frozenset({"array"}), read, write)


def _table(item: Codec) -> Codec:
    """A dict with text keys."""

    def each(table: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
        if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
            raise wrong("a table", table)
        try:
            return {key: function(value) for key, value in table.items()}
        except Mismatch:
            return {key: inside(key, function, value) for key, value in table.items()}

    return Codec("a table", frozenset({"table"}), lambda plain: each(plain, item.read), lambda value: each(value, item.write))


def _pairs(pairs: Codec) -> Codec:
    """A dict with other keys."""

    def write(value: Any) -> Any:
        if isinstance(value, dict):
            return pairs.write(tuple(value.items()))
        raise wrong("a dict", value)

    return replace(pairs, read=lambda plain: dict(pairs.read(plain)), write=write)


def _tagged(kinds: Mapping[str, type], dialect: Dialect) -> Codec:
    """A member of a hierarchy, with its kind."""

    def member(kind: str) -> Codec:
        if kind in kinds:
            return codec_of(kinds[kind], dialect)
        raise Mismatch("", f" is of the unknown kind {shown(kind)}; {nearest(kind, kinds)}")

    def read(plain: Any) -> Any:
        if not isinstance(plain, Mapping) or plain.keys() != {"kind", "data"} or not isinstance(plain["kind"], str):
            raise wrong("a kind and its data", plain)
        return inside(plain["kind"], member(plain["kind"]).read, plain["data"])

    known: dict[type, tuple[str, Codec]] = {}

    def write(value: Any) -> Any:
        if (cls := type(value)) not in known:
            kind = next((kind for kind, each in kinds.items() if each is cls), cls.__name__)
            known[cls] = kind, member(kind)
        kind, codec = known[cls]
        return {"kind": kind, "data": inside(kind, codec.write, value)}

    return Codec("a kind and its data", frozenset({"table"}), read, write)


def _record(cls: type[DataclassInstance], dialect: Dialect) -> Codec:
    """A dataclass, as its fields by name."""
    codecs: dict[str, Codec] = {}
    for name, kind in field_kinds(cls).items():
        try:
            codecs[name] = codec_of(kind, dialect)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{name}: {error}") from None
    settings = dialect is Dialect.SETTINGS
    writers = tuple((name, codec.write) for name, codec in codecs.items())
    defaults = {field.name: field.default for field in fields(cls) if (field.default, field.default_factory) != (MISSING, MISSING)}

    def read(plain: Any) -> Any:
        mapping = shallow(plain) if settings and type(plain) is cls else plain
        if not isinstance(mapping, Mapping):
            raise wrong("a table", plain)
        for key in mapping:
            if key not in codecs:
                raise Mismatch("unknown key ", f"; {nearest(str(key), codecs)}", str(key))
        values = {name: inside(name, codec.read, mapping[name]) for name, codec in codecs.items() if name in mapping}
        for name, codec in codecs.items():
            if name not in values and not (settings and name in defaults):
                if not (settings and codec.optional):
                    raise Mismatch("missing key ", f": {codec.words}", name)
                values[name] = None
        try:
            return cls(**values)
        except ValueError as error:
            raise Mismatch("table ", f": {error}") from error

    def write(value: Any) -> Any:
        if type(value) is not cls:
            raise wrong(f"a {cls.__name__}", value)
        if not settings:
            try:
                return {name: write(getattr(value, name)) for name, write in writers}
            except Mismatch:  # once more, to say where: a step of a path for every value would be most of the work
                return {name: inside(name, write, getattr(value, name)) for name, write in writers}
        for name, item in (items := shallow(value)).items():
            if item is None and name in defaults and defaults[name] is not None:
                raise Mismatch("", " is None, which TOML says by leaving the key out, and that means its default", name)
        return {name: inside(name, codecs[name].write, item) for name, item in items.items() if item is not None}

    return Codec("a table", frozenset({"table"}), read, write)


def shallow(value: DataclassInstance) -> dict[str, Any]:
    """What a dataclass's constructor was given."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
