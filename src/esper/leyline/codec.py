"""The one codec: from a Python value and its type to plain values (dict, list, str, int, float, bool, None) and back, strictly.

Known are bool, int, float, str and None; enums, by name; tuples, as lists; dicts, as objects where keys are text and as lists of pairs
elsewhere; Literal; paths, as text; dataclasses, as objects; `Annotated[..., Range(...)]`; `Annotated[Base, Tagged(...)]` for a hierarchy
whose members are written with their kind. A union is read by the form of the value, so its members must have different forms (`int | str`,
never `Path | str`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum, auto
from functools import cache
from pathlib import PurePath
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from esper.leyline.errors import StateError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


class Dialect(Enum):
    """Who writes the plain values."""

    RECORD = auto()
    """Esper itself, as JSON: every key is there, enums have their exact names, and NaN and infinities are the words of `number`."""
    SETTINGS = auto()
    """People, as TOML, which has no None: a key with a default, or for None, is left out. Enums are read in any case, and values may
    also be ready-made. An integer has 64 bits, as TOML's has, and NaN, which passes every comparison that would refuse it, is refused."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """The members of a hierarchy by kind, as in `Annotated[Event, Tagged(EVENT_TYPES)]`; written as {"kind": ..., "data": {...}}."""

    kinds: Mapping[str, type]


class Mismatch(Exception):
    """A value that does not fit its type, as the sentence `before 'place' after`; the path to the place grows on the way out."""

    def __init__(self, before: str, after: str, *path: str | int) -> None:
        super().__init__(before, after)
        self.path: list[str | int] = list(path)

    def __str__(self) -> str:
        before, after = self.args
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")
        return f"{before}{key!r}{after}" if key else after.removeprefix(": ") if before else f"it{after}"


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of one type are written as plain ones and read back. Both raise Mismatch for a value that does not fit."""

    words: str
    """What is expected, for messages."""
    forms: frozenset[str]
    """What the plain values can look like; see `form_of`."""
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    optional: bool = False
    """Whether None is among the values."""


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
        return _tagged(tags[0], dialect) if tags else _ranged(codec_of(parts[0], dialect), parts[1:])
    if origin in (Union, UnionType):
        return _union(kind, dialect)
    if origin is Literal:
        return _literal(parts)
    if origin is tuple:
        return _tuple(parts, dialect)
    if origin is dict and (parts[0] is str or dialect is Dialect.RECORD):
        return _table(codec_of(parts[1], dialect)) if parts[0] is str else _pairs(_tuple((GenericAlias(tuple, parts), ...), dialect))
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, dialect)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, dialect)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        path = _simple(kind, "a path", "string", str)
        return replace(path, write=lambda value: str(path.write(value)))
    if kind not in _SIMPLE:
        raise TypeError(f"a config or a record cannot hold {kind}")
    return _SIMPLE[kind][dialect]


def field_kinds(cls: type[DataclassInstance]) -> dict[str, Any]:
    """The fields that a dataclass's constructor takes, each with its type."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def form_of(value: object) -> str:
    """What a value looks like in a file."""
    cls: Any = type(value)
    return _form(cls)


@cache
def _form(cls: type) -> str:
    if issubclass(cls, str | PurePath | Enum):
        return "string"
    if is_dataclass(cls) or issubclass(cls, Mapping):
        return "table"
    forms = {"boolean": bool, "integer": int, "float": float, "array": list | tuple, "nothing": NoneType}
    return next((form for form, kind in forms.items() if issubclass(cls, kind)), cls.__name__)


