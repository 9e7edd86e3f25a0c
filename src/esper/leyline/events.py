"""What is recorded: typed events, and the one line of JSON that each becomes.

An event is written as a record of `codec.py`, with the names of enums, never their numbers, and read back strictly: an unknown kind or
field, a missing field, a wrong type or a newer schema is an EventError that says so. JSON has no NaN and no infinities, so such floats are
written as the strings "NaN", "Infinity" and "-Infinity".

Accuracies and contributions are in points (0 to 100).
"""

from __future__ import annotations

import dataclasses
import json
import re
import reprlib
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn, TypeVar, dataclass_transform

from esper.leyline.actions import Curve, Decision, Op
from esper.leyline.codec import Tagged, codec_of
from esper.leyline.codec_values import Dialect, Mismatch
from esper.leyline.errors import EventError
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage
from esper.leyline.travel import travels

EVENT_VERSION = 4
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


AnyEvent = Annotated[Event, Tagged(EVENT_TYPES)]
"""Any event, as a field of something that is written and read back."""

E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event_type(cls: type[E]) -> type[E]:
    """Make a subclass of Event a frozen, slotted, keyword-only dataclass that is known by its kind."""
    made = travels(dataclass(frozen=True, slots=True, kw_only=True)(cls))
    if made.kind() in EVENT_TYPES:
        raise ValueError(f"there is already an event of kind {made.kind()!r}")
    EVENT_TYPES[made.kind()] = made
    return made


# A run


@event_type
class RunStarted(Event):
    """A run began."""

    command: str
    method: str
    """What kind of run it is: run (hosts under a controller), learn (PPO), expert (forked search), bc, iql, compare, headroom, tune, sweep
    or gardener."""
    task: str
    hosts: int
    """Hosts side by side, twins not counted; recorded episodes where a policy learns from those."""
    rounds: int
    """Units between checkpoints: epochs under a controller, rounds of play for PPO and searches, passes over recordings, points of a
    sweep."""
    seed: int
    versions: dict[str, str]
    """Of esper, python and torch."""
    machine: dict[str, int | str]
    """What it runs on: system, processor, cores, memory in bytes, and the GPUs there are."""
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


# A host, epoch by epoch


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
class HostsTrained(Event):
    """Every host of a play, its twins included, finished the epoch in the envelope: the course of all of them at a glance, those too of
    which nothing else is recorded. One value for each host, in the order of `hosts`."""

    hosts: tuple[int, ...]
    """Their numbers; those that ended before are left out."""
    val_accuracy: tuple[float, ...]
    """Rounded to a hundredth of a point."""
    parameters: tuple[int, ...]
    live: tuple[int, ...]
    """Seeds that are in the network and not fossilised."""
    fossils: tuple[int, ...]


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
    gradient_norm: float | None
    gradient_health: float | None
    gradient_ratio: float | None


@event_type
class Interaction(Event):
    """Synergy of two seeds in points: accuracy of all - without one - without the other + without both."""

    slots: tuple[str, str]
    value: float


# A decision and what it earned


@event_type
class Observed(Event):
    """What a controller was shown before it decided: every value by its name in leyline/observation.py."""

    host: dict[str, float]
    slots: dict[str, dict[str, float]]
    """By slot."""


@event_type
class Decided(Event):
    """A controller decided."""

    decision: Decision
    legal: dict[str, tuple[str, ...]]
    """By head that matters for the op: the values it could have taken, given the heads before it. `op` is always there."""
    probabilities: dict[str, tuple[float, ...]]
    """By head, of each legal value in the same order, as drawn from; empty where a rule decides."""
    value: float | None
    """The return that the critic expected; None where there is no critic."""


@event_type
class Rewarded(Event):
    """What a decision earned, in all and by component. Recorded with the epoch of the decision."""

    total: float
    components: dict[str, float]


# What is learned and found out


@event_type
class PolicyUpdated(Event):
    """A policy learned from a round; figures by their names in simic/learning/ppo_metrics.py."""

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
    operations: float
    """Of training, validation and counterfactuals."""
    fossils: float
    reward: float


