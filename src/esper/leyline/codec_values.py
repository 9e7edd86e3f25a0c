"""Codecs of single values: numbers, text, enums and choices, as a record or a config file has them; and what all codecs share."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum, auto
from functools import cache
from pathlib import PurePath
from types import NoneType
from typing import Any

from esper.leyline.errors import nearest


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
    return Mismatch("", f" must be {expected}; found {shown(found)}")


def inside(step: str | int, function: Callable[[Any], Any], value: Any) -> Any:
    """What the function makes of the value at this step of a path, which a Mismatch then names."""
    try:
        return function(value)
    except Mismatch as error:
        error.path.insert(0, step)
        raise


def shown(value: object) -> str:
    """A value in a message, however large it is."""
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        return "an integer of thousands of digits"


def simple(kind: type, words: str, form: str, *others: type) -> Codec:
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


def limited(inner: Codec, holds: Callable[[Any], bool], expected: str) -> Codec:
    """The codec, reading only what holds."""

    def read(plain: Any) -> Any:
        if holds(value := inner.read(plain)):
            return value
        raise wrong(expected, plain)

    return replace(inner, read=read)


WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""What stands in a record for numbers that JSON has not."""


def _recorded(inner: Codec) -> Codec:
    """Floats with words for those that JSON has not; digits that no float can hold are damage."""
    finite = limited(inner, math.isfinite, "a number that a float can hold")

    def write(value: Any) -> Any:
        return value if type(value) is float and math.isfinite(value) else number(inner.write(value))

    return replace(inner, read=lambda plain: WORDS[plain] if isinstance(plain, str) and plain in WORDS else finite.read(plain), write=write)


_BOOL, _INT, _TEXT = simple(bool, "true or false", "boolean"), simple(int, "an integer", "integer"), simple(str, "text", "string")
_FLOAT = simple(float, "a number", "float", int)
_INT64 = limited(_INT, lambda value: -(2**63) <= value < 2**63, "an integer that 64 bits can hold")
SIMPLE: dict[Any, dict[Dialect, Codec]] = {
    bool: {Dialect.RECORD: _BOOL, Dialect.SETTINGS: _BOOL},
    int: {Dialect.RECORD: _INT, Dialect.SETTINGS: _INT64},
    float: {Dialect.RECORD: _recorded(_FLOAT), Dialect.SETTINGS: limited(_FLOAT, lambda value: not math.isnan(value), "a number")},
    str: {Dialect.RECORD: _TEXT, Dialect.SETTINGS: _TEXT},
}
"""Types that plain values have themselves, by dialect."""


def ranged(inner: Codec, notes: tuple[object, ...]) -> Codec:
    """The codec, reading only what is inside of the ranges among these notes."""
    ranges = [note for note in notes if isinstance(note, Range)]
    words = ", ".join([inner.words, *map(str, ranges)])

    def read(plain: Any) -> Any:
        nan = isinstance(plain, float) and math.isnan(plain)
        value = None if nan else inner.read(plain)
        if nan or (value is not None and not all(each.holds(value) for each in ranges)):
            raise wrong(words, plain)
        return value

    return replace(inner, words=words, read=read)


def named(kind: type[Enum], dialect: Dialect) -> Codec:
    """An enum, by the names of its members."""
    words = "one of " + ", ".join(kind.__members__)
    fold = str.casefold if dialect is Dialect.SETTINGS else str
    members = {fold(name): member for name, member in kind.__members__.items()}

    def read(plain: Any) -> Any:
        if isinstance(plain, kind) and dialect is Dialect.SETTINGS:
            return plain
        if not isinstance(plain, str) or isinstance(plain, Enum):
            raise wrong(words, plain)
        if fold(plain) not in members:
            raise Mismatch("", f" must be {words}; found {shown(plain)}, {nearest(plain, kind.__members__)}")
        return members[fold(plain)]

    def write(value: Any) -> Any:
        if isinstance(value, kind):
            return value.name
        raise wrong(f"a {kind.__name__}", value)

    return Codec(words, frozenset({"string"}), read, write)


def literal(options: tuple[object, ...]) -> Codec:
    """One of these values and no other."""
    words = "one of " + ", ".join(map(repr, options))

    def checked(value: Any) -> Any:
        if any(type(option) is type(value) and option == value for option in options):
            return value
        raise wrong(words, value)

    return Codec(words, frozenset(map(form_of, options)), checked, checked)


def nothing(dialect: Dialect) -> Codec:
    """None, which TOML cannot say."""

    def write(value: None) -> None:
        if dialect is Dialect.SETTINGS:
            raise Mismatch("", " is None, and TOML has no word for that in a list or a table of values")

    return Codec("nothing", frozenset({"nothing"}), lambda plain: None, write)


def number_or_text(decimal: Codec, text: Codec | None) -> Codec:
    """Text where a record may hold a float: the words of NaN and infinities are numbers, and never text."""
    if text is None:
        return decimal

    def write(value: str) -> Any:
        if value in WORDS:
            raise Mismatch("", f" is the text {value!r}, which would be read back as a number")
        return text.write(value)

    return replace(text, read=lambda plain: (decimal if plain in WORDS else text).read(plain), write=write)
