"""From reports to observations: what a controller sees of one host, with the histories that a single report does not hold.

Values are scaled and bounded as the schema in `esper.leyline.observation` says. A loss that is not a number counts as the worst
one that can be seen, an accuracy that is not a number as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.leyline.actions import Decision, Op, Style
from esper.leyline.errors import StateError, in_a_line, unknown
from esper.leyline.observation import (
    HISTORY_EPOCHS,
    NO_BLUEPRINT,
    OBSERVATION,
    OBSERVATION_LIMIT,
    OBSERVED_GATES,
    OBSERVED_STAGES,
)
from esper.leyline.reports import EpochReport, LifecycleConfig, SeedReport
from esper.leyline.stages import BLENDED, OCCUPIED, Stage
from esper.leyline.travel import travels
from esper.tamiyo.observe.masks import Blueprints, BoolArray, Masks, Rules, blueprint_names
from esper.tamiyo.observe.trend import slope, trend

WINDOW = HISTORY_EPOCHS + 1
"""Epochs over which trends are taken: the present one and those in the histories."""

KNOWN_NOISE = 0.5
"""Least noise that a trend is measured against, in standard errors of the val accuracy: the samples are the same in every epoch, so that
it varies less from one to the next than from one split to another. The same share of ln K serves for the loss."""

UNKNOWN_NOISE = 0.5
"""The same in points, where the standard error is not known."""

# Names of fields, written once: they are needed for every host and epoch.
_STAGE = {stage: f"stage_{stage.name.lower()}" for stage in OBSERVED_STAGES}
_PREVIOUS_STAGE = {stage: f"previous_stage_{stage.name.lower()}" for stage in OBSERVED_STAGES}
_SHARE = {stage: f"share_{stage.name.lower()}" for stage in OBSERVED_STAGES}
_STYLE = {style: f"style_{style.name.lower()}" for style in Style}
_LAST_OP = {op: f"last_op_{op.name.lower()}" for op in Op}
_GATE = {gate: f"gate_{gate.name.lower()}" for gate in OBSERVED_GATES}
_AGO = tuple((ago, f"val_loss_{ago}_ago", f"val_accuracy_{ago}_ago") for ago in range(1, HISTORY_EPOCHS + 1))

Costs = Mapping[str, Mapping[str, int]]
"""Parameters that each blueprint would add at each slot: costs["r0c1"]["conv_light"]. Counted by the body."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """One host after one epoch, as a controller sees it. Arrays are read-only; H, S, F, B: host fields, slots, slot fields, blueprints."""

    host: NDArray[np.float32]
    """[H], in the order of OBSERVATION.host_fields."""
    slots: NDArray[np.float32]
    """[S, F], in the order of OBSERVATION.slot_fields."""
    blueprints: NDArray[np.int64]
    """[S]: NO_BLUEPRINT, or 1 + the place of the seed's blueprint in `masks.blueprint_names`."""
    costs: NDArray[np.int64]
    """[S, B]: parameters that each blueprint would add there; 0 where it does not fit."""
    masks: Masks
    report: EpochReport
    """The same moment in plain numbers with units."""

    def host_value(self, name: str) -> float:
        """One field of the host, scaled as in the schema."""
        return float(self.host[OBSERVATION.host_index(name)])

    def slot_value(self, slot: str, name: str) -> float:
        """One field of a slot, scaled as in the schema."""
        return float(self.slots[self.masks.slot_names.index(slot), OBSERVATION.slot_index(name)])

    def recent_accuracies(self) -> list[float]:
        """Val accuracies of the last epochs in points, oldest first, the present one last; at most WINDOW of them."""
        count = min(self.report.epoch, WINDOW)
        names = [f"val_accuracy_{ago}_ago" for ago in range(count - 1, 0, -1)]
        return [100.0 * self.host_value(name) for name in (*names, "val_accuracy")]