def number(value: float) -> float | str:
    """The number as JSON has it, which knows no NaN and no infinities: as words that browsers and databases turn into numbers again."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def wrong(expected: str, found: object) -> Mismatch:
    """The mismatch of a value that is not what was expected."""
    return Mismatch("", f" must be {expected}; found {_shown(found)}")


def inside(step: str | int, function: Callable[[Any], Any], value: Any) -> Any:
    """What the function makes of the value at this step of a path, which a Mismatch then names."""
    try:
        return function(value)
    except Mismatch as error:
        error.path.insert(0, step)
        raise


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        return "an integer of thousands of digits"


def _simple(kind: type, words: str, form: str, *others: type) -> Codec:
    """A type that plain values have themselves."""
    accepted = (kind, *others)

    def checked(value: Any) -> Any:
        if type(value) is kind:
            return value
        # bool is an int and a StrEnum a str to Python; to a reader of the file they are not.
        if isinstance(value, accepted) and not isinstance(value, Enum | bool):
            with suppress(OverflowError):  # an integer that no float can hold
                return kind(value)
        raise wrong(words, value)

    return Codec(words, frozenset({form}), checked, checked)


def _limited(inner: Codec, holds: Callable[[Any], bool], expected: str) -> Codec:
    """The codec, reading only what holds."""

    def read(plain: Any) -> Any:
        if holds(value := inner.read(plain)):
            return value
        raise wrong(expected, plain)

    return replace(inner, read=read)


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _recorded(inner: Codec) -> Codec:
    """Floats with words for those that JSON has not; digits that no float can hold are damage."""
    finite = _limited(inner, math.isfinite, "a number that a float can hold")

    def write(value: Any) -> Any:
        return value if type(value) is float and math.isfinite(value) else number(inner.write(value))

    return replace(
        inner, read=lambda plain: _WORDS[plain] if isinstance(plain, str) and plain in _WORDS else finite.read(plain), write=write
    )


_BOOL, _INT, _TEXT = _simple(bool, "true or false", "boolean"), _simple(int, "an integer", "integer"), _simple(str, "text", "string")
_FLOAT = _simple(float, "a number", "float", int)
_INT64 = _limited(_INT, lambda value: -(2**63) <= value < 2**63, "an integer that 64 bits can hold")
_SIMPLE: dict[Any, dict[Dialect, Codec]] = {
    bool: {Dialect.RECORD: _BOOL, Dialect.SETTINGS: _BOOL},
    int: {Dialect.RECORD: _INT, Dialect.SETTINGS: _INT64},
    float: {Dialect.RECORD: _recorded(_FLOAT), Dialect.SETTINGS: _limited(_FLOAT, lambda value: not math.isnan(value), "a number")},
    str: {Dialect.RECORD: _TEXT, Dialect.SETTINGS: _TEXT},
}


def _ranged(inner: Codec, notes: tuple[object, ...]) -> Codec:
    ranges = [note for note in notes if isinstance(note, Range)]
    words = ", ".join([inner.words, *map(str, ranges)])

    def read(plain: Any) -> Any:
        nan = isinstance(plain, float) and math.isnan(plain)
        value = None if nan else inner.read(plain)
        if nan or (value is not None and not all(each.holds(value) for each in ranges)):
            raise wrong(words, plain)
        return value

    return replace(inner, words=words, read=read)


def _enum(kind: type[Enum], dialect: Dialect) -> Codec:
    words = "one of " + ", ".join(kind.__members__)
    fold = str.casefold if dialect is Dialect.SETTINGS else str
    members = {fold(name): member for name, member in kind.__members__.items()}

    def read(plain: Any) -> Any:
        if isinstance(plain, kind) and dialect is Dialect.SETTINGS:
            return plain
        if not isinstance(plain, str) or isinstance(plain, Enum):
            raise wrong(words, plain)
        if fold(plain) not in members:
            raise Mismatch("", f" must be {words}; found {_shown(plain)}, {nearest(plain, kind.__members__)}")
        return members[fold(plain)]

    def write(value: Any) -> Any:
        if isinstance(value, kind):
            return value.name
        raise wrong(f"a {kind.__name__}", value)

    return Codec(words, frozenset({"string"}), read, write)


def _literal(options: tuple[object, ...]) -> Codec:
    words = "one of " + ", ".join(map(repr, options))

    def checked(value: Any) -> Any:
        if any(type(option) is type(value) and option == value for option in options):
            return value
        raise wrong(words, value)

    return Codec(words, frozenset(map(form_of, options)), checked, checked)


def _union(kind: Any, dialect: Dialect) -> Codec:
    codecs = [codec_of(part, dialect) for part in get_args(kind) if part is not NoneType]
    words = " or ".join(codec.words for codec in codecs)
    members = {form: codec for codec in codecs for form in codec.forms}
    forms, optional = frozenset(members), NoneType in get_args(kind)
    if len(forms) < sum(len(codec.forms) for codec in codecs):
        raise TypeError(f"members of {kind} look alike in a file")
    if optional:
        members["nothing"] = _nothing(dialect)
    if "float" in forms:
        members.setdefault("integer", members["float"])
        if dialect is Dialect.RECORD:
            members["string"] = _number_or_text(members["float"], members.get("string"))

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


def _nothing(dialect: Dialect) -> Codec:
    def write(value: None) -> None:
        if dialect is Dialect.SETTINGS:
            raise Mismatch("", " is None, and TOML has no word for that in a list or a table of values")

    return Codec("nothing", frozenset({"nothing"}), lambda plain: None, write)


def _number_or_text(decimal: Codec, text: Codec | None) -> Codec:
    """Text where a record may hold a float: the words of NaN and infinities are numbers, and never text."""
    if text is None:
        return decimal

    def write(value: str) -> Any:
        if value in _WORDS:
            raise Mismatch("", f" is the text {value!r}, which would be read back as a number")
        return text.write(value)

    return replace(text, read=lambda plain: (decimal if plain in _WORDS else text).read(plain), write=write)


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
        raise Mismatch("", f" is of the unknown kind {_shown(kind)}; {nearest(kind, kinds)}")

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
