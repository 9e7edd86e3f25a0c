"""Observations: every field against a value worked by hand, finite and bounded whatever comes, and exact after saving."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Decision, Op, Style
from esper.leyline.errors import StateError, UnknownNameError
from esper.leyline.observation import NO_BLUEPRINT, OBSERVATION, OBSERVED_GATES, OBSERVED_STAGES, SLOT_FIELDS, UNTOLD, Field
from esper.leyline.reports import EpochReport, GateVerdict, LifecycleConfig
from esper.leyline.stages import Stage
from esper.tamiyo import Observation, Rules, SignalTracker
from esper.tamiyo.observe.signals import _filled
from tests.tamiyo.samples import BLUEPRINTS, HEALTHY, SLOTS, report, report_streams, seed, tracker
from tests.tamiyo.simulator import World, play

LN10 = math.log(10)


def observe(*moments: EpochReport, **options: Any) -> Observation:
    """What is seen after the last of these reports."""
    watching = tracker(tuple(each.slot for each in moments[0].seeds), **options)
    return [watching.observe(moment) for moment in moments][-1]


def one(stage: Stage, rules: Rules | None = None, lifecycle: LifecycleConfig | None = None, **fields: Any) -> Observation:
    """What is seen of a single slot in its first epoch."""
    return observe(report(seed("r0c0", stage, **fields)), rules=rules, lifecycle=lifecycle)


# Bounds and shape


@given(stream=report_streams(), limit=st.none() | st.integers(1, 3))
def test_every_value_is_finite_and_within_its_bounds_whatever_the_reports_say(stream: list[EpochReport], limit: int | None) -> None:
    watching = tracker(tuple(each.slot for each in stream[0].seeds), Rules(max_seeds=limit))
    for moment in stream:
        seen = watching.observe(moment)
        for values, fields in ((seen.host[None], OBSERVATION.host_fields), (seen.slots, OBSERVATION.slot_fields)):
            assert np.isfinite(values).all()
            low, high = (np.array([getattr(field, side) for field in fields], dtype=np.float32) for side in ("low", "high"))
            assert ((values >= low) & (values <= high)).all()


def test_shapes_and_types_follow_the_schema() -> None:
    seen = observe(report(*(seed(slot) for slot in SLOTS)))
    assert seen.host.dtype == seen.slots.dtype == np.float32
    assert (seen.host.shape, seen.slots.shape) == ((OBSERVATION.host_size,), (3, OBSERVATION.slot_size))
    assert seen.blueprints.dtype == np.int64
    assert seen.blueprints.tolist() == [NO_BLUEPRINT] * 3


def test_an_observation_cannot_be_changed_by_those_who_read_it() -> None:
    seen = observe(report(seed()))
    for array in (seen.host, seen.slots, seen.blueprints, seen.costs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert not seen.host.flags.writeable


# The host


def test_time_size_and_counts_are_scaled_as_the_schema_says() -> None:
    counts: dict[str, Any] = {"epoch": 7, "budget": 10, "steps": 99, "learning_rate": 0.01, "germinated": 3, "rollbacks": 2}
    moment = report(seed("r0c0", Stage.FOSSILIZED), seed("r0c1"), **counts)
    seen = observe(moment, rules=Rules(max_seeds=4))
    expected = {"progress": 0.7, "epoch": 3.0, "step": 2.0, "budget": math.log2(11), "epochs_left": 2.0, "rollbacks": 2.0}
    expected |= {"parameters": math.log10(1601), "growth": math.log2(1.6), "learning_rate": -1.0, "seeds_germinated": 1.5}
    expected |= {"slots_in_use": 0.5, "share_dormant": 0.5, "share_fossilized": 0.5, "share_training": 0.0}
    assert {name: seen.host_value(name) for name in expected} == pytest.approx(expected, rel=1e-6)
    assert observe(moment, rules=Rules(enabled=("r0c1",))).host_value("seeds_germinated") == 3.0


def test_what_a_host_is_at_a_slot_is_seen_from_its_reach_and_its_capacity() -> None:
    blind, wide, unknown = seed("r0c0", reach=1, capacity=64), seed("r0c1", reach=63, capacity=7 * 64), seed("r0c2")
    seen = observe(report(blind, wide, unknown))
    assert [seen.slot_value(slot, "reach") for slot in ("r0c0", "r0c1", "r0c2")] == [0.5, 3.0, 0.0]
    assert [seen.slot_value(slot, "capacity") for slot in ("r0c0", "r0c1", "r0c2")] == [1.0, 3.0, 0.0]


def test_losses_are_in_units_of_ln_k_and_accuracies_in_fractions_or_tens_of_points() -> None:
    first = report(train_loss=2 * LN10, val_loss=LN10, train_accuracy=40.0, val_accuracy=30.0)
    second = report(train_loss=LN10, val_loss=0.9 * LN10, train_accuracy=55.0, val_accuracy=50.0, epoch=2)
    seen = observe(first, second)
    expected = {"train_loss": 1.0, "val_loss": 0.9, "train_accuracy": 0.55, "val_accuracy": 0.5, "loss_gap": -0.1, "accuracy_gap": 0.5}
    expected |= {"train_loss_delta": -10.0, "val_loss_delta": -1.0, "train_accuracy_delta": 1.5, "val_accuracy_delta": 2.0}
    assert {name: seen.host_value(name) for name in expected} == pytest.approx(expected, abs=1e-6)


def test_what_would_be_left_at_the_end_is_seen_and_what_live_seeds_hold_beyond_it() -> None:
    grown = (seed("r0c0", Stage.FOSSILIZED, parameters=3000), seed("r0c1", Stage.HOLDING, parameters=4000), seed("r0c2"))
    seen = observe(report(*grown, val_accuracy=80.0, harvest_accuracy=65.0, harvest_loss=0.5 * LN10))
    expected = {"harvest_accuracy": 0.65, "harvest_loss": 0.5, "at_stake": 1.5, "harvest_growth": 2.0, "growth": 3.0}
    assert {name: seen.host_value(name) for name in expected} == pytest.approx(expected, abs=1e-6)


def test_histories_go_back_five_epochs_and_the_first_stands_for_those_before_it() -> None:
    moments = [report(val_accuracy=10.0 * i, val_loss=i * LN10, epoch=i) for i in range(1, 8)]
    early, late = observe(*moments[:3]), observe(*moments)
    assert [early.host_value(f"val_accuracy_{ago}_ago") for ago in range(1, 6)] == pytest.approx([0.2, 0.1, 0.1, 0.1, 0.1])
    assert [late.host_value(f"val_loss_{ago}_ago") for ago in range(1, 6)] == pytest.approx([6.0, 5.0, 4.0, 3.0, 2.0])
    assert early.recent_accuracies() == pytest.approx([10.0, 20.0, 30.0])
    assert late.recent_accuracies() == pytest.approx([20.0, 30.0, 40.0, 50.0, 60.0, 70.0])


def test_the_first_epoch_has_no_change_and_no_trend() -> None:
    seen = observe(report())
    for name in ("val_loss_delta", "train_accuracy_delta", "val_loss_trend", "val_accuracy_trend", "plateau"):
        assert seen.host_value(name) == 0.0
    assert seen.recent_accuracies() == pytest.approx([60.0])


def test_the_trend_is_taken_over_the_window_against_its_noise() -> None:
    # 1, 2, 3, 10 have slope 2 and noise 1.4826, as worked by hand in the test of the trend.
    seen = observe(*(report(val_accuracy=value, epoch=i) for i, value in enumerate([1.0, 2.0, 3.0, 10.0], start=1)))
    assert seen.host_value("val_accuracy_trend") == pytest.approx(2.0 / 1.4826, rel=1e-5)
    # The 90 lies before the window of six; what is left is a straight line, bounded at 10.
    long = observe(*(report(val_accuracy=value, epoch=i) for i, value in enumerate([90.0, *range(20, 50, 5)], start=1)))
    assert long.host_value("val_accuracy_trend") == 10.0


def test_plateau_counts_the_epochs_since_the_best_and_the_best_is_kept() -> None:
    accuracies, losses = [50.0, 70.0, 60.0, 70.0], [1.0, 0.5, 0.7, 0.6]
    moments = [report(val_accuracy=a, val_loss=b * LN10, epoch=i + 1) for i, (a, b) in enumerate(zip(accuracies, losses, strict=True))]
    seen = observe(*moments)
    assert seen.host_value("plateau") == pytest.approx(0.2)
    assert (seen.host_value("best_val_accuracy"), seen.host_value("best_val_loss")) == pytest.approx((0.7, 0.5))


def test_a_loss_that_is_not_a_number_is_the_worst_and_never_the_best() -> None:
    seen = observe(report(val_loss=LN10), report(val_loss=math.nan, val_accuracy=math.nan, epoch=2))
    assert (seen.host_value("val_loss"), seen.host_value("best_val_loss"), seen.host_value("val_accuracy")) == (10.0, 1.0, 0.0)


def test_what_nobody_ever_told_is_nothing_and_not_the_worst() -> None:
    untold = {"train_loss": math.nan, "train_accuracy": math.nan, "val_loss": math.nan, "harvest_loss": math.nan}
    slots = [seed(slot) for slot in SLOTS]
    watching = tracker(SLOTS)
    for epoch in range(1, 5):
        seen = watching.observe(report(*slots, **untold, epoch=epoch))
    train, losses, _ = UNTOLD
    host = {field.name for field in OBSERVATION.host_fields}
    assert [name for name in (*train, *losses) if name in host and seen.host_value(name) != 0.0] == []
    again = tracker(SLOTS)
    again.load_state(json.loads(json.dumps(watching.state(), allow_nan=False)))
    for each in (watching, again):
        told = each.observe(report(*slots, val_loss=0.5 * LN10, epoch=5))
        assert (told.host_value("val_loss"), told.host_value("best_val_loss"), told.host_value("val_loss_1_ago")) == (0.5, 0.5, 0.5)
        lost = each.observe(report(*slots, val_loss=math.nan, train_loss=math.nan, train_accuracy=math.nan, epoch=6))
        worst = [lost.host_value(name) for name in ("val_loss", "train_loss", "train_accuracy")]
        assert worst == [10.0, 10.0, 0.0], "they were numbers before, so they have diverged"


def test_shares_are_of_enabled_slots_alone() -> None:
    moment = report(seed("r0c0"), seed("r0c1", Stage.TRAINING), seed("r0c2"))
    seen = observe(moment, rules=Rules(enabled=("r0c0", "r0c1")))
    assert (seen.host_value("slots_in_use"), seen.host_value("share_dormant")) == (0.5, 0.5)
    assert [seen.slot_value(slot, "enabled") for slot in SLOTS] == [1.0, 1.0, 0.0]


def test_the_last_decision_and_its_success_are_seen_from_the_next_epoch_on() -> None:
    watching = tracker(("r0c0",))
    before = watching.observe(report(seed()))
    watching.note_decision(Decision(op=Op.PRUNE, slot="r0c0"), succeeded=False)
    after = watching.observe(report(seed(), epoch=2))
    names = [f"last_op_{op.name.lower()}" for op in Op]
    assert sum(before.host_value(name) for name in names) == before.host_value("last_op_succeeded") == 0.0
    assert [after.host_value(name) for name in names] == [0, 0, 0, 0, 1, 0]
    assert after.host_value("last_op_succeeded") == -1.0


# A slot


def test_a_seed_is_scaled_as_the_schema_says() -> None:
    life: dict[str, Any] = {"previous_stage": Stage.TRAINING, "epochs_in_stage": 2, "age": 6, "style": Style.GATED, "tempo": 5}
    alpha: dict[str, Any] = {"alpha": 0.4, "alpha_target": 1.0, "ramp_left": 3}
    life["parameters"] = 3000
    figures: dict[str, Any] = {"contribution": 2.5, "contribution_age": 1, "gradients": HEALTHY, "gradient_ratio": 0.01, "width": 16}
    seen = one(Stage.BLENDING, **life, **alpha, **figures)
    expected = {"stage_blending": 1, "stage_training": 0, "previous_stage_training": 1, "epochs_in_stage": 0.2, "age": 0.6, "tempo": 0.5}
    expected |= {"alpha": 0.4, "alpha_target": 1.0, "alpha_speed": 0.2, "alpha_direction": 1.0, "ramp_left": 0.3, "pruning": 0}
    expected |= {"style_gated": 1, "style_linear_add": 0, "parameters": 2.0, "contribution": 0.25, "contribution_measured": 1}
    expected |= {"contribution_age": 0.1, "trial_measured": 0, "gradient_norm": -1.0, "gradient_health": 0.875, "gradient_vanishing": 0.25}
    expected |= {"seed_gradient_ratio": -2.0, "gradients_measured": 1, "gate_g3": 1, "gate_g2": 0, "position": 0.5, "width": 2.0}
    expected |= {"embargo_left": 0, "interaction": 0, "enabled": 1}
    assert {name: seen.slot_value("r0c0", name) for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_ramp_down_has_a_negative_direction_and_a_gate_that_refuses_is_minus_one() -> None:
    ramp: dict[str, Any] = {"alpha": 0.5, "alpha_target": 0.0, "ramp_left": 2, "pruning": True}
    seen = observe(report(seed("r0c0", Stage.BLENDING, **ramp), passed=False))
    names = ("alpha_direction", "alpha_speed", "pruning", "gate_g3")
    assert [seen.slot_value("r0c0", name) for name in names] == [-1.0, 0.25, 1.0, -1.0]


def test_nothing_is_told_of_a_seed_where_there_is_none() -> None:
    gone: dict[str, Any] = {"blueprint": "conv_light", "age": 9, "contribution": 3.0, "tempo": 5, "gradient_ratio": 1.0}
    seen = one(Stage.EMBARGOED, **gone)
    told = {field.name for field in OBSERVATION.slot_fields if seen.slot_value("r0c0", field.name) != 0.0}
    assert told == {"enabled", "stage_embargoed", "position", "width", "embargo_left"}
    assert seen.blueprints.tolist() == [NO_BLUEPRINT]


def test_improvement_counts_from_germination_and_from_the_stage_s_start() -> None:
    accuracies = [50.0, 52.0, 57.0, 58.0]
    moments = [report(seed(), val_accuracy=accuracies[0]), report(seed(), val_accuracy=accuracies[1], epoch=2)]
    # Germinated after epoch 1, so two epochs old at epoch 3; blending began after epoch 3.
    moments += [report(seed("r0c0", Stage.TRAINING, age=2, epochs_in_stage=2), val_accuracy=57.0, epoch=3)]
    moments += [report(seed("r0c0", Stage.BLENDING, age=3, epochs_in_stage=1), val_accuracy=58.0, epoch=4)]
    seen = observe(*moments)
    assert seen.slot_value("r0c0", "improvement") == pytest.approx(0.8)
    assert seen.slot_value("r0c0", "improvement_in_stage") == pytest.approx(0.1)


def test_the_trend_of_the_contribution_is_the_median_slope_of_its_measurements_and_forgets_the_last_seed() -> None:
    def holding(epoch: int, contribution: float, age: int) -> EpochReport:
        return report(seed("r0c0", Stage.HOLDING, contribution=contribution, contribution_age=age), epoch=epoch)

    watching = tracker(("r0c0",))
    seen = [watching.observe(holding(*each)) for each in ((1, 2.0, 0), (2, 2.0, 1), (3, 5.0, 0), (4, 5.0, 1), (5, 1.0, 0))]
    # After epoch 5 the slopes are (5 - 2) / 2, (1 - 5) / 2 and (1 - 2) / 4.
    assert [each.slot_value("r0c0", "contribution_trend") for each in seen] == pytest.approx([0.0, 0.0, 0.15, 0.15, -0.025])
    watching.observe(report(seed("r0c0", Stage.PRUNED), epoch=6))
    fresh = watching.observe(holding(7, 3.0, 0))
    assert fresh.slot_value("r0c0", "contribution_trend") == 0.0


def test_a_trial_is_seen_only_while_in_training_and_a_zero_is_told_from_a_missing_one() -> None:
    trained, missing = one(Stage.TRAINING, trial_contribution=0.0), one(Stage.TRAINING)
    stale = one(Stage.BLENDING, trial_contribution=-4.0)
    assert [each.slot_value("r0c0", "trial_measured") for each in (trained, missing, stale)] == [1.0, 0.0, 0.0]
    assert stale.slot_value("r0c0", "trial_contribution") == 0.0
    assert one(Stage.TRAINING, trial_contribution=-4.0).slot_value("r0c0", "trial_contribution") == pytest.approx(-0.4)


def test_how_sure_a_figure_is_and_what_it_is_in_loss_are_seen_with_it() -> None:
    trial = one(Stage.TRAINING, trial_contribution=1.0, trial_error=0.5, trial_loss=0.02)
    assert [trial.slot_value("r0c0", name) for name in ("trial_error", "trial_loss")] == pytest.approx([0.05, 2.0 / LN10])
    held = one(Stage.HOLDING, contribution=3.0, contribution_error=1.5, contribution_loss=-0.1, trial_error=0.5, trial_loss=0.02)
    assert [held.slot_value("r0c0", name) for name in ("contribution_error", "contribution_loss")] == pytest.approx([0.15, -1.0 / LN10])
    assert [held.slot_value("r0c0", name) for name in ("trial_error", "trial_loss")] == [0.0, 0.0], "those of another stage"
    unknown = one(Stage.HOLDING, contribution=3.0)
    assert [unknown.slot_value("r0c0", name) for name in ("contribution_error", "contribution_loss")] == [0.0, 0.0]


def test_a_trend_is_measured_against_no_less_noise_than_the_samples_make() -> None:
    def rising(error: float | None) -> Observation:
        return observe(*(report(epoch=e, val_accuracy=50.0 + e, val_loss=LN10 * (1.0 - 0.01 * e), val_error=error) for e in range(1, 7)))

    # Half of a standard error of 2 points: a point an epoch is one unit, and a hundredth of ln K too.
    assert rising(2.0).host_value("val_accuracy_trend") == pytest.approx(1.0)
    assert rising(2.0).host_value("val_loss_trend") == pytest.approx(-1.0, rel=1e-4)
    assert rising(0.5).host_value("val_accuracy_trend") == pytest.approx(4.0)
    assert rising(None).host_value("val_accuracy_trend") == pytest.approx(2.0)
    assert rising(2.0).host_value("val_accuracy_error") == pytest.approx(0.2)
    assert rising(None).host_value("val_accuracy_error") == 0.0


def test_interactions_are_summed_over_the_pairs_of_a_slot() -> None:
    pairs = {("r0c0", "r0c1"): 3.0, ("r0c1", "r0c2"): -1.0}
    seen = observe(report(*(seed(slot, Stage.HOLDING) for slot in SLOTS), interactions=pairs))
    assert [seen.slot_value(slot, "interaction") for slot in SLOTS] == pytest.approx([0.3, 0.2, -0.1])


def test_the_embargo_left_is_exactly_the_time_until_the_slot_can_be_used() -> None:
    world = World(budget=40, rollback=5)
    host, steps = play(_GerminateOnce(), world)
    left = [10.0 * step.observation.slot_value("r0c0", "embargo_left") for step in steps]
    free = [step.observation.report.seeds[0].stage is Stage.DORMANT for step in steps]
    back = free.index(True, 5)
    for epoch in range(4, back):
        assert left[epoch] == pytest.approx(back - epoch)
    assert host.lifecycle.embargo_epochs == 4


class _GerminateOnce:
    name = "once"

    def start(self, seed: int) -> dict[str, Any]:
        return {}

    def decide(self, observation: Observation, state: dict[str, Any]) -> tuple[Decision, dict[str, Any]]:
        first = observation.report.epoch == 1
        return Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm") if first else Decision(op=Op.WAIT), state


# Blueprints and costs


def test_a_blueprint_is_one_plus_its_place_in_the_sorted_union_and_costs_lie_in_that_order() -> None:
    moment = report(seed("r0c0", Stage.HOLDING, blueprint="conv_heavy"), seed("r0c1", Stage.TRAINING, blueprint="norm"))
    seen = observe(moment)
    assert seen.masks.blueprint_names == ("conv_heavy", "conv_light", "mlp", "norm")
    assert seen.blueprints.tolist() == [1, 4]
    assert seen.costs.tolist() == [[1200, 600, 0, 16]] * 2


def test_unknown_blueprints_missing_costs_and_foreign_slots_are_named() -> None:
    with pytest.raises(UnknownNameError, match="at slot 'r0c0' 'conv_lite'; did you mean 'conv_light'"):
        one(Stage.HOLDING, blueprint="conv_lite")
    no_costs = SignalTracker(("r0c0",), BLUEPRINTS, {"r0c0": {"norm": 16}}, Rules(), LifecycleConfig())
    with pytest.raises(StateError, match="no cost is given for blueprint 'conv_heavy' at slot 'r0c0'"):
        no_costs.observe(report(seed()))
    with pytest.raises(StateError, match=r"the report is of slots r0c1; this tracker is for r0c0"):
        tracker(("r0c0",)).observe(report(seed("r0c1")))
    with pytest.raises(UnknownNameError, match="unknown slot 'r0c7'"):
        tracker(("r0c0",), Rules(enabled=("r0c7",)))


# Saving


def same(a: Observation, b: Observation) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("host", "slots", "blueprints"))


@given(stream=report_streams(), data=st.data())
def test_a_tracker_goes_on_exactly_from_a_state_that_went_through_json(stream: list[EpochReport], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(stream)))
    slots = tuple(each.slot for each in stream[0].seeds)
    whole, first, second = tracker(slots), tracker(slots), tracker(slots)
    for moment in stream[:cut]:
        whole.observe(moment)
        first.observe(moment)
        for each in (whole, first):
            each.note_decision(Decision(op=Op.ADVANCE), succeeded=True)
    second.load_state(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert second.state() == first.state()
    for moment in stream[cut:]:
        assert same(whole.observe(moment), second.observe(moment))


def test_a_saved_state_does_not_change_when_the_tracker_goes_on() -> None:
    watching = tracker(("r0c0",))
    watching.observe(report(seed("r0c0", Stage.HOLDING, contribution=1.0)))
    saved = watching.state()
    text = json.dumps(saved)
    watching.observe(report(seed("r0c0", Stage.HOLDING, contribution=2.0), epoch=2))
    assert json.dumps(saved) == text


@pytest.mark.parametrize("damage", [{"slots": ["other"]}, {"history": {}}, {"last_op": "GROW"}, {"contributions": None}, {"history": None}])
def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(damage: dict[str, Any]) -> None:
    watching = tracker(("r0c0",))
    watching.observe(report(seed()))
    before = watching.state()
    with pytest.raises(StateError):
        watching.load_state({**before, **damage})
    assert watching.state() == before


def test_the_report_travels_with_the_observation() -> None:
    moment = report(seed())
    assert observe(moment).report is moment


def test_no_field_of_the_schema_is_forgotten() -> None:
    made = tracker(("r0c0", "r0c1"))
    host, slot = set[str](), set[str]()
    for number, stage in enumerate(OBSERVED_STAGES):
        each = seed(
            "r0c0",
            stage,
            previous_stage=stage,
            style=list(Style)[number % len(Style)],
            contribution=1.0,
            trial_contribution=1.0,
            gradients=HEALTHY,
            gradient_ratio=1.0,
        )
        for gate in OBSERVED_GATES:
            moment = report(each, seed("r0c1"), verdicts=(GateVerdict(gate, "r0c0", True), None), interactions={("r0c0", "r0c1"): 1.0})
            made.observe(moment)
            slot |= made._slot_values(moment, 0).keys()
        made.note_decision(Decision(op=list(Op)[number % len(Op)]), succeeded=True)
        host |= made._host_values(moment).keys()
    assert slot == {field.name for field in OBSERVATION.slot_fields}
    assert host == {field.name for field in OBSERVATION.host_fields}


@given(field=st.sampled_from(SLOT_FIELDS), value=st.floats(width=32) | st.integers(-(2**20), 2**20))
def test_what_is_seen_is_inside_the_bounds_of_its_field_and_nan_is_seen_as_zero(field: Field, value: float) -> None:
    _, slots = _filled({}, [{}, {field.name: value}])
    result = slots[1, SLOT_FIELDS.index(field)].item()
    assert result == np.float32(0.0 if math.isnan(value) else min(max(value, field.low), field.high))
    assert np.count_nonzero(slots) == bool(result), "0 for what has no entry"
