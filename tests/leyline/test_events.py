"""Every event survives the way through a line of JSON, and a line that is not one is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import events
from esper.leyline.actions import Curve, Decision, Op, Style
from esper.leyline.errors import EventError
from esper.leyline.events import (
    EVENT_TYPES,
    EVENT_VERSION,
    Decided,
    Envelope,
    EpochFinished,
    Event,
    GateChecked,
    HostStarted,
    Interaction,
    Note,
    RunStarted,
    SeedMeasured,
    StageChanged,
    event_type,
    from_json_line,
    to_json_line,
)
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage

KINDS = [
    *("run_started", "run_finished", "round_finished"),
    *("host_started", "epoch_finished", "hosts_trained", "seed_measured", "interaction", "observed", "decided", "rewarded"),
    *("policy_updated", "arm_examined", "refused", "stage_changed", "gate_checked", "alpha_retargeted", "rolled_back"),
    *("host_finished", "plans_played"),
    *("anomaly", "sink_failed", "sink_behind", "note"),
]
WORDS = {"NaN", "Infinity", "-Infinity"}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        strategy = st.one_of(*(values(part) for part in parts))
        return strategy.filter(lambda value: value not in WORDS) if float in parts and str in parts else strategy
    if origin is tuple:
        return st.lists(values(parts[0])).map(tuple) if parts[-1] is Ellipsis else st.tuples(*map(values, parts))
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is dict:
        return st.dictionaries(st.text(), values(parts[1]), max_size=5)
    simple = {bool: st.booleans(), int: st.integers(), float: st.floats(), str: st.text(), NoneType: st.none()}
    if dataclasses.is_dataclass(kind):
        return st.builds(kind, **{name: values(each) for name, each in get_type_hints(kind).items()})
    return simple[kind] if kind in simple else st.sampled_from(kind)


def event_of(cls: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(cls, **{name: values(kind) for name, kind in get_type_hints(cls).items()})


def envelopes(content: st.SearchStrategy[Event]) -> st.SearchStrategy[Envelope]:
    index = st.none() | st.integers(0)
    return st.builds(Envelope, seq=st.integers(0), time=st.none() | st.floats(allow_nan=False), host=index, epoch=index, event=content)


def line_of(event: Event, **place: Any) -> str:
    return to_json_line(Envelope(**({"seq": 3, "time": None, "host": 0, "epoch": 5} | place), event=event))


def altered(event: Event, **changes: Any) -> str:
    """The event's line with other data fields; a change to ... takes the field out."""
    line = json.loads(line_of(event))
    data = line["data"] | changes
    return json.dumps(line | {"data": {name: value for name, value in data.items() if value is not ...}})


def refusal(text: str) -> str:
    with pytest.raises(EventError) as caught:
        from_json_line(text)
    return str(caught.value)


MEASURED = SeedMeasured(
    slot="r0c1",
    stage=Stage.TRAINING,
    blueprint="norm",
    alpha=0.0,
    contribution=None,
    contribution_error=None,
    contribution_loss=None,
    trial_contribution=-0.5,
    trial_error=0.25,
    trial_loss=-0.01,
    gradient_norm=1.0,
    gradient_health=1.0,
    gradient_ratio=0.03,
)
GATE = GateChecked(gate=Gate.G2, slot="r0c1", passed=True, reasons=(), figures={"epochs_in_stage": 3.0})


def test_there_is_one_event_for_each_documented_kind() -> None:
    assert list(EVENT_TYPES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_survives_the_way_through_its_line(kind: str) -> None:
    @given(envelope=envelopes(event_of(EVENT_TYPES[kind])))
    def survives(envelope: Envelope) -> None:
        line = to_json_line(envelope)
        back = from_json_line(line)
        # A line holds everything, NaN included, so equal lines and equal reprs are equal envelopes.
        assert to_json_line(back) == line
        assert repr(back) == repr(envelope)
        assert type(back.event) is EVENT_TYPES[kind]

    survives()


@given(envelope=envelopes(st.sampled_from(KINDS).flatmap(lambda kind: event_of(EVENT_TYPES[kind]))))
def test_a_line_is_one_line_of_legal_ascii_json(envelope: Envelope) -> None:
    line = to_json_line(envelope)
    assert line.isascii()
    assert len(line.splitlines()) == 1

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not legal JSON")

    assert list(json.loads(line, parse_constant=refuse)) == ["v", "seq", "time", "host", "epoch", "kind", "data"]


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=lambda cls: cls.kind())
def test_events_are_frozen_slotted_and_keyword_only(cls: type[Event]) -> None:
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        cls(*range(len(names)))
    event = cls(**dict.fromkeys(names, 0))
    assert not hasattr(event, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, names[0], 1)


