"""What a controller sees: the named, bounded numbers that describe a host and each of its slots after an epoch.

The schema is data: names, scales, bounds and reasons. Whoever measures fills it in, whoever decides reads it, and a saved
policy keeps its fingerprint, so that it is never fed with an observation it was not trained on.

0.0 is inside every field's bounds and is what a field holds where it has no meaning: an empty slot, or something that was not
measured. Where 0.0 is also a value that could be measured, a flag of its own says whether it was.

"points" are percentage points of accuracy. "ln K" is the loss of the uniform prediction over K classes (or K tokens), the scale
on which losses of different tasks can be compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from esper.leyline.actions import Op, Style
from esper.leyline.errors import unknown
from esper.leyline.reports import Gate
from esper.leyline.stages import Stage

OBSERVATION_VERSION = 5
"""Goes up by one with every change to the names, scales or bounds below."""

OBSERVATION_LIMIT = 10.0
"""No field's bounds reach further than this on either side."""

NO_BLUEPRINT = 0
"""Blueprint index of a slot without a seed.

Which blueprint a slot's seed has travels beside the floats, as one integer per slot: NO_BLUEPRINT, or one plus the blueprint's
place in the controller's list. The policy learns an embedding row for each, so a new blueprint is one row more and no field here.
"""

HISTORY_EPOCHS = 5
"""Epochs before the present one whose validation results are seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number of an observation: what it is called, how it is scaled, between which bounds it lies, and why it is seen."""

    name: str
    unit: str
    """How the value is scaled, e.g. "points / 10"."""
    low: float
    high: float
    why: str

    def __post_init__(self) -> None:
        # 0.0 stands for "no meaning here", so it must be a legal value everywhere.
        if not -OBSERVATION_LIMIT <= self.low <= 0.0 <= self.high <= OBSERVATION_LIMIT or self.low == self.high:
            raise ValueError(f"bounds of {self.name!r} must enclose 0 within +-{OBSERVATION_LIMIT}; found {self.low} to {self.high}")


OBSERVED_STAGES: tuple[Stage, ...] = tuple(stage for stage in Stage if stage is not Stage.UNKNOWN)
"""The nine stages a slot can be in, in the order of their fields."""

OBSERVED_GATES: tuple[Gate, ...] = tuple(gate for gate in Gate if gate is not Gate.G0)
"""Gates whose verdict on the present seed is seen; G0 judges seeds that do not exist yet."""


def _field(name: str, unit: str, low: float, high: float, why: str) -> Field:
    return Field(name=name, unit=unit, low=low, high=high, why=why)


def _flag(name: str, why: str) -> Field:
    return _field(name, "1 yes, 0 no", 0.0, 1.0, why)


def _one_hot(prefix: str, values: tuple[Stage, ...] | tuple[Op, ...] | tuple[Style, ...], why: str) -> tuple[Field, ...]:
    return tuple(_flag(f"{prefix}_{value.name.lower()}", why) for value in values)


def _history(name: str, unit: str, high: float) -> tuple[Field, ...]:
    why = "the recent course of learning; the first epoch's value stands for those before it"
    return tuple(_field(f"{name}_{ago}_ago", unit, 0.0, high, why) for ago in range(1, HISTORY_EPOCHS + 1))


_POINTS = "points / 10"
_LOSS = "loss / ln K"
_LOSS_DROP = "loss / ln K, without the seed minus with it"
_EPOCHS = "epochs / 10"
_TREND = "Theil-Sen slope per epoch / noise of the window"
_GATE = "1 would pass, -1 would not, 0 not its turn"

