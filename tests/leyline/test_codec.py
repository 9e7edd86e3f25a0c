"""Any value of any type that the codec knows survives the way through plain values, and what it could not have written is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Curve, Decision, Op, Style
from esper.leyline.codec import Tagged, codec_of, from_plain, to_plain
from esper.leyline.codec_values import Dialect, Mismatch, Range
from esper.leyline.errors import StateError
from esper.leyline.reports import EpochReport, Gate, GateVerdict, GradientStats, SeedReport, Topology
from esper.leyline.stages import Stage


class Word(StrEnum):
    YES = "y"
    NO = "n"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Square:
    side: float


@dataclass(frozen=True)
class Circle:
    centre: tuple[float, float]
    radius: float | None


SHAPES: dict[str, type] = {"square": Square, "circle": Circle}
Shape = Annotated[Square | Circle, Tagged(SHAPES)]

# Types that cannot be told from one another by a union are alternatives here, never members of one union.
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(),
    str: st.text(),
    Path: st.text(st.characters(exclude_characters="\0")).map(Path),
    Word: st.sampled_from(Word),
    Level: st.sampled_from(Level),
    Literal["auto", 3]: st.sampled_from(["auto", 3]),
    Annotated[int, Range(0, 9)]: st.integers(0, 9),
    float | None: st.none() | st.floats(),
    int | float | bool | None: st.none() | st.integers() | st.floats() | st.booleans(),
    tuple[int, ...] | str | float: st.lists(st.integers()).map(tuple) | st.text().filter(lambda text: text not in WORDS) | st.floats(),
    Square: st.builds(Square, st.floats()),
    Shape: st.builds(Square, st.floats()) | st.builds(Circle, st.tuples(st.floats(), st.floats()), st.none() | st.floats()),
}
WORDS = ("NaN", "Infinity", "-Infinity")
KEYS = (str, int, Word, tuple[str, int])


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A type and a value of it."""
    kind = draw(st.sampled_from([*LEAVES, *(["tuple", "pair", "dict"] if depth else [])]))
    if kind not in ("tuple", "pair", "dict"):
        return kind, draw(LEAVES[kind])
    inner, value = draw(typed(depth - 1))
    if kind == "tuple":
        return tuple[inner, ...], (value,) * draw(st.integers(0, 3))
    other, second = draw(typed(depth - 1))
    if kind == "pair":
        return tuple[inner, other], (value, second)
    key = draw(st.sampled_from(KEYS))
    keys = {str: st.text(), int: st.integers(), Word: st.sampled_from(Word), tuple[str, int]: st.tuples(st.text(), st.integers())}[key]
    return dict[key, inner], dict.fromkeys(draw(st.lists(keys, max_size=3)), value)


@given(case=typed())
def test_any_value_survives_the_way_through_json_with_its_types(case: tuple[Any, Any]) -> None:
    kind, value = case
    codec = codec_of(kind, Dialect.RECORD)
    back = codec.read(json.loads(json.dumps(codec.write(value), allow_nan=False)))
    assert repr(back) == repr(value)  # tells 1 from 1.0 and True, and NaN is equal to itself


REPORT = EpochReport(
    epoch=3,
    budget=9,
    steps=30,
    classes=10,
    train_loss=math.nan,
    train_accuracy=50.0,
    val_loss=math.inf,
    val_accuracy=40.0,
    per_class=(1.0, 2.0),
    bare_accuracy=None,
    harvest_accuracy=39.0,
    harvest_loss=1.0,
    learning_rate=0.1,
    initial_learning_rate=0.1,
    start_parameters=100,
    parameters=120,
    gradients=GradientStats(steps=1, norm=1.0, peak=2.0, vanishing=0.0, exploding=0.0, finite=True),
    seeds=(
        SeedReport(
            slot="a",
            stage=Stage.TRAINING,
            previous_stage=Stage.GERMINATED,
            epochs_in_stage=1,
            age=2,
            topology=Topology.MAP2D,
            width=8,
            position=0.5,
            style=Style.GATED,
        ),
    ),
    verdicts=(GateVerdict(Gate.G2, "a", False, ("too early",)), None),
    interactions={("a", "b"): 0.5},
    flops={"forward": 7},
    germinated=1,
    rollbacks=0,
)