def test_enums_are_recorded_by_name() -> None:
    act = {"op": Op.SET_ALPHA_TARGET, "slot": "r0c1", "style": Style.GATED, "alpha_target": 0.5, "alpha_curve": Curve.SIGMOID_SHARP}
    decided = Decided(decision=Decision(**act), legal={"op": ("WAIT", "SET_ALPHA_TARGET")}, probabilities={"op": (0.75, 0.25)}, value=-0.5)
    data = json.loads(line_of(decided))["data"]["decision"]
    assert [data[name] for name in ("op", "style", "alpha_curve")] == ["SET_ALPHA_TARGET", "GATED", "SIGMOID_SHARP"]
    changed = StageChanged(slot="a", before=Stage.HOLDING, after=Stage.FOSSILIZED, cause="FOSSILIZE", blueprint="norm", parameters=8)
    assert json.loads(line_of(changed))["data"]["after"] == "FOSSILIZED"
    assert json.loads(line_of(GATE))["data"]["gate"] == "G2"


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_non_finite_floats_are_strings_in_json_and_floats_again_when_read(value: float, word: str) -> None:
    line = line_of(Interaction(slots=("a", "b"), value=value))
    assert json.loads(line)["data"]["value"] == word
    back = from_json_line(line).event
    assert isinstance(back, Interaction)
    assert repr(back.value) == repr(value)


def test_a_text_that_would_be_read_as_a_number_is_refused_where_both_are_allowed() -> None:
    member: dict[str, float | int | str] = {"a": "NaN"}
    with pytest.raises(EventError, match=r"'event\.host_started\.member\.a' is the text 'NaN'"):
        line_of(HostStarted(task="digits", seed=0, member=member, epochs=1, parameters=1, slots=()))
    assert from_json_line(line_of(Note(text="NaN"))).event == Note(text="NaN")


def test_integers_and_floats_stay_apart_in_a_mixed_dictionary() -> None:
    event = HostStarted(task="digits", seed=0, member={"seed": 1, "rate": 1.0, "name": "a"}, epochs=1, parameters=1, slots=())
    back = from_json_line(line_of(event)).event
    assert isinstance(back, HostStarted)
    assert [type(value) for value in back.member.values()] == [int, float, str]


def test_identity_leaves_out_the_time_and_nothing_else() -> None:
    first = Envelope(seq=1, time=10.0, host=0, epoch=2, event=Interaction(slots=("a", "b"), value=math.nan))
    assert first.identity() == dataclasses.replace(first, time=20.0).identity()
    changes: list[dict[str, Any]] = [{"seq": 2}, {"host": 1}, {"epoch": None}, {"event": Interaction(slots=("a", "b"), value=0.0)}]
    assert all(dataclasses.replace(first, **change).identity() != first.identity() for change in changes)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    line = line_of(GATE).replace("gate_checked", "gate_chekced")
    assert refusal(line) == "'event' is of the unknown kind 'gate_chekced'; did you mean 'gate_checked'?"


@pytest.mark.parametrize("version", [EVENT_VERSION - 1, EVENT_VERSION + 1])
def test_another_schema_version_is_refused_before_anything_else(version: int) -> None:
    line = json.dumps(json.loads(line_of(GATE)) | {"v": version, "kind": "from_the_future", "more": 1})
    assert refusal(line) == f"event has schema version {version}; this version of Esper reads {EVENT_VERSION}"