HOST_FIELDS: tuple[Field, ...] = (
    _field("progress", "epochs done / budget", 0.0, 1.0, "late in the budget little can still be started"),
    _field("epoch", "log2(1 + epochs done)", 0.0, 10.0, "early epochs bring more than late ones, whatever the budget"),
    _field("step", "log10(1 + optimiser steps done)", 0.0, 10.0, "epochs of different tasks differ in length"),
    _field("budget", "log2(1 + epochs in the budget)", 0.0, 10.0, "how many seeds can follow one another"),
    _field("epochs_left", "log2(1 + epochs left)", 0.0, 10.0, "whether a seed that starts now can be finished"),
    _field("train_loss", _LOSS, 0.0, 10.0, "how well the host fits its data"),
    _field("train_accuracy", "fraction", 0.0, 1.0, "how well the host fits its data"),
    _field("val_loss", _LOSS, 0.0, 10.0, "how well the host does on unseen data"),
    _field("val_accuracy", "fraction", 0.0, 1.0, "how well the host does on unseen data"),
    _field("val_accuracy_error", f"{_POINTS}, standard error; 0 unknown", 0.0, 10.0, "how much a change has to be to mean something"),
    _field("train_loss_delta", f"10 x {_LOSS}, change from the epoch before", -10.0, 10.0, "whether the host still learns"),
    _field("train_accuracy_delta", f"{_POINTS}, change from the epoch before", -10.0, 10.0, "whether the host still learns"),
    _field("val_loss_delta", f"10 x {_LOSS}, change from the epoch before", -10.0, 10.0, "whether learning carries over"),
    _field("val_accuracy_delta", f"{_POINTS}, change from the epoch before", -10.0, 10.0, "whether learning carries over"),
    *_history("val_loss", _LOSS, 10.0),
    *_history("val_accuracy", "fraction", 1.0),
    _field("val_loss_trend", _TREND, -10.0, 10.0, "a direction that one noisy epoch cannot turn"),
    _field("val_accuracy_trend", _TREND, -10.0, 10.0, "a direction that one noisy epoch cannot turn"),
    _field("loss_gap", f"{_LOSS}, val minus train", -10.0, 10.0, "overfitting: more capacity will not help"),
    _field("accuracy_gap", f"{_POINTS}, train minus val", -10.0, 10.0, "overfitting: more capacity will not help"),
    _field("plateau", f"{_EPOCHS}, since the best val accuracy", 0.0, 10.0, "a host that is stuck is the reason to grow"),
    _field("best_val_accuracy", "fraction", 0.0, 1.0, "what has been reached and may have been lost"),
    _field("best_val_loss", _LOSS, 0.0, 10.0, "what has been reached and may have been lost"),
    _field("harvest_accuracy", "fraction, of host and fossils alone", 0.0, 1.0, "what would be left if training ended now"),
    _field("harvest_loss", f"{_LOSS}, of host and fossils alone", 0.0, 10.0, "what would be left if training ended now"),
    _field("at_stake", f"{_POINTS}, val minus harvest accuracy", -10.0, 10.0, "what live seeds hold, and the end takes away"),
    _field("parameters", "log10(1 + parameters of the network)", 0.0, 10.0, "a small host gains more from a seed than a large one"),
    _field("growth", "log2(parameters / parameters at the start)", 0.0, 10.0, "what has been spent so far"),
    _field("harvest_growth", "log2(parameters of host and fossils / at the start)", 0.0, 10.0, "what the harvest will have cost"),
    _field("rent", f"{_POINTS}, of a network that grew sixteenfold", 0.0, 10.0, "what size costs this user, and so what a seed must bring"),
    _field("slots_in_use", "share of enabled slots that hold a module", 0.0, 1.0, "how much room is left"),
    *(
        _field(f"share_{stage.name.lower()}", "share of enabled slots", 0.0, 1.0, "what is going on elsewhere in the host")
        for stage in OBSERVED_STAGES
    ),
    *_one_hot("last_op", tuple(Op), "what was tried last; all 0 before the first decision"),
    _field("last_op_succeeded", "1 carried out, -1 refused, 0 none yet", -1.0, 1.0, "an act that was refused need not be repeated"),
    _field("learning_rate", "log10(rate / initial rate)", -4.0, 2.0, "seeds that start when the rate has decayed starve"),
    _field("seeds_germinated", "germinated so far / enabled slots", 0.0, 10.0, "how much was tried; a limit is in the masks"),
    _field("rollbacks", "count", 0.0, 10.0, "a host that had to be rescued is fragile"),
)
"""Seen once per host and epoch."""