@pytest.mark.parametrize("value", [REPORT, Decision(op=Op.PRUNE, slot="a", alpha_curve=Curve.COSINE)], ids=["report", "decision"])
def test_contracts_come_back_as_they_were(value: Any) -> None:
    assert repr(from_plain(type(value), json.loads(json.dumps(to_plain(value), allow_nan=False)))) == repr(value)


def test_what_contracts_look_like_when_they_are_written() -> None:
    plain = to_plain(REPORT)
    assert plain["flops"] == {"forward": 7}
    assert plain["interactions"] == [[["a", "b"], 0.5]]
    assert plain["seeds"][0]["stage"] == "TRAINING"
    assert (plain["train_loss"], plain["val_loss"], plain["bare_accuracy"]) == ("NaN", "Infinity", None)
    assert codec_of(Shape, Dialect.RECORD).write(Square(2)) == {"kind": "square", "data": {"side": 2.0}}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": "3"}, "a saved EpochReport cannot be read: 'epoch' must be an integer; found '3'"),
        ({"epoch": True}, "'epoch' must be an integer; found true"),
        ({"val_loss": "high"}, "'val_loss' must be a number; found 'high'"),
        ({"per_class": 1.0}, "'per_class' must be a list; found 1.0"),
        ({"seeds": [{"slot": "a"}]}, "missing key 'seeds[0].stage'"),
        ({"seeds": [None]}, "'seeds[0]' must be a table; found nothing"),
        ({"interactions": {"a": 1.0}}, "'interactions' must be a list; found {'a': 1.0}"),
        ({"interactions": [[["a"], 1.0]]}, "'interactions[0][0]' must be a list of 2 values; found ['a']"),
        ({"flops": {"forward": 1.5}}, "'flops.forward' must be an integer; found 1.5"),
        ({"mood": 1}, "unknown key 'mood'"),
    ],
)
def test_a_record_that_could_not_have_been_written_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError) as caught:
        from_plain(EpochReport, to_plain(REPORT) | change)
    assert message in str(caught.value)


def test_a_record_has_every_key_and_an_enum_its_exact_name() -> None:
    plain = to_plain(Decision(op=Op.WAIT))
    with pytest.raises(StateError, match="missing key 'reason': text"):
        from_plain(Decision, {name: value for name, value in plain.items() if name != "reason"})
    with pytest.raises(StateError, match=r"'op' must be one of WAIT, .*; found 'wait', did you mean 'WAIT'\?"):
        from_plain(Decision, plain | {"op": "wait"})


@pytest.mark.parametrize("value", [[], "square", {"kind": "square"}, {"kind": [], "data": {}}, {"kind": "square", "data": {}, "more": 1}])
def test_a_member_of_a_hierarchy_has_a_kind_and_data(value: object) -> None:
    with pytest.raises(Mismatch, match="must be a kind and its data; found"):
        codec_of(Shape, Dialect.RECORD).read(value)


def test_a_member_that_the_hierarchy_does_not_have_is_refused_with_the_nearest() -> None:
    codec = codec_of(tuple[Shape, ...], Dialect.RECORD)
    with pytest.raises(Mismatch, match=r"'\[1\]' is of the unknown kind 'squar'; did you mean 'square'\?"):
        codec.read([{"kind": "square", "data": {"side": 1}}, {"kind": "squar", "data": {}}])
    with pytest.raises(Mismatch, match=r"'\[0\]\.circle\.radius' must be a number; found 'x'"):
        codec.write((Circle((0.0, 0.0), "x"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list[int], set[int], object, bytes, tuple[bytes, ...], dict[str, list[int]], Enum | bytes])
def test_a_type_that_it_does_not_know_is_a_mistake_of_its_author(kind: Any) -> None:
    for dialect in Dialect:
        with pytest.raises(TypeError):
            codec_of(kind, dialect)


@dataclass(frozen=True)
class Keyed:
    table: dict[tuple[str, str], float]


def test_only_records_have_keys_that_are_no_text() -> None:
    assert from_plain(Keyed, to_plain(Keyed({("a", "b"): 1.0}))) == Keyed({("a", "b"): 1.0})
    with pytest.raises(TypeError, match=r"Keyed\.table: a config or a record cannot hold"):
        codec_of(Keyed, Dialect.SETTINGS)