class SignalTracker:
    """Turns the reports of one host, epoch by epoch, into observations."""

    def __init__(self, slots: Sequence[str], blueprints: Blueprints, costs: Costs, rules: Rules, lifecycle: LifecycleConfig) -> None:
        """`blueprints` are the same for all hosts of a run, `costs` those of this host; `lifecycle` is the one its body lives by."""
        rules.check_slots(slots)
        self.slots, self.blueprints, self.costs, self.rules, self.lifecycle = tuple(slots), blueprints, costs, rules, lifecycle
        self._names = blueprint_names(blueprints)
        # What fits where, and the costs of that: the same in every epoch of a host.
        self._priced: tuple[BoolArray, NDArray[np.int64]] | None = None
        # One value for each epoch so far: losses in units of ln K, accuracies in points; all finite, or NaN where nobody ever told one.
        self._history: dict[str, list[float]] = {name: [] for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy")}
        # The last measurements of each slot's present seed: (epoch, points).
        self._contributions: dict[str, list[tuple[int, float]]] = {slot: [] for slot in self.slots}
        self._last_op: Op | None = None
        self._succeeded = False

    def observe(self, report: EpochReport) -> Observation:
        """The observation after one more epoch. Each epoch is to be shown once, in order."""
        found = tuple(seed.slot for seed in report.seeds)
        if found != self.slots:
            raise StateError(f"the report is of slots {', '.join(found)}; this tracker is for {', '.join(self.slots)}")
        self._remember(report)
        masks = Masks(report, self.rules, self.blueprints)
        if self._priced is None or self._priced[0] is not masks.blueprint_mask:
            self._priced = masks.blueprint_mask, _frozen(self._costs(masks))
        host, slots = _filled(self._host_values(report), [self._slot_values(report, index) for index in range(len(found))])
        return Observation(
            host=_frozen(host),
            slots=_frozen(slots),
            blueprints=_frozen(np.array([self._blueprint(seed) for seed in report.seeds], dtype=np.int64)),
            costs=self._priced[1],
            masks=masks,
            report=report,
        )

    def note_decision(self, decision: Decision, succeeded: bool) -> None:
        """Tell what was decided after the last observation, and whether it was carried out."""
        self._last_op, self._succeeded = decision.op, succeeded

    def state(self) -> dict[str, Any]:
        """Everything remembered, in plain containers that JSON can hold."""
        return {
            "slots": list(self.slots),
            "history": {name: [None if math.isnan(value) else value for value in values] for name, values in self._history.items()},
            "contributions": {slot: [list(pair) for pair in pairs] for slot, pairs in self._contributions.items()},
            "last_op": None if self._last_op is None else self._last_op.name,
            "succeeded": self._succeeded,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
        try:
            if state["slots"] != list(self.slots):
                raise StateError(f"the saved signals are of slots {', '.join(state['slots'])}; this host has {', '.join(self.slots)}")
            told = state["history"]
            history = {name: [math.nan if value is None else float(value) for value in told[name]] for name in self._history}
            pairs = {slot: [(int(epoch), float(value)) for epoch, value in state["contributions"][slot]] for slot in self.slots}
            last_op = None if state["last_op"] is None else Op[state["last_op"]]
            succeeded = bool(state["succeeded"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"saved signals cannot be read ({in_a_line(error)})") from error
        self._history, self._contributions, self._last_op, self._succeeded = history, pairs, last_op, succeeded

    # What is remembered

    def _remember(self, report: EpochReport) -> None:
        assert report.classes >= 2, f"a report with {report.classes} classes has no scale for its losses"
        scale = math.log(report.classes)
        for name in ("train_loss", "val_loss"):
            self._append(name, getattr(report, name) / scale, OBSERVATION_LIMIT, worst=OBSERVATION_LIMIT)
        self._append("train_accuracy", report.train_accuracy, 100.0, worst=0.0)
        self._history["val_accuracy"].append(_within(report.val_accuracy, 100.0, worst=0.0))
        for seed in report.seeds:
            self._remember_contribution(seed, report.epoch)

    def _append(self, name: str, value: float, most: float, worst: float) -> None:
        """One more epoch of a figure that a loop may leave out. One that was told before and is no number any more has diverged."""
        history = self._history[name]
        known = not math.isnan(value) or any(not math.isnan(each) for each in history)
        history.append(_within(value, most, worst) if known else math.nan)
        if known and math.isnan(history[0]):
            history[:] = [history[-1]] * len(history)  # as the first epoch's stands for those before it

    def _remember_contribution(self, seed: SeedReport, epoch: int) -> None:
        pairs = self._contributions[seed.slot]
        if seed.stage not in BLENDED:
            # A seed without influence has no contribution: what is kept was another's.
            pairs.clear()
        elif seed.contribution is not None and math.isfinite(seed.contribution):
            when = epoch - seed.contribution_age
            if not pairs or when > pairs[-1][0]:
                pairs.append((when, float(seed.contribution)))
                del pairs[:-WINDOW]

    def _ago(self, name: str, epochs: int) -> float:
        """The value so many epochs ago; the first epoch's stands for those before it."""
        history = self._history[name]
        return history[max(0, len(history) - 1 - epochs)]

    def _change(self, name: str, epochs: int = 1) -> float:
        return self._ago(name, 0) - self._ago(name, epochs)

    # The host; like a slot, it has no entry where a value is 0 or has no meaning

    def _host_values(self, report: EpochReport) -> dict[str, float]:
        enabled = sum(self.rules.is_enabled(slot) for slot in self.slots)
        values = {
            "progress": report.epoch / report.budget,
            "epoch": math.log2(1 + report.epoch),
            "step": math.log10(1 + report.steps),
            "budget": math.log2(1 + report.budget),
            "epochs_left": math.log2(1 + max(0, report.budget - report.epoch)),
            **self._learning_values(report),
            **self._harvest_values(report),
            "parameters": math.log10(1 + report.parameters),
            "growth": _log_ratio(report.parameters, report.start_parameters, 2),
            **self._stage_shares(report),
            "learning_rate": _log_ratio(report.learning_rate, report.initial_learning_rate, 10),
            "seeds_germinated": report.germinated / max(1, enabled),
            "rollbacks": float(report.rollbacks),
        }
        if self._last_op is not None:
            values[_LAST_OP[self._last_op]] = 1.0
            values["last_op_succeeded"] = 1.0 if self._succeeded else -1.0
        return values

    def _learning_values(self, report: EpochReport) -> dict[str, float]:
        """Losses and accuracies now, their changes, histories and trends."""
        loss, accuracy = self._history["val_loss"], self._history["val_accuracy"]
        train_loss, train_accuracy = self._history["train_loss"][-1], self._history["train_accuracy"][-1]
        best = max(accuracy)
        floor = UNKNOWN_NOISE if report.val_error is None else KNOWN_NOISE * report.val_error
        values = {
            "train_loss": train_loss,
            "train_accuracy": train_accuracy / 100.0,
            "val_loss": loss[-1],
            "val_accuracy": accuracy[-1] / 100.0,
            "val_accuracy_error": (report.val_error or 0.0) / 10.0,
            "train_loss_delta": 10.0 * self._change("train_loss"),
            "train_accuracy_delta": self._change("train_accuracy") / 10.0,
            "val_loss_delta": 10.0 * self._change("val_loss"),
            "val_accuracy_delta": self._change("val_accuracy") / 10.0,
            "val_loss_trend": trend(loss[-WINDOW:], floor / 100.0),
            "val_accuracy_trend": trend(accuracy[-WINDOW:], floor),
            "loss_gap": loss[-1] - train_loss,
            "accuracy_gap": (train_accuracy - accuracy[-1]) / 10.0,
            "plateau": (len(accuracy) - 1 - accuracy.index(best)) / 10.0,
            "best_val_accuracy": best / 100.0,
            "best_val_loss": min(loss),
        }
        for ago, loss_then, accuracy_then in _AGO:
            values[loss_then], values[accuracy_then] = self._ago("val_loss", ago), self._ago("val_accuracy", ago) / 100.0
        return values

    def _harvest_values(self, report: EpochReport) -> dict[str, float]:
        """The network that would be left if training ended now, without the seeds that are alive."""
        fossils = sum(seed.parameters for seed in report.seeds if seed.stage is Stage.FOSSILIZED)
        told = not math.isnan(self._history["val_loss"][-1])
        harvest_loss = report.harvest_loss / math.log(report.classes)
        return {
            "harvest_accuracy": report.harvest_accuracy / 100.0,
            "harvest_loss": _within(harvest_loss, OBSERVATION_LIMIT, worst=OBSERVATION_LIMIT) if told else math.nan,
            "at_stake": (report.val_accuracy - report.harvest_accuracy) / 10.0,
            "rent": report.rent / 10.0,
            "harvest_growth": _log_ratio(report.start_parameters + fossils, report.start_parameters, 2),
        }

    def _stage_shares(self, report: EpochReport) -> dict[str, float]:
        stages = [seed.stage for seed in report.seeds if self.rules.is_enabled(seed.slot)]
        count = max(1, len(stages))
        shares = {_SHARE[stage]: stages.count(stage) / count for stage in set(stages) if stage in _SHARE}
        return {"slots_in_use": sum([stage in OCCUPIED for stage in stages]) / count, **shares}

    # A slot

    def _slot_values(self, report: EpochReport, index: int) -> dict[str, float]:
        seed, verdict = report.seeds[index], report.verdicts[index]
        values = {
            "enabled": float(self.rules.is_enabled(seed.slot)),
            "epochs_in_stage": seed.epochs_in_stage / 10.0,
            "improvement_in_stage": self._change("val_accuracy", seed.epochs_in_stage) / 10.0,
            "position": seed.position,
            "width": _log(seed.width, 2) / 2.0,
            "reach": math.log2(1 + seed.reach) / 2.0,
            "capacity": math.log2(1 + seed.capacity / seed.width**2),
            "embargo_left": self._until_dormant(seed) / 10.0,
        }
        if seed.stage in _STAGE:
            values[_STAGE[seed.stage]] = 1.0
        if seed.previous_stage in _PREVIOUS_STAGE:
            values[_PREVIOUS_STAGE[seed.previous_stage]] = 1.0
        if report.interactions:
            values["interaction"] = sum(value for pair, value in report.interactions.items() if seed.slot in pair) / 10.0
        if verdict is not None and verdict.gate in _GATE:
            values[_GATE[verdict.gate]] = 1.0 if verdict.passed else -1.0
        if seed.stage in OCCUPIED:
            values.update(self._seed_values(seed, report.classes))
        return values

    def _seed_values(self, seed: SeedReport, classes: int) -> dict[str, float]:
        """What has a meaning only where there is a seed."""
        moving = seed.ramp_left > 0
        distance = seed.alpha_target - seed.alpha
        return {
            "age": seed.age / 10.0,
            "alpha": seed.alpha,
            "alpha_target": seed.alpha_target,
            "alpha_speed": abs(distance) / seed.ramp_left if moving else 0.0,
            "alpha_direction": float((distance > 0.0) - (distance < 0.0)) if moving else 0.0,
            "ramp_left": seed.ramp_left / 10.0,
            "pruning": float(seed.pruning),
            _STYLE[seed.style]: 1.0,
            "tempo": seed.tempo / 10.0,
            "parameters": _log_ratio(seed.host_parameters + seed.parameters, seed.host_parameters, 2),
            "improvement": self._change("val_accuracy", seed.age) / 10.0,
            **self._worth_values(seed, classes),
            **_gradient_values(seed),
        }

    def _worth_values(self, seed: SeedReport, classes: int) -> dict[str, float]:
        values = {"contribution_trend": slope(self._contributions[seed.slot]) / 10.0}
        if seed.stage in BLENDED and seed.contribution is not None:
            values["contribution_measured"] = 1.0
            values["contribution"] = seed.contribution / 10.0
            values["contribution_error"] = (seed.contribution_error or 0.0) / 10.0
            values["contribution_loss"] = 10.0 * _loss_drop(seed.contribution_loss, classes)
            values["contribution_age"] = seed.contribution_age / 10.0
        if seed.stage is Stage.TRAINING and seed.trial_contribution is not None:
            values["trial_measured"] = 1.0
            values["trial_contribution"] = seed.trial_contribution / 10.0
            values["trial_error"] = (seed.trial_error or 0.0) / 10.0
            values["trial_loss"] = 100.0 * _loss_drop(seed.trial_loss, classes)
        return values

    def _until_dormant(self, seed: SeedReport) -> int:
        """Epochs until a slot on its way back is DORMANT: one for PRUNED, then the embargo, then the reset."""
        embargo, reset = self.lifecycle.embargo_epochs, self.lifecycle.reset_epochs
        match seed.stage:
            case Stage.PRUNED:
                return 1 + embargo + reset
            case Stage.EMBARGOED:
                return max(1, 1 + embargo - seed.epochs_in_stage) + reset
            case Stage.RESETTING:
                return max(1, 1 + reset - seed.epochs_in_stage)
            case _:
                return 0

    def _blueprint(self, seed: SeedReport) -> int:
        if seed.stage not in OCCUPIED:
            return NO_BLUEPRINT
        if seed.blueprint not in self._names:
            raise unknown(f"blueprint at slot {seed.slot!r}", seed.blueprint, self._names)
        return 1 + self._names.index(seed.blueprint)

    def _costs(self, masks: Masks) -> NDArray[np.int64]:
        costs = np.zeros(masks.blueprint_mask.shape, dtype=np.int64)
        for row, column in np.argwhere(masks.blueprint_mask):
            slot, name = self.slots[row], self._names[column]
            if slot not in self.costs or name not in self.costs[slot]:
                raise StateError(f"no cost is given for blueprint {name!r} at slot {slot!r}, where it fits")
            costs[row, column] = self.costs[slot][name]
        return costs


def _gradient_values(seed: SeedReport) -> dict[str, float]:
    values = {} if seed.gradient_ratio is None else {"seed_gradient_ratio": _log(seed.gradient_ratio, 10)}
    if seed.gradients is not None and seed.gradient_health is not None:
        values["gradients_measured"] = 1.0
        values["gradient_norm"] = _log(seed.gradients.norm, 10)
        values["gradient_health"] = seed.gradient_health
        values["gradient_vanishing"] = seed.gradients.vanishing
        values["gradient_exploding"] = seed.gradients.exploding
    return values


def _loss_drop(nats: float | None, classes: int) -> float:
    return 0.0 if nats is None else nats / math.log(classes)


def _within(value: float, most: float, worst: float) -> float:
    """A figure from 0 to the most that is seen of it; the worst for what is no number."""
    return worst if math.isnan(value) else min(max(float(value), 0.0), most)


def _log(value: float, base: int) -> float:
    """The logarithm; minus infinity, which the bounds cut off, for 0; NaN stays NaN."""
    return math.log(value, base) if value > 0.0 else math.nan if math.isnan(value) else -math.inf


def _log_ratio(value: float, reference: float, base: int) -> float:
    """Without a reference (a learning rate that starts at 0, say) there is no meaning."""
    return _log(value / reference, base) if reference > 0.0 else math.nan


_HOST_PLACES = {field.name: place for place, field in enumerate(OBSERVATION.host_fields)}
_SLOT_PLACES = {field.name: place for place, field in enumerate(OBSERVATION.slot_fields)}


@cache
def _bounds(slots: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest values of a host and of so many slots, one after another."""
    fields = (*OBSERVATION.host_fields, *OBSERVATION.slot_fields * slots)
    return np.array([field.low for field in fields]), np.array([field.high for field in fields])


def _filled(host: Mapping[str, float], slots: Sequence[Mapping[str, float]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[H] and [S, F], from values by name: each within the bounds of its field, infinities at the bound on their side; 0 for NaN, which has
    no meaning, and for what has no entry. All in one array: so small, it costs by the call."""
    line = [0.0] * (len(_HOST_PLACES) + len(slots) * len(_SLOT_PLACES))
    for name, value in host.items():
        line[_HOST_PLACES[name]] = value
    for number, values in enumerate(slots):
        start = len(_HOST_PLACES) + number * len(_SLOT_PLACES)
        for name, value in values.items():
            line[start + _SLOT_PLACES[name]] = value
    low, high = _bounds(len(slots))
    bounded = np.minimum(np.maximum(np.array(line, dtype=np.float64), low), high)
    bounded[np.isnan(bounded)] = 0.0
    seen = bounded.astype(np.float32)
    return seen[: len(_HOST_PLACES)], seen[len(_HOST_PLACES) :].reshape(len(slots), len(_SLOT_PLACES))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