SLOT_FIELDS: tuple[Field, ...] = (
    _flag("enabled", "a slot that is switched off cannot be used"),
    *_one_hot("stage", OBSERVED_STAGES, "what can be done with the slot"),
    *_one_hot("previous_stage", OBSERVED_STAGES, "BLENDING after HOLDING is a retarget; all 0 when there was none"),
    _field("epochs_in_stage", _EPOCHS, 0.0, 10.0, "gates ask for time, and patience ends"),
    _field("age", f"{_EPOCHS}, since germination", 0.0, 10.0, "a young seed has not had a fair trial"),
    _field("alpha", "share of influence", 0.0, 1.0, "how much the host already leans on the seed"),
    _field("alpha_target", "share of influence", 0.0, 1.0, "only a target of 1 leads to HOLDING"),
    _field("alpha_speed", "change of alpha per epoch of the ramp under way", 0.0, 1.0, "fast ramps shake the host"),
    _field("alpha_direction", "1 rising, -1 falling, 0 no ramp", -1.0, 1.0, "whether influence grows or goes"),
    _field("ramp_left", _EPOCHS, 0.0, 10.0, "no new target before the ramp ends"),
    _flag("pruning", "the ramp under way ends in PRUNED"),
    *_one_hot("style", tuple(Style), "how the seed is blended in; all 0 without a seed"),
    _field("tempo", _EPOCHS, 0.0, 10.0, "how long the first blending takes"),
    _field("parameters", "log2(1 + seed parameters / host parameters)", 0.0, 10.0, "what the seed costs"),
    _field("improvement", f"{_POINTS}, val accuracy now minus at germination", -10.0, 10.0, "progress in the seed's time"),
    _field("improvement_in_stage", f"{_POINTS}, val accuracy now minus at the stage's start", -10.0, 10.0, "what this stage brought"),
    _field("contribution", _POINTS, -10.0, 10.0, "accuracy with the seed minus without: what it is worth"),
    _flag("contribution_measured", "tells a contribution of 0 from an unknown one"),
    _field("contribution_error", f"{_POINTS}, standard error; 0 unknown", 0.0, 10.0, "how much of the contribution is chance"),
    _field("contribution_loss", f"10 x {_LOSS_DROP}", -10.0, 10.0, "what the seed is worth, on a scale that one sample cannot turn"),
    _field("contribution_age", f"{_EPOCHS}, since it was measured", 0.0, 10.0, "an old figure is worth less"),
    _field("contribution_trend", f"{_POINTS} per epoch, Theil-Sen slope", -10.0, 10.0, "a rising seed deserves patience"),
    _field("interaction", f"{_POINTS}, sum over pairs with other seeds", -10.0, 10.0, "seeds that need or replace one another"),
    _field("trial_contribution", f"{_POINTS}, at the target alpha while in TRAINING", -10.0, 10.0, "what blending would bring"),
    _flag("trial_measured", "tells a trial contribution of 0 from an unknown one"),
    _field("trial_error", f"{_POINTS}, standard error; 0 unknown", 0.0, 10.0, "how much of the trial is chance: often all of it"),
    _field("trial_loss", f"100 x {_LOSS_DROP}", -10.0, 10.0, "the trial on a scale on which it says something"),
    _field("gradient_norm", "log10(norm)", -8.0, 4.0, "whether the seed learns at all"),
    _field("gradient_health", "1 - 0.5 x share vanishing - 0.8 x share exploding", 0.0, 1.0, "what the gates judge"),
    _field("gradient_vanishing", "share of tensors", 0.0, 1.0, "dead parts of the seed"),
    _field("gradient_exploding", "share of tensors", 0.0, 1.0, "unstable parts of the seed"),
    _field("seed_gradient_ratio", "log10((|g_seed| / |g_host|) x sqrt(P_host / P_seed))", -4.0, 1.0, "who learns, seed or host"),
    _flag("gradients_measured", "tells a log of 0 from an unknown one"),
    *(_field(f"gate_{gate.name.lower()}", _GATE, -1.0, 1.0, "what can be done next") for gate in OBSERVED_GATES),
    _field("position", "0 first in the forward pass, 1 last", 0.0, 1.0, "early and late features want different seeds"),
    _field("width", "log2(channels or features) / 2", 0.0, 10.0, "what a blueprint costs and can do here"),
    _field("reach", "log2(1 + positions that one input position reaches) / 2", 0.0, 10.0, "whether the host sees shapes; 0 unknown"),
    _field("capacity", "log2(1 + parameters since the slot before / width^2)", 0.0, 10.0, "where the host is thin, and a seed adds most"),
    _field("embargo_left", _EPOCHS, 0.0, 10.0, "when the slot can be used again"),
)
"""Seen for every slot, whatever their number, in the same order for each."""


