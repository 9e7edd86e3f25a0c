"""Spaces: what a person types becomes values that the config takes, and what does not is told in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Style
from esper.leyline.config import Range, Share, check_ranges, replace_fields
from esper.leyline.errors import ConfigError
from esper.leyline.space import Choices, Span, default_space, grid, read_space, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    rate: Annotated[float, Range(0.0)] = 0.1
    tempo: int = 3

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.tempo not in (3, 5):
            raise ConfigError(f"tempo is {self.tempo}; expected 3 or 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    rounds: Annotated[int, Range(1, 1000)] = 10
    share: Share = 0.5
    free: float = 2.0
    nought: float = 0.0
    way: Literal["this", "that"] = "this"
    style: Style = Style.GATED
    on: bool = True
    widths: tuple[int, ...] = (4, 8)
    name: str = ""
    fix: dict[str, str] = field(default_factory=dict)
    limit: Annotated[int, Range(1)] | None = None
    inner: Inner = field(default_factory=Inner)


def space_of(text: str) -> Span | Choices:
    key, _, values = text.partition("=")
    return read_space(Outer(), {key: values}, "here")[key]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("share=0.1..0.5", Span(0.1, 0.5)),
        ("inner.rate=0.001..0.1:log", Span(0.001, 0.1, log=True)),
        ("rounds=2..8", Span(2, 8, whole=True)),
        ("free=-3..3", Span(-3.0, 3.0)),
        ("limit=1..4", Span(1, 4, whole=True)),
        ("share=0.1,0.2", Choices((0.1, 0.2))),
        ("way=this,that", Choices(("this", "that"))),
        ("style=gated, LINEAR_ADD", Choices(("gated", "LINEAR_ADD"))),
        ("on=true,false", Choices((True, False))),
        ("widths=[4,8],[8]", Choices(([4, 8], [8]))),
        ("inner.tempo=3,5", Choices((3, 5))),
        ("fix.kernel=1,3", Choices(("1", "3"))),
        ("fix.widths=[2,2],[4]", Choices(("[2, 2]", "[4]"))),
        ("name=../a,b", Choices(("../a", "b"))),
    ],
)
def test_what_is_typed_is_read_and_is_written_to_be_read_again(text: str, entry: Span | Choices) -> None:
    found = space_of(text)
    assert found == entry
    key = text.partition("=")[0]
    assert space_of(f"{key}={found}") == entry
    for value in (entry.at(0.0), entry.at(0.5), entry.at(1 - 1e-12)):
        replace_fields(Outer(), {key: value})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shar=0..1", "here: unknown key 'shar'; did you mean 'share'?"),
        ("inner.rat=0..1", "here: unknown key 'inner.rat'; did you mean 'rate'?"),
        ("share.x=1,2", "here: cannot set 'share.x': 'share' is not a table"),
        ("inner=1,2", "'inner' is a table of settings; expected one of them: inner.rate, inner.tempo"),
        ("share=0.5..0.1", "'share' has the range 0.5..0.1, which is reversed; expected LOW..HIGH"),
        ("share=0.5..0.5", "'share' has the range 0.5..0.5, which is a single value"),
        ("share=", "'share' has no values; expected LOW..HIGH, LOW..HIGH:log or A,B,C"),
        ("share=,", "'share' has no values"),
        ("share=0..2", "'share' must be a number, from 0 to 1; found 2.0"),
        ("share=0.1,2", "'share' must be a number, from 0 to 1; found 2"),
        ("share=0..1:log", "orders of magnitude need a low end above 0"),
        ("share=0.1..1:lin", "no scale 'lin' is known"),
        ("free=1..inf", "expected ends that are finite"),
        ("free=nan..1", "expected ends that are finite"),
        ("rounds=1.5..3", "expected whole numbers as LOW..HIGH"),
        ("rounds=0..3", "'rounds' must be an integer, from 1 to 1000; found 0"),
        ("inner.tempo=3..5", "tempo is 4; expected 3 or 5"),
        ("way=this..that", "'way' is not a number, and has no range this..that; expected values as A,B,C"),
        ("way=this,tha", "'way' must be one of 'this', 'that'; found 'tha'"),
        ("style=gatd", "did you mean 'GATED'?"),
    ],
)
def test_what_cannot_be_searched_is_told_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        space_of(text)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is nothing to search"):
        read_space(Outer(), {}, "here")


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_whole_numbers_stay_inside_and_are_all_reached(share: float, low: int, more: int, log: bool) -> None:
    span = Span(low, low + more, log=log, whole=True)
    value = span.at(share)
    assert isinstance(value, int)
    assert low <= value <= low + more
    assert {span.at(step / 5000) for step in range(5000)} == set(range(low, low + more + 1))


@given(st.floats(0, 1, exclude_max=True))
def test_numbers_have_few_digits_and_follow_their_scale(share: float) -> None:
    value = Span(0.001, 10.0, log=True).at(share)
    assert float(f"{value:.4g}") == value
    assert value == pytest.approx(0.001 * 10 ** (4 * share), rel=1e-3)


def test_a_config_that_names_no_space_is_searched_where_that_makes_sense() -> None:
    texts = default_space(Outer())
    assert texts == {
        "rounds": "1..1000:log",
        "share": "0.0..1.0",
        "free": "0.5..8.0:log",
        "way": "this,that",
        "style": "LINEAR_ADD,SIGMOID_ADD,LINEAR_MULTIPLY,GATED",
        "on": "true,false",
    }
    assert set(read_space(Outer(), texts, "here")) == set(texts)


def test_a_grid_has_every_combination_and_no_ranges() -> None:
    space = read_space(Outer(), {"way": "this,that", "rounds": "1,2,3"}, "here")
    points = grid(space, "here")
    assert points[:2] == [{"way": "this", "rounds": 1}, {"way": "this", "rounds": 2}]
    assert len(points) == size(space) == 6
    ranged = read_space(Outer(), {"rounds": "1..3", "share": "0..1"}, "here")
    assert size(ranged) == float("inf")
    with pytest.raises(ConfigError, match=r"'rounds' is the range 1\.\.3, of which a grid has no end"):
        grid(ranged, "here")
