"""Spaces to search in: for each key of a config a range of numbers or a list of values, written as a person types them.

    0.001..0.1        any number from one to the other, each as likely; whole numbers where the setting is one
    0.001..0.1:log    the same, each order of magnitude as likely
    0.1,0.2,0.5       these values; names and true,false likewise; for a setting that is a list, lists: [4,8],[8,16]

A key is dotted, as in `leyline.config.replace_fields`. Every value that can be drawn is one that the config takes.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from itertools import product
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from esper.leyline.codec import bare, field_kinds
from esper.leyline.codec_values import Range
from esper.leyline.config import replace_fields
from esper.leyline.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

DIGITS = 4
"""Significant digits of a number that is drawn from a range: more would be noise that nobody wants to read."""
WIDE = 16.0
"""A range of positive numbers whose ends differ by so large a factor is searched by orders of magnitude, where nobody says otherwise."""
AROUND = 4.0
"""A number without bounds is searched from its default divided by this to its default times this, where nobody says otherwise."""
CHECKED = 1000
"""A range of at most so many whole numbers is checked number by number, a longer one at its ends."""
FORMS = "LOW..HIGH, LOW..HIGH:log or A,B,C"


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers from low to high, both included. log: by orders of magnitude. whole: integers alone."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float:
        """The number that so large a share of the span, in [0, 1), lies below."""
        high = self.high + 1 if self.whole else self.high
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(high) - math.log(self.low)))
        else:
            value = self.low + share * (high - self.low)
        return self.fitting(value)

    def fitting(self, value: float) -> float:
        """The number as it is tried: whole or with few digits, and inside."""
        near: float = math.floor(value + 1e-9) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(near, self.low), self.high)

    def ends(self) -> tuple[float, ...]:
        """What is checked of it: every number where there are few, else both ends."""
        if self.whole and self.high - self.low < CHECKED:
            return tuple(range(int(self.low), int(self.high) + 1))
        return (self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


@dataclass(frozen=True, slots=True)
class Choices:
    """These values and no others, each as likely."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value that so large a share of them, in [0, 1), comes before."""
        return self.values[int(share * len(self.values))]

    def ends(self) -> tuple[Any, ...]:
        """What is checked of them: all."""
        return self.values

    def __str__(self) -> str:
        return ",".join(value if isinstance(value, str) and "," not in value else json.dumps(value) for value in self.values)


Space = dict[str, Span | Choices]
"""By key, what its value is drawn from."""


def read_space(config: DataclassInstance, texts: Mapping[str, str], source: str) -> Space:
    """The space that these texts describe around a config.

    source: what messages name as the place. Raises ConfigError for a key that the config does not have, an empty or reversed range, and a
    value that the config refuses.
    """
    if not texts:
        raise ConfigError(f"{source}: there is nothing to search; expected KEY=VALUES with values as {FORMS}")
    space: Space = {}
    for key, text in texts.items():
        kind = _kind_at(config, key, source)
        space[key] = entry = _span(text, kind, key, source) or _choices(text, kind, key, source)
        for value in entry.ends():
            replace_fields(config, {key: value}, source)
    return space


def default_space(config: DataclassInstance) -> dict[str, str]:
    """What can be searched of a config that names no space of its own: numbers, switches and choices from a list, as texts."""
    texts: dict[str, str] = {}
    for key, kind in field_kinds(type(config)).items():
        plain, value = bare(kind), getattr(config, key)
        if plain is bool:
            texts[key] = "true,false"
        elif isinstance(plain, type) and issubclass(plain, Enum):
            texts[key] = ",".join(plain.__members__)
        elif get_origin(plain) is Literal and all(isinstance(option, str) for option in get_args(plain)) and len(get_args(plain)) > 1:
            texts[key] = ",".join(get_args(plain))
        elif plain in (int, float) and value is not None:
            span = _span_around(kind, value, whole=plain is int)
            if span is not None:
                texts[key] = str(span)
    return texts


