"""The observation schema holds what the control document lists, bounded, and a change to it does not go unseen."""

from __future__ import annotations

import dataclasses
import math

import pytest

from esper.leyline.errors import UnknownNameError
from esper.leyline.observation import (
    HOST_FIELDS,
    OBSERVATION,
    OBSERVATION_VERSION,
    SLOT_FIELDS,
    Field,
    ObservationSchema,
)

STAGES = ["dormant", "germinated", "training", "blending", "holding", "fossilized", "pruned", "embargoed", "resetting"]
HOST_NAMES = {
    *("progress", "epoch", "step", "budget", "epochs_left"),
    *("train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_accuracy_error"),
    *("train_loss_delta", "train_accuracy_delta", "val_loss_delta", "val_accuracy_delta"),
    *(f"val_loss_{ago}_ago" for ago in (1, 2, 3, 4, 5)),
    *(f"val_accuracy_{ago}_ago" for ago in (1, 2, 3, 4, 5)),
    *("val_loss_trend", "val_accuracy_trend", "loss_gap", "accuracy_gap", "plateau", "best_val_accuracy", "best_val_loss"),
    *("harvest_accuracy", "harvest_loss", "at_stake", "harvest_growth", "rent"),
    *("parameters", "growth", "slots_in_use", *(f"share_{stage}" for stage in STAGES)),
    *(f"last_op_{op}" for op in ("wait", "germinate", "advance", "fossilize", "prune", "set_alpha_target")),
    *("last_op_succeeded", "learning_rate", "seeds_germinated", "rollbacks"),
}
SLOT_NAMES = {
    *("enabled", *(f"stage_{stage}" for stage in STAGES), *(f"previous_stage_{stage}" for stage in STAGES)),
    *("epochs_in_stage", "age", "alpha", "alpha_target", "alpha_speed", "alpha_direction", "ramp_left", "pruning"),
    *("style_linear_add", "style_sigmoid_add", "style_linear_multiply", "style_gated", "tempo", "parameters"),
    *("improvement", "improvement_in_stage", "contribution", "contribution_measured", "contribution_age", "contribution_trend"),
    *("contribution_error", "contribution_loss"),
    *("interaction", "trial_contribution", "trial_measured", "trial_error", "trial_loss"),
    *("gradient_norm", "gradient_health", "gradient_vanishing", "gradient_exploding", "seed_gradient_ratio", "gradients_measured"),
    *("gate_g1", "gate_g2", "gate_g3", "gate_g5", "position", "width", "reach", "capacity", "embargo_left"),
}
# The floor of 80 values: each named value, and the host or slot field that carries it. Blueprint travels as an index beside the floats.
FLOOR_HOST = {
    **{"epoch": "epoch", "step": "step", "train loss": "train_loss", "val loss": "val_loss"},
    **{"train accuracy": "train_accuracy", "val accuracy": "val_accuracy"},
    **{"loss delta": "val_loss_delta", "accuracy delta": "val_accuracy_delta"},
    **{"plateau length": "plateau", "best accuracy": "best_val_accuracy", "best loss": "best_val_loss"},
    **{f"loss history {ago}": f"val_loss_{ago}_ago" for ago in range(1, 6)},
    **{f"accuracy history {ago}": f"val_accuracy_{ago}_ago" for ago in range(1, 6)},
    **{"parameters": "parameters", "share of slots in use": "slots_in_use"},
    **{"a slot's accuracy": "val_accuracy", "a slot's progress": "progress"},
}
FLOOR_SLOT = {
    **{"active": "enabled", "stage": "stage_training", "alpha": "alpha", "improvement": "improvement"},
    **{"gradient norm": "gradient_norm", "health": "gradient_health", "vanishing": "gradient_vanishing", "exploding": "gradient_exploding"},
    **{"epochs in stage": "epochs_in_stage", "accuracy change": "improvement_in_stage"},
}


def test_the_schema_has_exactly_the_documented_fields() -> None:
    assert {field.name for field in HOST_FIELDS} == HOST_NAMES
    assert {field.name for field in SLOT_FIELDS} == SLOT_NAMES


def test_the_floor_of_eighty_values_is_contained() -> None:
    assert all(OBSERVATION.host_index(name) >= 0 for name in FLOOR_HOST.values())
    assert all(OBSERVATION.slot_index(name) >= 0 for name in FLOOR_SLOT.values())


@pytest.mark.parametrize("field", [*HOST_FIELDS, *SLOT_FIELDS], ids=lambda field: field.name)
def test_every_field_is_bounded_by_ten_encloses_zero_and_explains_itself(field: Field) -> None:
    assert -10.0 <= field.low <= 0.0 <= field.high <= 10.0
    assert field.low < field.high
    assert field.unit
    assert field.why


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (-2.0, -1.0), (0.0, 0.0), (0.0, 11.0), (-math.inf, 0.0), (math.nan, 1.0)])
def test_a_field_with_unusable_bounds_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="bounds of 'x'"):
        Field(name="x", unit="", low=low, high=high, why="")


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="progress"):
        ObservationSchema(host_fields=(HOST_FIELDS[0], HOST_FIELDS[0]))


def test_an_index_is_the_place_of_the_field_and_an_unknown_name_gets_a_hint() -> None:
    assert [OBSERVATION.host_index(field.name) for field in HOST_FIELDS] == list(range(len(HOST_FIELDS)))
    assert [OBSERVATION.slot_index(field.name) for field in SLOT_FIELDS] == list(range(len(SLOT_FIELDS)))
    with pytest.raises(UnknownNameError, match="unknown slot field 'contributon'; did you mean 'contribution'"):
        OBSERVATION.slot_index("contributon")


def test_the_fingerprint_changes_with_version_name_bound_and_order_and_not_with_words() -> None:
    first = HOST_FIELDS[0]
    changed = [
        ObservationSchema(version=OBSERVATION_VERSION + 1),
        ObservationSchema(host_fields=(dataclasses.replace(first, name="other"), *HOST_FIELDS[1:])),
        ObservationSchema(host_fields=(dataclasses.replace(first, high=2.0), *HOST_FIELDS[1:])),
        ObservationSchema(slot_fields=SLOT_FIELDS[::-1]),
        ObservationSchema(host_fields=HOST_FIELDS[:-1]),
    ]
    assert len({schema.fingerprint() for schema in [OBSERVATION, *changed]}) == 1 + len(changed)
    reworded = ObservationSchema(host_fields=(dataclasses.replace(first, why="said otherwise", high=1), *HOST_FIELDS[1:]))
    assert reworded.fingerprint() == OBSERVATION.fingerprint()


def test_a_changed_schema_needs_a_new_version() -> None:
    # When this fails: raise OBSERVATION_VERSION, because saved policies were trained on the old layout, and then write the new pair here.
    assert (OBSERVATION_VERSION, OBSERVATION.fingerprint()) == (5, "f78deb92efa68139")


def test_the_description_names_every_field_with_its_unit() -> None:
    lines = OBSERVATION.describe().splitlines()
    for field in (*HOST_FIELDS, *SLOT_FIELDS):
        assert any(line.split()[:1] == [field.name] and field.unit in line and line.endswith(field.why) for line in lines)
