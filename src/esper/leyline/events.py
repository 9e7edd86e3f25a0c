"""What is recorded: typed events, and the one line of JSON that each becomes.

An event is written with the names of enums, never their numbers, and read back strictly: an unknown kind or field, a missing field,
a wrong type or a newer schema is an EventError that says so. JSON has no NaN and no infinities, so such floats are written as
the strings "NaN", "Infinity" and "-Infinity", which browsers and databases turn into numbers by themselves.

Accuracies and contributions are in points (0 to 100).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from esper.leyline.actions import Curve, Op, Style
from esper.leyline.errors import EventError, nearest
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage

EVENT_VERSION = 3
"""Goes up by one with every change to the events below that an older reader would not understand."""

EVENT_TYPES: dict[str, type[Event]] = {}
"""Every event class by its kind."""


class Event:
    """Base of everything that can be recorded."""

    __slots__ = ()

    @classmethod
    def kind(cls) -> str:
        """The name under which events of this class are recorded: the class name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event_type(cls: type[E]) -> type[E]:
    """Make a subclass of Event a frozen, slotted, keyword-only dataclass that is known by its kind."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    if made.kind() in EVENT_TYPES:
        raise ValueError(f"there is already an event of kind {made.kind()!r}")
    EVENT_TYPES[made.kind()] = made
    return made


@event_type
class RunStarted(Event):
    """A run began."""

    command: str
    method: str
    """What kind of run it is: run (hosts under a controller), learn (PPO), bc or iql."""
    task: str
    hosts: int
    """Hosts side by side, twins not counted; recorded episodes where a policy learns from those."""
    rounds: int
    """Units between checkpoints: epochs under a controller, rounds of play for PPO, passes over recordings."""
    seed: int
    versions: dict[str, str]
    """Of esper, python and torch."""
    about: dict[str, float | int | str]
    """What else a person wants to know at the start: the controller, how many workers, and so on."""


@event_type
class RunFinished(Event):
    """A run ended; `outcome` says how, in a word or a sentence."""

    outcome: str


@event_type
class RoundFinished(Event):
    """A round of the run is over, so many of so many."""

    round: int
    rounds: int


@event_type
class HostStarted(Event):
    """A host began its episode. Its number is in the envelope of this and of every later event of the host, and is used once in a run."""

    task: str
    seed: int
    """Its weights, data order, augmentation and seeds follow from it."""
    member: dict[str, float | int | str]
    """How it is built and trained; what sets it apart from the other hosts of the run."""
    epochs: int
    """Its budget."""
    parameters: int
    slots: tuple[str, ...]
    controller: str = ""
    """Who decides."""
    round: int = 0
    """Of a run that learns: the round it is played in; the last one for the examination."""
    arm: str = ""
    """In an examination: which of its arms it belongs to; else empty."""
    twin_of: int | None = None
    """The number of the host that it is the control of: the same seed, and nothing grows."""


@event_type
class EpochFinished(Event):
    """A host finished an epoch."""

    train_loss: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float
    learning_rate: float
    parameters: int
    per_class: tuple[float, ...]
    """Validation accuracy of each class; empty where there are no classes."""
    gradient_norm: float | None
    """Mean over the epoch's steps, host parameters alone; None when nothing was measured."""
    flops: dict[str, int]
    """Spent in this epoch, by purpose (training, validation, counterfactuals, ...)."""


@event_type
class SeedMeasured(Event):
    """What an epoch told about one seed; None is what was not measured."""

    slot: str
    stage: Stage
    blueprint: str
    alpha: float
    contribution: float | None
    contribution_error: float | None
    contribution_loss: float | None
    trial_contribution: float | None
    trial_error: float | None
    trial_loss: float | None
    shapley: float | None
    """Its share of what all seeds bring together, in points; measured under training.attribution full."""
    gradient_norm: float | None
    gradient_health: float | None
    gradient_ratio: float | None


@event_type
class Interaction(Event):
    """Synergy of two seeds in points: accuracy of all - without one - without the other + without both."""

    slots: tuple[str, str]
    value: float


@event_type
class Decided(Event):
    """A controller decided. Fields that do not matter for `op` hold a Decision's defaults."""

    op: Op
    slot: str
    blueprint: str
    style: Style
    tempo: int
    alpha_target: float
    alpha_speed: int
    alpha_curve: Curve
    reason: str
    legal: tuple[str, ...]
    """Names of the ops that were legal."""


@event_type
class Rewarded(Event):
    """What a decision earned, in all and by component. Recorded with the epoch of the decision."""

    total: float
    components: dict[str, float]