def test_unknown_and_missing_fields_are_refused_by_name() -> None:
    assert refusal(altered(GATE, reson=[])) == "unknown key 'event.gate_checked.reson'; did you mean 'reasons'?"
    assert refusal(altered(GATE, passed=..., slot=...)) == "missing key 'event.gate_checked.slot': text"
    line = json.loads(line_of(GATE))
    assert refusal(json.dumps(line | {"hots": 1})) == "unknown key 'hots'; did you mean 'host'?"
    del line["seq"]
    assert refusal(json.dumps(line)) == "missing key 'seq': an integer"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"slot": 3}, "'event.seed_measured.slot' must be text; found 3"),
        ({"alpha": "high"}, "'event.seed_measured.alpha' must be a number; found 'high'"),
        ({"alpha": True}, "'event.seed_measured.alpha' must be a number; found true"),
        ({"alpha": None}, "'event.seed_measured.alpha' must be a number; found nothing"),
        ({"alpha": 10**400}, "'event.seed_measured.alpha' must be a number; found 1000"),
        ({"contribution": "x"}, "'event.seed_measured.contribution' must be a number; found 'x'"),
        ({"stage": 3}, "RESETTING; found 3"),
        ({"stage": "TRAINNG"}, "RESETTING; found 'TRAINNG', did you mean 'TRAINING'?"),
        ({"stage": "training"}, "'event.seed_measured.stage' must be one of UNKNOWN, DORMANT"),
    ],
)
def test_a_recorded_value_of_the_wrong_type_is_refused_by_field(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(altered(MEASURED, **changes))


def test_a_line_with_a_second_event_in_it_is_refused() -> None:
    line = json.loads(line_of(GATE))
    assert refusal(json.dumps(line | {"event": {"kind": "note", "data": {"text": ""}}})).startswith("not an event")


def test_wrong_containers_and_envelope_values_are_refused_too() -> None:
    pair = Interaction(slots=("a", "b"), value=1.0)
    assert refusal(altered(pair, slots=["a"])) == "'event.interaction.slots' must be a list of 2 values; found ['a']"
    assert refusal(altered(pair, slots="ab")) == "'event.interaction.slots' must be a list of 2 values; found 'ab'"
    assert refusal(altered(GATE, reasons="why")) == "'event.gate_checked.reasons' must be a list; found 'why'"
    assert refusal(altered(GATE, passed=1)) == "'event.gate_checked.passed' must be true or false; found 1"
    line = json.loads(line_of(GATE))
    assert refusal(json.dumps(line | {"seq": True})) == "'seq' must be an integer; found true"
    assert refusal(json.dumps(line | {"data": []})) == "'event.gate_checked' must be a table; found []"
    started = RunStarted(command="train", method="run", task="digits", hosts=1, rounds=1, seed=0, versions={}, machine={}, about={})
    assert refusal(altered(started, versions={"torch": 2})) == "'event.run_started.versions.torch' must be text; found 2"


@pytest.mark.parametrize("text", ["", "{", '{"v":1,"seq":0', "[]", "null", "{}", "[" * 100_000, '{"v":NaN}', "9" * 5000])
def test_a_line_that_is_no_event_is_refused(text: str) -> None:
    assert "event" in refusal(text)


def test_a_torn_line_is_refused_wherever_it_is_torn() -> None:
    line = line_of(MEASURED)
    for length in range(len(line)):
        assert refusal(line[:length])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train_loss": "low"}, "'event.epoch_finished.train_loss' must be a number; found 'low'"),
        ({"parameters": 1.0}, "'event.epoch_finished.parameters' must be an integer; found 1.0"),
        ({"parameters": Op.PRUNE}, "'event.epoch_finished.parameters' must be an integer; found"),
        ({"parameters": False}, "'event.epoch_finished.parameters' must be an integer; found false"),
        ({"per_class": [0.5]}, "'event.epoch_finished.per_class' must be a tuple; found"),
        ({"flops": {1: 2}}, "'event.epoch_finished.flops' must be a table; found"),
    ],
)
def test_an_event_made_with_the_wrong_type_is_refused_when_written(changes: dict[str, Any], expected: str) -> None:
    floats = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate", "gradient_norm")
    right: dict[str, Any] = dict.fromkeys(floats, 1.0) | {"parameters": 1, "per_class": (), "flops": {}}
    event = EpochFinished(**(right | changes))
    with pytest.raises(EventError) as caught:
        line_of(event)
    assert str(caught.value).startswith(expected)


def test_a_number_in_place_of_an_enum_is_refused_when_written() -> None:
    with pytest.raises(EventError, match=r"'event\.seed_measured\.stage' must be a Stage; found 3"):
        line_of(dataclasses.replace(MEASURED, stage=3))  # type: ignore[arg-type]


def test_an_event_class_that_is_not_registered_is_refused_when_written() -> None:
    class Notee(Event):
        pass

    with pytest.raises(EventError, match="'event' is of the unknown kind 'Notee'; did you mean 'note'"):
        line_of(Notee())


def test_two_events_of_one_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_TYPES", dict(EVENT_TYPES))
    with pytest.raises(ValueError, match="already an event of kind 'note'"):

        @event_type
        class Note(Event):
            text: str