# What happens to seeds


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
    figures: dict[str, float]
    """What it was judged by, as far as it was measured. G2: epochs_in_stage, gradient_health, gradient_ratio, trial_contribution,
    trial_error. G3: alpha, alpha_target, ramp_left. G5: gradient_health, contribution, contribution_error, contribution_age."""


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


# How a host ended


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class SeedLife:
    """One seed from its birth to what became of it."""

    slot: str
    blueprint: str
    style: str
    born: int
    """The epoch after which it was germinated."""
    ended: int
    """The epoch after which it was fossilised or pruned; the host's last one for a seed that was still alive."""
    outcome: Literal["fossilized", "pruned", "unfinished"]
    """Part of the network for good, removed, or still alive at the end of the budget and dropped then."""
    contribution: float | None
    """The last that was measured while it was blended in, in points of val accuracy; None if it never was."""
    parameters: int


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
    rent: float
    """What its user pays for size: points for a network that grew sixteenfold."""
    control_accuracy: float | None
    control_loss: float | None
    """On val, of its twin at its end; None without one."""
    flops: dict[str, int]
    """Spent in all, by purpose."""
    germinated: int
    fossilized: int
    pruned: int
    """How many of its seeds were planted, kept and removed."""
    rollbacks: int
    reward: float
    components: dict[str, float]
    """What its decisions earned, in all and by component."""
    decisions: dict[str, int]
    """How many there were of each op."""
    refused: int
    """Decisions that were not carried out."""
    slots: dict[str, dict[str, str]]
    """The stage, blueprint and style that each slot ended with."""
    seeds: tuple[SeedLife, ...]
    """Every seed that it ever had, in the order of their births."""

    @property
    def operations(self) -> int:
        """Spent in all, for whatever purpose."""
        return sum(self.flops.values())


# A search, and what people and sinks are told


@event_type
class PlansPlayed(Event):
    """A search for headroom played some more episodes."""

    episodes: int
    plans: int
    """So far, of all rounds."""
    best: str
    """The plan with the best mean score among those that all hosts have played, in words; empty while there is none."""
    score: float


@event_type
class Anomaly(Event):
    """Something looks wrong: a detector of nissa/anomalies says so once when it begins, and again only after it was over."""

    detector: str
    """In a word: entropy_collapse, value_collapse, ratio_explosion, gradient_pathology, reward_hacking, rollbacks."""
    text: str
    """In a sentence: what was seen, and what would be usual."""
    value: float
    threshold: float


@event_type
class SinkFailed(Event):
    """A sink raised and was dropped; the run goes on without it."""

    sink: str
    error: str


@event_type
class SinkBehind(Event):
    """A sink is too slow for its queue; so many events it will never see. The journal has them all."""

    sink: str
    dropped: int
    """In all."""


@event_type
class Note(Event):
    """A remark for people."""

    text: str


# Events on their way into a file and out of it


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
    event: AnyEvent

    def identity(self) -> str:
        """The envelope's line without its time: equal, NaN and all, exactly when two runs recorded the same."""
        return to_json_line(dataclasses.replace(self, time=None))


_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def to_json_line(envelope: Envelope) -> str:
    """The envelope as one line of JSON, plain ASCII, without the newline. Raises EventError for a value of the wrong type."""
    try:
        line = codec_of(Envelope, Dialect.RECORD).write(envelope)
    except Mismatch as error:
        raise EventError(str(error)) from error
    event = line.pop("event")
    return _JSON.encode({"v": EVENT_VERSION, **line, **event})


def from_json_line(text: str) -> Envelope:
    """The envelope in one line of JSON. Raises EventError for a damaged line, and for one of another schema."""
    try:
        line = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EventError(f"event is not valid JSON: {error}") from error
    if not isinstance(line, dict) or "v" not in line or "event" in line:
        raise EventError(f"not an event: {reprlib.repr(text)}")
    version = line.pop("v")
    if type(version) is not int or version != EVENT_VERSION:
        raise EventError(f"event has schema version {reprlib.repr(version)}; this version of Esper reads {EVENT_VERSION}")
    line["event"] = {name: line.pop(name) for name in ("kind", "data") if name in line}
    try:
        envelope: Envelope = codec_of(Envelope, Dialect.RECORD).read(line)
    except Mismatch as error:
        raise EventError(str(error)) from error
    return envelope


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