@event_type
class PolicyUpdated(Event):
    """A policy learned from a round; figures by their names in UpdateMetrics.flat()."""

    update: int
    metrics: dict[str, float]


@event_type
class ArmExamined(Event):
    """One arm of an examination was played: means over its hosts, in points where they are accuracies."""

    arm: str
    hosts: int
    score: float
    """Val accuracy minus rent."""
    accuracy: float
    growth: float
    """Parameters, as multiples of the bare host's."""
    fossils: float
    reward: float


@event_type
class Refused(Event):
    """A decision was not carried out."""

    op: Op
    slot: str
    reason: str


@event_type
class StageChanged(Event):
    """A seed went from one stage to the next; `cause` names the op, the tick or the governor."""

    slot: str
    before: Stage
    after: Stage
    cause: str
    blueprint: str
    parameters: int
    """Of the seed."""


@event_type
class GateChecked(Event):
    """A gate gave its verdict; `reasons` are its failures, empty when it passed."""

    gate: Gate
    slot: str
    passed: bool
    reasons: tuple[str, ...]


@event_type
class AlphaRetargeted(Event):
    """Alpha of a slot set out for another target, over so many epochs (0: at once)."""

    slot: str
    alpha: float
    target: float
    epochs: int
    curve: Curve


@event_type
class RolledBack(Event):
    """The governor restored a host's snapshot; `pruned` are the slots whose seeds it took away."""

    reason: str
    to_epoch: int
    pruned: tuple[str, ...]


@event_type
class HostFinished(Event):
    """A host came to the end of its budget: the figures of its harvested network, and what happened on the way."""

    val_accuracy: float
    val_loss: float
    test_accuracy: float | None
    test_loss: float | None
    """None where the untouched split stays untouched, as in learning."""
    host_parameters: int
    """Before anything grew."""
    parameters: int
    control_accuracy: float | None
    control_loss: float | None
    """On val, of its twin at its end; None without one."""
    flops: dict[str, int]
    """Spent in all, by purpose."""
    germinated: int
    fossilized: int
    pruned: int
    """Seeds."""
    rollbacks: int
    reward: float
    components: dict[str, float]
    """What its decisions earned, in all and by component."""
    decisions: dict[str, int]
    """By op."""
    refused: int
    """Decisions that were not carried out."""
    slots: dict[str, dict[str, str]]
    """The stage and blueprint that each slot ended with."""


@event_type
class SinkFailed(Event):
    """A sink raised and was dropped; the run goes on without it."""

    sink: str
    error: str


@event_type
class Note(Event):
    """A remark for people."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """An event with its place in the run."""

    seq: int
    """Counts 0, 1, 2, ... over the whole run, resumed or not, so that a lost or doubled event shows."""
    time: float | None
    """Wall clock, seconds since 1970. The one thing that two bit-identical runs do not share: compare `identity()`."""
    host: int | None
    """Index of the host; None for the run as a whole."""
    epoch: int | None
    event: Event

    def identity(self) -> str:
        """The envelope's line without its time: equal, NaN and all, exactly when two runs recorded the same."""
        return to_json_line(dataclasses.replace(self, time=None))


_PLACE: dict[str, Any] = {"seq": int, "time": float | None, "host": int | None, "epoch": int | None}
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SIMPLE: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def to_json_line(envelope: Envelope) -> str:
    """The envelope as one line of JSON, plain ASCII, without the newline. Raises EventError for a value of the wrong type."""
    event, kind = envelope.event, envelope.event.kind()
    if type(event) not in EVENT_TYPES.values():
        raise EventError(f"{type(event).__name__} is not a registered event; {nearest(kind, EVENT_TYPES)}")
    place = {name: _write(each, getattr(envelope, name), name) for name, each in _PLACE.items()}
    data = {name: _write(each, getattr(event, name), f"{kind}.{name}") for name, each in _fields(kind).items()}
    return json.dumps({"v": EVENT_VERSION, **place, "kind": kind, "data": data}, separators=(",", ":"), allow_nan=False)