UNTOLD: tuple[tuple[str, ...], ...] = (
    ("train_loss", "train_accuracy", "train_loss_delta", "train_accuracy_delta", "loss_gap", "accuracy_gap"),
    (
        *("val_loss", "val_loss_delta", "val_loss_trend", "best_val_loss", "harvest_loss", "loss_gap", "contribution_loss", "trial_loss"),
        *(f"val_loss_{ago}_ago" for ago in range(1, HISTORY_EPOCHS + 1)),
    ),
    ("val_accuracy_error", "contribution_error", "trial_error"),
)
"""Fields, of host and slots, that a loop which is not ours may leave out together, and which are 0 then: what becomes of the training data,
losses, and standard errors, which take a result for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationSchema:
    """The fields of an observation in their order. Floats lie as [host fields] and [slots, slot fields]; blueprints as integers [slots]."""

    version: int = OBSERVATION_VERSION
    host_fields: tuple[Field, ...] = HOST_FIELDS
    slot_fields: tuple[Field, ...] = SLOT_FIELDS

    def __post_init__(self) -> None:
        for fields in (self.host_fields, self.slot_fields):
            names = [field.name for field in fields]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"observation fields with the same name: {', '.join(twice)}")

    @property
    def host_size(self) -> int:
        """Values per host."""
        return len(self.host_fields)

    @property
    def slot_size(self) -> int:
        """Values per slot."""
        return len(self.slot_fields)

    def host_index(self, name: str) -> int:
        """Where a host field lies among the host's values."""
        return _index("host field", self.host_fields, name)

    def slot_index(self, name: str) -> int:
        """Where a slot field lies among one slot's values."""
        return _index("slot field", self.slot_fields, name)

    def fingerprint(self) -> str:
        """Sixteen hex digits that change with the version and with any name, bound or order; kept with a saved policy."""
        groups = (self.host_fields, self.slot_fields)
        layout = [self.version, *([[field.name, float(field.low), float(field.high)] for field in fields] for fields in groups)]
        return hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:16]

    def describe(self) -> str:
        """The schema as a text table, one line for each field."""
        title = f"observation version {self.version}, fingerprint {self.fingerprint()}"
        return "\n".join([title, *_table("per host", self.host_fields), *_table("per slot", self.slot_fields)])


OBSERVATION = ObservationSchema()
"""The schema that is in use."""


def _index(kind: str, fields: tuple[Field, ...], name: str) -> int:
    for index, field in enumerate(fields):
        if field.name == name:
            return index
    raise unknown(kind, name, (field.name for field in fields))


def _table(title: str, fields: tuple[Field, ...]) -> list[str]:
    rows = [(field.name, f"{field.low:g} to {field.high:g}", field.unit, field.why) for field in fields]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows]
    return ["", f"{title} ({len(fields)} values)", *(f"  {line}" for line in lines)]
