"""A config survives the way through TOML, and every mistake in a file is named with its place."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.config import Range, check_ranges, from_mapping, load, replace_fields, to_toml
from esper.leyline.errors import ConfigError


class Colour(Enum):
    RED = "r"
    DARK_GREEN = "g"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: float = 0.0
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    margin: float = 0.0
    table: dict[str, float] = field(default_factory=dict)
    several: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    epochs: Annotated[int, Range(1, None)]
    rate: Annotated[float, Range(0.0, 1.0)] = 0.1
    patience: Annotated[int, Range(0)] | None = None
    shares: tuple[Annotated[float, Range(0, 1)], ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.epochs == 13:
            raise ValueError("thirteen epochs bring bad luck")


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    count: int
    rate: float
    flag: bool
    name: str
    path: Path
    colour: Colour
    level: Level
    word: Word
    inner: Inner
    maybe: int | None
    maybe_inner: Inner | None = None
    numbers: tuple[int, ...] = ()
    nested: tuple[tuple[str, ...], ...] = ()
    pair: tuple[str, float] = ("", 0.0)
    points: tuple[Point, ...] = ()
    table: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Point] = field(default_factory=dict)
    choice: Literal["fast", "slow", 3] = "fast"
    mixed: int | float | bool | str | tuple[int, ...] = 0
    auto: Literal["auto"] | float | None = None


finite = st.floats(allow_nan=False)
integers = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
points = st.builds(Point, x=finite, label=st.none() | text)
inners = st.builds(
    Inner,
    epochs=st.integers(1, 2**63 - 1).filter(lambda epochs: epochs != 13),
    rate=st.floats(0, 1),
    patience=st.none() | st.integers(0, 2**63 - 1),
    shares=st.lists(st.floats(0, 1)).map(tuple),
)
everythings = st.builds(
    Everything,
    count=integers,
    rate=finite,
    flag=st.booleans(),
    name=text,
    path=text.map(Path),
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    word=st.sampled_from(Word),
    inner=inners,
    maybe=st.none() | integers,
    maybe_inner=st.none() | inners,
    numbers=st.lists(integers).map(tuple),
    nested=st.lists(st.lists(text).map(tuple)).map(tuple),
    pair=st.tuples(text, finite),
    points=st.lists(points).map(tuple),
    table=st.dictionaries(text, finite),
    tables=st.dictionaries(text, points),
    choice=st.sampled_from(["fast", "slow", 3]),
    mixed=integers | finite | st.booleans() | text | st.lists(integers).map(tuple),
    auto=st.none() | st.just("auto") | finite,
)


def plain(**changes: Any) -> dict[str, Any]:
    """A mapping that loads as Everything, with some keys changed; a change to None takes the key out."""
    base: dict[str, Any] = {"count": 1, "rate": 0.5, "flag": True, "name": "n", "path": "p", "colour": "RED", "level": "LOW", "word": "YES"}
    mapping = base | {"inner": {"epochs": 2}} | changes
    return {key: value for key, value in mapping.items() if value is not None}


def refusal(mapping: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(Everything, mapping, source="run.toml")
    message = str(caught.value)
    assert message.startswith("run.toml: ")
    assert "\n" not in message
    return message


@given(config=everythings)
def test_toml_reads_back_to_an_equal_object_of_equal_types(config: Everything, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    back = load(Everything, path)
    assert back == config
    # 1, 1.0 and True are equal to Python, -0.0 and 0.0 too; repr tells them apart.
    assert repr(back.mixed) == repr(config.mixed)
    assert repr(back.rate) == repr(config.rate)
    assert type(back.word) is Word
    assert to_toml(back) == to_toml(config)


def test_nan_is_no_setting(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("margin = nan\n")
    with pytest.raises(ConfigError, match=r"run.toml: .*'margin' must be a number; found nan"):
        load(Loose, tmp_path / "run.toml")
    for settings in ({"margin": math.nan}, {"table": {"a": 1.0, "b": math.nan}}, {"several": (math.nan, 1.0)}):
        with pytest.raises(ConfigError, match=r"must be a .*; found .*nan"):
            Loose(**settings)


@pytest.mark.parametrize("word", ["inf", "-inf"])
def test_infinite_floats_survive_where_a_float_is_meant_and_nowhere_else(word: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(to_toml(Point(x=float(word))), encoding="utf-8")
    assert (tmp_path / "run.toml").read_text() == f"x = {word}\n"
    assert repr(load(Point, tmp_path / "run.toml").x) == word
    assert "'count' must be an integer; found" in refusal(plain(count=float(word)))


def test_an_integer_is_taken_for_a_float_and_becomes_one() -> None:
    config = from_mapping(Everything, plain(rate=2, auto=3))
    assert [repr(config.rate), repr(config.auto)] == ["2.0", "3.0"]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("count", True, "'count' must be an integer; found true"),
        ("count", 1.0, "'count' must be an integer; found 1.0"),
        ("count", "1", "'count' must be an integer; found '1'"),
        ("count", Level.LOW, "'count' must be an integer; found"),
        ("count", 2**63, "'count' must be an integer that 64 bits can hold; found 9223372036854775808"),
        ("count", -(2**63) - 1, "'count' must be an integer that 64 bits can hold; found -9223372036854775809"),
        ("rate", False, "'rate' must be a number; found false"),
        ("rate", "fast", "'rate' must be a number; found 'fast'"),
        ("rate", 10**400, "'rate' must be a number; found"),
        ("flag", 1, "'flag' must be true or false; found 1"),
        ("flag", "true", "'flag' must be true or false; found 'true'"),
        ("name", 3, "'name' must be text; found 3"),
        ("name", Word.YES, "'name' must be text; found"),
        ("path", 3, "'path' must be a path; found 3"),
        ("colour", "r", "'colour' must be one of RED, DARK_GREEN; found 'r'"),
        ("colour", "DARK_GREN", "did you mean 'DARK_GREEN'?"),
        ("level", 1, "'level' must be one of LOW, HIGH; found 1"),
        ("inner", 3, "'inner' must be a table; found 3"),
        ("maybe", "x", "'maybe' must be an integer; found 'x'"),
        ("numbers", 3, "'numbers' must be a list; found 3"),
        ("numbers", [1, 2, "x"], "'numbers[2]' must be an integer; found 'x'"),
        ("nested", [["a"], [1]], "'nested[1][0]' must be text; found 1"),
        ("pair", ["a"], "'pair' must be a list of 2 values; found ['a']"),
        ("points", [{"x": 1, "y": 2}], "unknown key 'points[0].y'"),
        ("table", {"a": "b"}, "'table.a' must be a number; found 'b'"),
        ("tables", {"a": {"x": "b"}}, "'tables.a.x' must be a number; found 'b'"),
        ("choice", "medium", "'choice' must be one of 'fast', 'slow', 3; found 'medium'"),
        ("choice", True, "'choice' must be one of 'fast', 'slow', 3; found true"),
        ("choice", 3.0, "'choice' must be one of 'fast', 'slow', 3; found 3.0"),
        ("mixed", {}, "'mixed' must be an integer or a number or true or false or text or a list; found {}"),
        ("auto", "manual", "'auto' must be one of 'auto'; found 'manual'"),
        ("auto", True, "'auto' must be one of 'auto' or a number; found true"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_key_expected_and_found(key: str, value: object, expected: str) -> None:
    assert expected in refusal(plain(**{key: value}))


@pytest.mark.parametrize("spelling", ["DARK_GREEN", "dark_green", "Dark_Green"])
def test_an_enum_is_read_by_name_in_any_case(spelling: str) -> None:
    assert from_mapping(Everything, plain(colour=spelling)).colour is Colour.DARK_GREEN
    assert from_mapping(Everything, plain(level="high")).level is Level.HIGH


def test_an_unknown_key_is_refused_with_its_dotted_key_and_the_nearest_name() -> None:
    assert refusal(plain(cuont=1)) == "run.toml: unknown key 'cuont'; did you mean 'count'?"
    assert refusal(plain(inner={"epochs": 2, "patiense": 1})) == "run.toml: unknown key 'inner.patiense'; did you mean 'patience'?"


def test_a_missing_required_key_is_named_and_a_missing_optional_one_is_none() -> None:
    assert refusal(plain(count=None)) == "run.toml: missing key 'count': an integer"
    assert refusal(plain(inner={})) == "run.toml: missing key 'inner.epochs': an integer, at least 1"
    assert from_mapping(Everything, plain()).maybe is None


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"epochs": 0}, "'inner.epochs' must be an integer, at least 1; found 0"),
        ({"epochs": 1, "rate": 1.5}, "'inner.rate' must be a number, from 0 to 1; found 1.5"),
        ({"epochs": 1, "rate": math.nan}, "'inner.rate' must be a number, from 0 to 1; found nan"),
        ({"epochs": 1, "patience": -1}, "'inner.patience' must be an integer, at least 0; found -1"),
        ({"epochs": 1, "shares": [0, 2]}, "'inner.shares[1]' must be a number, from 0 to 1; found 2"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_bounds(table: dict[str, Any], expected: str) -> None:
    assert refusal(plain(inner=table)) == f"run.toml: {expected}"
    with pytest.raises(ConfigError, match="Inner: "):
        Inner(**table)


def test_the_bounds_themselves_are_inside() -> None:
    assert Inner(epochs=1, rate=0.0, patience=0, shares=(0.0, 1.0)).rate == 0.0
    assert [str(Range(None, 3.0)), str(Range(0.25, 1))] == ["at most 3", "from 0.25 to 1"]


@pytest.mark.parametrize("bounds", [(2, 1), (None, None), (math.nan, 1)])
def test_a_range_without_room_is_refused(bounds: tuple[float | None, float | None]) -> None:
    with pytest.raises(ValueError, match="Range"):
        Range(*bounds)


def test_an_objection_of_the_dataclass_itself_is_reported_with_file_and_table() -> None:
    assert refusal(plain(inner={"epochs": 13})) == "run.toml: table 'inner': thirteen epochs bring bad luck"


def test_a_syntax_error_is_reported_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for content, line in [("count = 1\nrate = = 2\n", 2), ("count = 1\nname = 'open", 2), ("a = [1,\n2,\n", 3)]:
        path.write_text(content)
        with pytest.raises(ConfigError, match=rf"run\.toml: not valid TOML: .*line {line}\b"):
            load(Everything, path)


def test_a_file_that_cannot_be_read_gives_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no config file at .*absent\.toml$"):
        load(Everything, tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory$"):
        load(Everything, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match=r"latin\.toml: not a TOML file, byte 8 is not UTF-8"):
        load(Everything, tmp_path / "latin.toml")


HUGE = "0x" + "f" * 5000
HOSTILE = {
    "deep lists": ("count = " + "[" * 100_000, "cannot be read: its lists and tables are nested too deeply"),
    "deep tables": ("count = " + "{a = " * 100_000, "cannot be read: its lists and tables are nested too deeply"),
    "deep keys": (f"[{'.'.join(['a'] * 3000)}]", "unknown key 'a'"),
    "an integer that Python does not read": ("count = " + "9" * 5000, "cannot be read: it has an integer of thousands of digits"),
    "an integer that Python does not write": (f"count = {HUGE}", "'count' must be an integer that 64 bits can hold; found an integer of"),
    "such an integer for text": (f"name = [{HUGE}]", "'name' must be text; found an integer of thousands of digits"),
    "such an integer for a number": (f"rate = {HUGE}", "'rate' must be a number; found an integer of thousands of digits"),
    "an integer that no float can hold": ("rate = " + "9" * 4000, "'rate' must be a number; found 99999"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[what]
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(Everything, tmp_path / "run.toml")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < len(str(tmp_path)) + 500


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")  # nobody writes to it, so opening it in the usual way would wait for ever
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=rf"^{path}: cannot be read: Not a regular file$"):
            load(Everything, path)


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 2500], ids=["a name", "a path"])
def test_a_path_that_is_too_long_is_refused_in_a_sentence(path: str) -> None:
    with pytest.raises(ConfigError, match=r": cannot be read: File name too long$"):
        load(Everything, path)


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfx = 2.0\n")
    assert load(Point, tmp_path / "run.toml") == Point(x=2.0)


def test_text_that_is_no_utf_8_is_refused_when_written() -> None:
    with pytest.raises(ConfigError, match="label"):
        to_toml(Point(label="\ud800"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsayable:
    limit: int | None = 5
    items: tuple[int | None, ...] = ()
    table: dict[str, int | None] = field(default_factory=dict)


@pytest.mark.parametrize("config", [Unsayable(limit=None), Unsayable(items=(1, None)), Unsayable(table={"a": None})])
def test_a_none_that_would_be_lost_is_refused_when_written(config: Unsayable) -> None:
    with pytest.raises(ConfigError, match="None"):
        to_toml(config)


def test_a_value_of_the_wrong_type_is_refused_when_written() -> None:
    with pytest.raises(ConfigError, match="Point: 'x' must be a number; found 'far'"):
        to_toml(Point(x="far"))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    where: Path | str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    items: tuple[list[int], ...] = ()


@pytest.mark.parametrize(("cls", "name"), [(Alike, "Alike.where"), (Foreign, "Foreign.items")])
def test_a_dataclass_that_no_file_can_hold_is_a_mistake_of_its_author(cls: type[Any], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        from_mapping(cls, {})


def test_replace_fields_changes_what_it_names_and_nothing_else() -> None:
    config = from_mapping(Everything, plain(table={"a": 1.0}))
    changed = replace_fields(config, {"inner.epochs": 9, "colour": Colour.DARK_GREEN, "table.b": 2, "maybe_inner.epochs": 4, "count": 3})
    assert changed == from_mapping(
        Everything, plain(inner={"epochs": 9}, colour="dark_green", table={"a": 1.0, "b": 2.0}, maybe_inner={"epochs": 4}, count=3)
    )
    assert config == from_mapping(Everything, plain(table={"a": 1.0}))


def test_replace_fields_can_take_an_optional_value_away_and_put_a_whole_table_in() -> None:
    config = from_mapping(Everything, plain(maybe=3))
    assert replace_fields(config, {"maybe": None}).maybe is None
    assert replace_fields(config, {"inner": Inner(epochs=7), "inner.rate": 0.2}).inner == Inner(epochs=7, rate=0.2)


@given(config=everythings)
def test_replace_fields_with_nothing_gives_an_equal_config(config: Everything) -> None:
    assert replace_fields(config, {}) == config


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")


def test_replace_fields_checks_after_all_changes_are_made() -> None:
    assert replace_fields(Ordered(), {"low": 5, "high": 6}) == Ordered(low=5, high=6)
    with pytest.raises(ConfigError, match=r"^flags: low \(5\) must be below high \(1\)$"):
        replace_fields(Ordered(), {"low": 5}, source="flags")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("iner.epochs", 3, "unknown key 'iner'; did you mean 'inner'?"),
        ("inner.epoch", 3, "unknown key 'inner.epoch'; did you mean 'epochs'?"),
        ("count.x", 3, "cannot set 'count.x': 'count' is not a table"),
        ("inner.epochs", True, "'inner.epochs' must be an integer; found true"),
        ("count", None, "'count' must be an integer; found nothing"),
    ],
)
def test_replace_fields_refuses_what_the_loader_refuses(key: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace_fields(from_mapping(Everything, plain()), {key: value}, source="flags")
    assert str(caught.value) == f"flags: {expected}"
