"""What trackers log: named numbers with a step, made from events in one place, so that every tracker shows the same.

The step is the epoch of a run under a controller, and the round of any other. Hosts are always means, however many there are:

    hosts/...      after an epoch, over the hosts (twins: control/...); losses and rates over those that are recorded in full
    finished/...   over the hosts that came to their end: in the round, and so far where a round is an epoch
    rollout/..., reward/..., reward_by_op/..., actions/..., germinated/..., fossilized/..., train/...
                   of a policy that learned, as it names them
    arms/NAME/...  one arm of an examination or a comparison, one point of a sweep
    search/...     of a search for headroom

A number that was not measured (None, NaN) is left out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from esper.leyline.events import (
    Anomaly,
    ArmExamined,
    Envelope,
    EpochFinished,
    HostFinished,
    HostStarted,
    HostsTrained,
    Note,
    PlansPlayed,
    PolicyUpdated,
    RoundFinished,
    RunFinished,
    RunStarted,
    SinkBehind,
    SinkFailed,
)
from esper.leyline.score import score

BY_EPOCH = ("run", "gardener")
"""Methods whose rounds are epochs."""
ARM_FIGURES = ("score", "accuracy", "growth", "operations", "fossils", "reward")
EPOCH_FIGURES = ("train_loss", "train_accuracy", "val_loss", "learning_rate", "gradient_norm")


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers that belong to one step."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Host:
    twin: bool
    arm: str
    parameters: int


class Scalars:
    """The numbers of one run, as its events come in."""

    def __init__(self) -> None:
        self.unit = "round"
        """What a step is."""
        self.step = 0
        """Rounds that are done."""
        self._hosts: dict[int, _Host] = {}
        self._of_round: defaultdict[str, list[float]] = defaultdict(list)
        self._finished: defaultdict[str, list[float]] = defaultdict(list)

    def points(self, envelope: Envelope) -> Iterator[Point]:
        """What the event adds to the log."""
        match envelope.event:
            case RunStarted() as run:
                self.unit = "epoch" if run.method in BY_EPOCH else "round"
                self.step = int(run.about.get("round", 0))
            case HostStarted() as host if envelope.host is not None:
                self._hosts[envelope.host] = _Host(host.twin_of is not None, host.arm, host.parameters)
            case HostsTrained() as trained if self.unit == "epoch":
                self._trained(trained)
            case EpochFinished() as epoch if self.unit == "epoch" and not self._host(envelope).twin:
                for name in EPOCH_FIGURES:
                    self._add(self._of_round, f"hosts/{name}", getattr(epoch, name))
            case HostFinished() as result:
                self._ended(self._host(envelope), result)
                self._hosts.pop(-1 if envelope.host is None else envelope.host, None)
            case PolicyUpdated(update=update, metrics=metrics):
                yield from _point(update, metrics)
            case ArmExamined() as arm:
                yield from _point(self.step, {f"arms/{plain(arm.arm)}/{name}": getattr(arm, name) for name in ARM_FIGURES})
            case PlansPlayed(plans=plans, score=best):
                yield from _point(self.step, {"search/plans": plans, "search/best_score": best})
            case RoundFinished(round=round):
                self.step = round
                yield from _point(round, self._means())

    def _host(self, envelope: Envelope) -> _Host:
        """The host of an event; one whose beginning was never seen counts as an ordinary one."""
        return self._hosts.get(-1 if envelope.host is None else envelope.host, _Host(False, "", 0))

    def _trained(self, trained: HostsTrained) -> None:
        for number, accuracy, parameters, live, fossils in zip(
            trained.hosts, trained.val_accuracy, trained.parameters, trained.live, trained.fossils, strict=True
        ):
            host = self._hosts.get(number, _Host(False, "", 0))
            if host.twin:
                self._add(self._of_round, "control/val_accuracy", accuracy)
                continue
            values = {"val_accuracy": accuracy, "live": live, "fossils": fossils}
            values |= {"growth": parameters / host.parameters} if host.parameters else {}
            for name, value in values.items():
                self._add(self._of_round, f"hosts/{name}", value)

    def _ended(self, host: _Host, result: HostFinished) -> None:
        if host.twin or host.arm:  # an arm is told of as a whole
            return
        against = None if result.control_accuracy is None else result.val_accuracy - result.control_accuracy
        values = {
            "val_accuracy": result.val_accuracy,
            "test_accuracy": result.test_accuracy,
            "against_control": against,
            "score": score(result.val_accuracy, result.parameters, result.host_parameters, result.rent),
            "growth": result.parameters / result.host_parameters,
            "operations": result.operations,
            "fossils": result.fossilized,
            "pruned": result.pruned,
            "rollbacks": result.rollbacks,
            "reward": result.reward,
        }
        for name, value in values.items():
            self._add(self._finished, f"finished/{name}", value)

    def _means(self) -> dict[str, float]:
        """Means over what the round brought, which is then over."""
        means = {name: sum(values) / len(values) for name, values in (*self._of_round.items(), *self._finished.items())}
        if self._finished:
            means["finished/hosts"] = max(map(len, self._finished.values()))
        self._of_round.clear()
        if self.unit == "round":
            self._finished.clear()
        return means

    @staticmethod
    def _add(into: defaultdict[str, list[float]], name: str, value: float | None) -> None:
        if value is not None and not math.isnan(value):
            into[name].append(value)


def _point(step: int, values: Mapping[str, float]) -> Iterator[Point]:
    measured = {name: float(value) for name, value in values.items() if not math.isnan(value)}
    if measured:
        yield Point(step, measured)


def plain(name: str) -> str:
    """A name that every tracker takes: letters, digits and a few marks, none of them a slash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")[:100] or "_"


def remark(envelope: Envelope) -> str | None:
    """What an event says to people in a sentence, if it is one that they should read."""
    match envelope.event:
        case Note(text=text):
            return text
        case Anomaly(detector=detector, text=text):
            return f"{detector}: {text}"
        case SinkFailed(sink=name, error=error):
            return f"sink {name} failed and is dropped: {error}"
        case SinkBehind(sink=name, dropped=dropped):
            return f"sink {name} is too slow: {dropped:,} events dropped"
        case RunFinished(outcome=outcome):
            return f"the run ended: {outcome}"
        case _:
            return None