def from_json_line(text: str) -> Envelope:
    """The envelope in one line of JSON. Raises EventError for a damaged line, and for one of another schema."""
    try:
        line = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EventError(f"event is not valid JSON: {error}") from error
    if not isinstance(line, dict) or "v" not in line:
        raise EventError(f"not an event: {reprlib.repr(text)}")
    if _read(int, line["v"], "v") != EVENT_VERSION:
        raise EventError(f"event has schema version {line['v']}; this version of Esper reads {EVENT_VERSION}")
    _check_names("event", line, ("v", *_PLACE, "kind", "data"))
    kind, data = _read(str, line["kind"], "kind"), line["data"]
    if kind not in EVENT_TYPES:
        raise EventError(f"unknown event kind {kind!r}; {nearest(kind, EVENT_TYPES)}")
    if not isinstance(data, dict):
        _wrong(f"{kind}.data", "an object", data)
    _check_names(kind, data, _fields(kind))
    event = EVENT_TYPES[kind](**{name: _read(each, data[name], f"{kind}.{name}") for name, each in _fields(kind).items()})
    return Envelope(**{name: _read(each, line[name], name) for name, each in _PLACE.items()}, event=event)


@cache
def _fields(kind: str) -> dict[str, Any]:
    return get_type_hints(EVENT_TYPES[kind])


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _check_names(kind: str, found: dict[str, Any], expected: Iterable[str]) -> None:
    known = list(expected)
    for name in found:
        if name not in known:
            raise EventError(f"{kind}: unknown field {name!r}; {nearest(name, known)}")
    if missing := [name for name in known if name not in found]:
        raise EventError(f"{kind}: missing field {', '.join(map(repr, missing))}")


def _wrong(where: str, expected: str, found: object) -> NoReturn:
    raise EventError(f"{where} must be {expected}; found {reprlib.repr(found)}")


def _is(kind: Any, value: object) -> bool:
    """Whether a Python value is of a simple kind. A bool is no number here, and an enum neither a number nor text."""
    if kind is NoneType:
        return value is None
    accepted = (int, float) if kind is float else kind
    return isinstance(value, accepted) and not isinstance(value, Enum) and isinstance(value, bool) == (kind is bool)


def _simple(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if _is(kind, value):
        with suppress(OverflowError):  # an integer that no float can hold is as wrong as text
            return kind(value)
    _wrong(where, _SIMPLE[kind], value)


def _choose(kind: Any, value: object, where: str) -> Any:
    """The member of a union that a value belongs to; an integer is a float only where no member is int."""
    members = get_args(kind)
    for member in sorted(members, key=lambda each: each is float):
        if _is(member, value):
            return member
    _wrong(where, " or ".join(_SIMPLE[member] for member in members if member is not NoneType), value)


def _write(kind: Any, value: Any, where: str) -> Any:
    """The value as JSON has it."""
    if kind in _SIMPLE or kind is NoneType:
        value = _simple(kind, value, where)
        if kind is float and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value
    origin = get_origin(kind)
    if origin is UnionType:
        chosen = _choose(kind, value, where)
        if chosen is str and float in get_args(kind) and value in _CONSTANTS:
            raise EventError(f"{where}: the text {value!r} would be read back as a number")
        return _write(chosen, value, where)
    if origin is tuple:
        return [_write(each, item, where) for each, item in zip(_members(kind, value, where, tuple), value, strict=True)]
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            _wrong(where, "a dict with text keys", value)
        return {key: _write(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if not isinstance(value, kind):
        _wrong(where, f"a {kind.__name__}", value)
    return value.name


def _read(kind: Any, value: Any, where: str) -> Any:
    """The Python value of what JSON has."""
    if kind is float and isinstance(value, str) and value in _CONSTANTS:
        return _CONSTANTS[value]
    if kind in _SIMPLE or kind is NoneType:
        return _simple(kind, value, where)
    origin = get_origin(kind)
    if origin is UnionType:
        constant = float in get_args(kind) and isinstance(value, str) and value in _CONSTANTS
        return _read(float if constant else _choose(kind, value, where), value, where)
    if origin is tuple:
        return tuple(_read(each, item, where) for each, item in zip(_members(kind, value, where, list), value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            _wrong(where, "an object", value)
        return {key: _read(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if not isinstance(value, str):
        _wrong(where, f"the name of a {kind.__name__}", value)
    if value not in kind.__members__:
        raise EventError(f"{where}: unknown {kind.__name__} {value!r}; {nearest(value, kind.__members__)}")
    return kind[value]


def _members(kind: Any, value: Any, where: str, container: type) -> tuple[Any, ...]:
    """The kind of each item of a list, after a check of its length."""
    kinds: tuple[Any, ...] = get_args(kind)
    size = len(value) if isinstance(value, list | tuple) and type(value) is container else -1
    if kinds[-1] is Ellipsis and size >= 0:
        return (kinds[0],) * size
    if len(kinds) != size:
        _wrong(where, f"a {container.__name__}" if kinds[-1] is Ellipsis else f"a {container.__name__} of {len(kinds)}", value)
    return kinds