def _span_around(kind: Any, value: float, whole: bool) -> Span | None:
    """The span of a number by its bounds, or around its default; None for a number of which neither says anything."""
    lows = [note.low for note in _notes(kind) if note.low is not None]
    highs = [note.high for note in _notes(kind) if note.high is not None]
    if lows and highs and math.isfinite(max(lows)) and math.isfinite(min(highs)):
        low, high = max(lows), min(highs)
    elif value > 0:
        low, high = max([value / AROUND, *lows]), min([value * AROUND, *highs])
    else:
        return None
    if whole:
        low, high = math.ceil(low), math.floor(high)
    return Span(low, high, log=low > 0 and high / low >= WIDE, whole=whole) if low < high else None


def size(space: Space) -> float:
    """How many different points there are; infinity where a number may be any of a range."""
    count = 1.0
    for entry in space.values():
        if isinstance(entry, Choices):
            count *= len(entry.values)
        else:
            count *= entry.high - entry.low + 1 if entry.whole else math.inf
    return count


def grid(space: Space, source: str) -> list[dict[str, Any]]:
    """Every combination of values, the last key changing fastest. Raises ConfigError for a range, which has no end of them."""
    for key, entry in space.items():
        if isinstance(entry, Span):
            raise ConfigError(f"{source}: {key!r} is the range {entry}, of which a grid has no end; give values as A,B,C, or --points N")
    return [dict(zip(space, values, strict=True)) for values in product(*(entry.ends() for entry in space.values()))]


def _span(text: str, kind: Any, key: str, source: str) -> Span | None:
    """The range that a text describes; None for a list of values."""
    match = re.fullmatch(r"\s*([^,]*?)\s*\.\.\s*([^,]*?)\s*(?::(.*))?", text)
    number = bare(kind)
    if match is None or number is str:
        return None
    if number not in (int, float):
        raise ConfigError(f"{source}: {key!r} is not a number, and has no range {text}; expected values as A,B,C")
    low, high, scale = match.groups()
    if scale not in (None, "log"):
        raise ConfigError(f"{source}: {key!r} has the range {text}, and no scale {scale!r} is known; expected {FORMS}")
    try:
        span = Span(number(low), number(high), log=scale == "log", whole=number is int)
    except ValueError:
        words = "whole numbers" if number is int else "numbers"
        raise ConfigError(f"{source}: {key!r} has the range {text}; expected {words} as LOW..HIGH") from None
    if not (math.isfinite(span.low) and math.isfinite(span.high)):
        raise ConfigError(f"{source}: {key!r} has the range {text}; expected ends that are finite")
    if span.low >= span.high:
        what = "reversed" if span.low > span.high else "a single value"
        raise ConfigError(f"{source}: {key!r} has the range {text}, which is {what}; expected LOW..HIGH with the lower number first")
    if span.log and span.low <= 0:
        raise ConfigError(f"{source}: {key!r} has the range {text}; orders of magnitude need a low end above 0")
    return span


def _choices(text: str, kind: Any, key: str, source: str) -> Choices:
    """The values that a text lists."""
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        values = [part.strip() for part in text.split(",") if part.strip()]
    if not values:
        raise ConfigError(f"{source}: {key!r} has no values; expected {FORMS}")
    if bare(kind) is str:
        values = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return Choices(tuple(values))


def _kind_at(config: DataclassInstance, key: str, source: str) -> Any:
    """The type of the setting with this dotted key. Raises ConfigError, with the nearest name, for one that does not exist."""
    kind: Any = type(config)
    for part in key.split("."):
        table = bare(kind)
        if get_origin(table) is dict:
            kind = get_args(table)[1]
            continue
        known = field_kinds(table) if isinstance(table, type) and is_dataclass(table) else {}
        if part not in known:
            replace_fields(config, {key: None}, source)  # which says what is wrong, and what is near
            raise ConfigError(f"{source}: there is no setting {key!r}")
        kind = known[part]
    if is_dataclass(bare(kind)):
        inner = ", ".join(f"{key}.{name}" for name in field_kinds(bare(kind)))
        raise ConfigError(f"{source}: {key!r} is a table of settings; expected one of them: {inner}")
    return kind


def _notes(kind: Any) -> list[Range]:
    """The ranges that a type is annotated with."""
    if get_origin(kind) is Annotated:
        return [note for note in get_args(kind)[1:] if isinstance(note, Range)] + _notes(get_args(kind)[0])
    return [note for member in get_args(kind) for note in _notes(member)] if get_origin(kind) in (Union, UnionType) else []
