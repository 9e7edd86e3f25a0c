"""Each part of a reward against a case worked by hand, its bounds for any report, and what the tracker makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.events import StageChanged
from esper.leyline.reports import EpochReport
from esper.leyline.stages import LIVE, Stage
from esper.simic.rewards import COMPONENTS, FinalScore, Mode, RewardConfig, RewardInput, RewardStep, RewardTracker
from esper.simic.rewards import components as parts
from tests.simic.plans import flat, one_step
from tests.tamiyo.samples import report, seed

CONFIG = RewardConfig()
MODES: tuple[Mode, ...] = ("shaped", "simplified", "sparse", "loss")
A, B = "r0c0", "r0c1"


# Points


def test_points_of_accuracy_and_loss_are_bounded_and_nan_is_the_worst() -> None:
    assert [parts.accuracy_points(each) for each in (61.5, -3.0, 250.0, math.nan, -math.inf)] == [61.5, 0.0, 100.0, 0.0, 0.0]
    worst = -20.0 * 2.0 * math.log(10)
    assert parts.loss_points(1.5, 10, 20.0) == -30.0
    assert [parts.loss_points(each, 10, 20.0) for each in (math.nan, math.inf, 99.0)] == pytest.approx([worst] * 3)


def test_parameters_count_by_alpha_once_they_have_influence() -> None:
    seeds = [
        seed(A, Stage.TRAINING, parameters=500),
        seed(B, Stage.BLENDING, parameters=600, alpha=0.5),
        seed("r0c2", Stage.FOSSILIZED, parameters=100, alpha=1.0),
    ]
    assert parts.effective_parameters(seeds, 1000) == 1400.0


# Levels


def test_a_lead_of_four_points_is_worth_a_tenth_and_no_lead_more_than_one() -> None:
    assert parts.progress_level(4.0, CONFIG) == pytest.approx(math.tanh(0.1))
    assert parts.progress_level(1e9, CONFIG) == 1.0


def test_progress_and_rent_together_are_the_running_score() -> None:
    for lead, rent in ((4.0, 1.5), (-3.0, 2.0), (60.0, 10.0), (0.0, 0.0)):
        together = parts.progress_level(lead, CONFIG) + parts.rent_level(lead, rent, CONFIG)
        assert together == pytest.approx(math.tanh((lead - rent) / 40.0))
    assert parts.rent_level(0.0, 2.0, CONFIG) == pytest.approx(-0.05, rel=0.001)


@pytest.mark.parametrize(
    ("contribution", "progress", "lead", "credit"),
    [
        (-2.0, 5.0, 3.0, -2.0),  # harm counts as it is
        (3.0, 0.0, 3.0, 0.0),  # no progress, no credit
        (3.0, -1.0, 3.0, 0.0),
        (6.0, 2.0, 3.0, 3.0),  # depended on for 6, better by 2: 2 * 2 * 6 / 8
        (1.0, 4.0, 3.0, 1.0),  # better by 4, of which this one brought 1
        (2.0, 2.0, 0.0, 2.0),  # level with the control: no discount yet
        (2.0, 2.0, -1.0, 2.0 * 2.0 / (1.0 + math.exp(3.0))),  # a point behind: a tenth is left
        (2.0, 2.0, -1e9, 0.0),
        (None, 2.0, 2.0, 0.0),
        (math.nan, 2.0, 2.0, 0.0),
        (-math.inf, 2.0, 2.0, -100.0),
    ],
)
def test_credit_of_a_seed(contribution: float | None, progress: float, lead: float, credit: float) -> None:
    assert parts.slot_credit(contribution, progress, lead) == pytest.approx(credit)


@given(st.floats(0.0, 100.0), st.floats(-100.0, 100.0), st.floats(-100.0, 100.0))
def test_credit_is_never_more_than_the_contribution_nor_twice_the_progress(c: float, p: float, d: float) -> None:
    assert 0.0 <= parts.slot_credit(c, p, d) <= min(c, 2.0 * max(0.0, p)) + 1e-9


def test_seeds_that_depend_on_one_another_are_not_paid_once_for_each() -> None:
    room = parts.credit_room(3.0, 1.0, CONFIG)
    assert room == 2.25
    assert parts.attribution_level([6.0, 6.0, 6.0], room, CONFIG) == pytest.approx(0.5 * math.tanh(2.25 / 40))
    assert parts.attribution_level([1.0, -3.0], room, CONFIG) == pytest.approx(0.5 * math.tanh(-2.0 / 40))
    assert parts.credit_room(1.0, 3.0, CONFIG) == 0.25


def test_potential_of_each_stage() -> None:
    found = {stage: parts.stage_potential(seed(A, stage)) for stage in Stage}
    live = {Stage.GERMINATED: 1.0, Stage.TRAINING: 2.0, Stage.BLENDING: 3.5, Stage.HOLDING: 5.5, Stage.FOSSILIZED: 8.0}
    assert found == {stage: live.get(stage, 0.0) for stage in Stage}
    assert parts.pbrs_level([seed(A, Stage.TRAINING), seed(B, Stage.FOSSILIZED)], CONFIG) == pytest.approx(0.02 * 10.0)


@pytest.mark.parametrize("stage", sorted(LIVE))
def test_waiting_in_a_live_stage_adds_a_little_and_stops(stage: Stage) -> None:
    potentials = [parts.stage_potential(seed(A, stage, epochs_in_stage=epochs)) for epochs in (0, 1, 6, 7, 1000)]
    assert [each - potentials[0] for each in potentials] == pytest.approx([0.0, 0.3, 1.8, 2.0, 2.0])


@given(st.integers(0, 10_000))
def test_fossilising_is_never_a_step_down(epochs: int) -> None:
    held = parts.stage_potential(seed(A, Stage.HOLDING, epochs_in_stage=epochs))
    assert parts.change(held, parts.stage_potential(seed(A, Stage.FOSSILIZED)), CONFIG.gamma) > 0.0


def test_a_seed_on_its_way_out_has_no_potential() -> None:
    assert parts.stage_potential(seed(A, Stage.BLENDING, epochs_in_stage=3, pruning=True, alpha_target=0.0, ramp_left=2)) == 0.0


# Costs


def test_acts_cost_a_little_and_refused_ones_more() -> None:
    assert parts.act_cost(WAIT, False, CONFIG) == 0.0
    acts = [Decision(op=op, slot=A) for op in Op if op is not Op.WAIT]
    assert {parts.act_cost(each, False, CONFIG) for each in acts} == {0.002}
    assert {parts.act_cost(each, True, CONFIG) for each in acts} == {0.02}


def test_pruning_what_helps_costs_by_how_much_it_helps_after_rent() -> None:
    assert [parts.helpful_prune_cost(credit, 1.0, CONFIG) for credit in (-4.0, 1.0, 2.0, 3.0, 50.0)] == [0.0, 0.0, 0.015, 0.03, 0.03]


def test_pruning_the_young_costs_unless_they_harm() -> None:
    assert [parts.young_prune_cost(age, None, CONFIG) for age in (0, 5, 10, 30)] == pytest.approx([0.02, 0.01, 0.0, 0.0])
    assert parts.young_prune_cost(5, 0.0, CONFIG) == 0.01
    assert parts.young_prune_cost(5, -0.1, CONFIG) == 0.0


def test_holding_costs_beyond_patience_and_at_most_so_much_in_all() -> None:
    assert parts.holding_cost([5], 0.0, CONFIG) == 0.0
    assert parts.holding_cost([6, 5, 60], 0.0, CONFIG) == 0.01
    assert parts.holding_cost([60], 0.298, CONFIG) == pytest.approx(0.002)
    assert parts.holding_cost([60], 0.3, CONFIG) == 0.0


# The end


def test_terminal_reward_is_the_gain_and_a_little_for_fossils_that_contribute() -> None:
    plain = 2.0 * math.tanh(2.8 / 40.0)
    assert parts.terminal_reward(2.8, [], CONFIG) == pytest.approx(plain)
    assert parts.terminal_reward(2.8, [4.0, 0.9, None, math.nan, 1.0], CONFIG) == pytest.approx(plain + 0.02)
    assert parts.terminal_reward(2.8, [4.0] * 50, CONFIG) == pytest.approx(plain + 0.1)


def test_the_bonus_never_turns_a_loss_into_a_gain() -> None:
    assert parts.terminal_reward(-0.1, [9.0] * 5, CONFIG) == pytest.approx(2.0 * math.tanh(-0.1 / 40.0))
    assert parts.terminal_reward(0.0, [9.0] * 5, CONFIG) == 0.0
    assert parts.terminal_reward(0.1, [9.0] * 5, CONFIG) == pytest.approx(4.0 * math.tanh(0.1 / 40.0))


@given(st.floats(-60.0, 60.0), st.floats(0.01, 20.0))
def test_a_better_network_always_earns_more(gain: float, more: float) -> None:
    assert parts.terminal_reward(gain + more, [], CONFIG) > parts.terminal_reward(gain, [], CONFIG)


# One step, by hand


def blending_step() -> tuple[EpochReport, EpochReport]:
    """Epochs 5 and 6: alpha of a 600-parameter seed goes from 0.25 to 0.5, the host from 60 to 63 points."""
    at_5 = seed(A, Stage.BLENDING, alpha=0.25, epochs_in_stage=1, age=5, contribution=0.5)
    at_6 = replace(at_5, alpha=0.5, epochs_in_stage=2, age=6, contribution=4.0)
    return report(at_5, epoch=5, val_accuracy=60.0), report(at_6, epoch=6, val_accuracy=63.0)


def test_one_step_worked_by_hand() -> None:
    control = replace(flat(), accuracy=(*[60.0] * 5, 61.0, *[61.0] * 20))
    found = one_step(*blending_step(), Decision(op=Op.ADVANCE, slot=A), control=control)
    rent = {alpha: 1.25 * math.log2(1.0 + alpha * 0.6) for alpha in (0.25, 0.5)}
    # Ahead by 2 since the first report; 4 points are lost without the seed: 2 * 2 * 4 / 6, but no more than 2 - rent + 0.25.
    credit = min(2.0 * 2.0 * 4.0 / 6.0, 2.0 - rent[0.5] + 0.25)
    expected = {
        "progress": 0.995 * math.tanh(2.0 / 40.0) - 0.0,
        "attribution": 0.995 * 0.5 * math.tanh(credit / 40.0) - 0.0,
        "pbrs": 0.02 * (0.995 * 4.1 - 3.8),
        "rent": 0.995 * (math.tanh((2.0 - rent[0.5]) / 40.0) - math.tanh(2.0 / 40.0)) + math.tanh(rent[0.25] / 40.0),
        "costs": -0.002,
        "terminal": 0.0,
    }
    assert found.components == pytest.approx(expected)
    assert found.total == pytest.approx(sum(expected.values()))


def final_step(decision: Decision, final: FinalScore, *events: StageChanged, **settings: Any) -> RewardStep:
    held = seed(A, Stage.HOLDING, alpha=1.0, epochs_in_stage=3, age=9, contribution=4.0)
    last = report(held, epoch=25, val_accuracy=64.0)
    tracker = RewardTracker(settings.pop("config", CONFIG), (A,))
    tracker.load_state({**tracker.state(), "start": 20.0, "origins": {A: 0.0}})
    return one_step(last, last, decision, tracker=tracker, events=events, final=final, **settings)


KEPT = StageChanged(slot=A, before=Stage.HOLDING, after=Stage.FOSSILIZED, cause="fossilize", blueprint="conv_light", parameters=600)


def test_the_last_decision_is_rewarded_by_what_is_harvested_after_it() -> None:
    kept = final_step(Decision(op=Op.FOSSILIZE, slot=A), FinalScore(accuracy=64.0, loss=1.0, parameters=1600), KEPT)
    rent = 1.25 * math.log2(1.6)
    ahead, credit = math.tanh(4.0 / 40.0), 4.0 - rent + 0.25
    paid = ahead - math.tanh((4.0 - rent) / 40.0)
    assert kept.components == pytest.approx(
        {
            "progress": 0.995 * ahead - ahead,
            "attribution": 0.5 * (0.995 - 1.0) * math.tanh(credit / 40.0),
            "pbrs": -0.02 * (5.5 + 0.9),
            "rent": -(0.995 - 1.0) * paid,
            "costs": -0.002,
            "terminal": 2.0 * math.tanh((4.0 - rent) / 40.0) + 0.01,
        }
    )
    dropped = final_step(WAIT, FinalScore(accuracy=60.0, loss=1.1, parameters=1000))
    assert dropped.components == pytest.approx(
        {
            "progress": -ahead,
            "attribution": -0.5 * math.tanh(credit / 40.0),
            "pbrs": -0.02 * (5.5 + 0.9),
            "rent": paid,
            "costs": 0.0,
            "terminal": 0.0,
        }
    )


def test_without_a_control_the_host_is_measured_against_its_start() -> None:
    final = FinalScore(accuracy=64.0, loss=1.0, parameters=1600)
    held = seed(A, Stage.HOLDING, alpha=1.0, epochs_in_stage=3, contribution=4.0)
    last = report(held, epoch=25, val_accuracy=64.0)
    tracker = RewardTracker(CONFIG, (A,))
    tracker.step(
        RewardInput(before=report(seed(A), epoch=24, val_accuracy=30.0), decision=WAIT, refused=False, events=(), report=last, control=None)
    )
    found = tracker.step(
        RewardInput(
            before=last, decision=Decision(op=Op.FOSSILIZE, slot=A), refused=False, events=(KEPT,), report=last, control=None, final=final
        )
    )
    assert found.components["terminal"] == pytest.approx(2.0 * math.tanh((34.0 - 1.25 * math.log2(1.6)) / 40.0) + 0.01)
    assert found.components["progress"] == pytest.approx((0.995 - 1.0) * math.tanh(34.0 / 40.0))
    assert found.components["attribution"] == 0.0, "no gain is credited to a seed that nothing can be compared with"


# Costs in the tracker


def test_germinating_again_what_was_just_pruned_costs() -> None:
    tracker = RewardTracker(CONFIG, (A,))
    old = seed(A, Stage.TRAINING, age=12, epochs_in_stage=12)
    before, after = report(old, epoch=5), report(seed(A, Stage.EMBARGOED), epoch=6)
    pruned = one_step(before, after, Decision(op=Op.PRUNE, slot=A), tracker=tracker)
    assert pruned.components["costs"] == pytest.approx(-0.002)

    def germinate(epoch: int, blueprint: str) -> float:
        fresh = report(seed(A, Stage.TRAINING, blueprint=blueprint), epoch=epoch + 1)
        decision = Decision(op=Op.GERMINATE, slot=A, blueprint=blueprint)
        return one_step(report(seed(A), epoch=epoch), fresh, decision, tracker=tracker).components["costs"]

    assert germinate(10, "conv_light") == pytest.approx(-0.022)
    assert germinate(10, "norm") == pytest.approx(-0.002)
    assert germinate(15, "conv_light") == pytest.approx(-0.002)


def test_pruning_soon_what_helps_costs_three_times() -> None:
    good = seed(A, Stage.BLENDING, alpha=1.0, age=6, contribution=5.0)
    before, after = report(good, epoch=7, val_accuracy=66.0), report(seed(A, Stage.EMBARGOED), epoch=8)
    tracker = RewardTracker(CONFIG, (A,))
    tracker.load_state({**tracker.state(), "origins": {A: 0.0}})
    found = one_step(before, after, Decision(op=Op.PRUNE, slot=A), tracker=tracker)
    assert found.components["costs"] == pytest.approx(-(0.002 + 0.03 + 0.02 * 0.4))


def test_holding_is_counted_over_detours_and_forgotten_with_the_seed() -> None:
    tracker = RewardTracker(CONFIG, (A,))
    stages = [Stage.HOLDING] * 4 + [Stage.BLENDING] * 2 + [Stage.HOLDING] * 3 + [Stage.EMBARGOED] + [Stage.HOLDING] * 2
    reports = [report(seed(A, stage, alpha=1.0), epoch=epoch) for epoch, stage in enumerate([Stage.HOLDING, *stages], start=1)]
    costs = [one_step(a, b, tracker=tracker).components["costs"] for a, b in pairwise(reports)]
    assert [round(cost, 6) for cost in costs] == [0.0] * 7 + [-0.005] * 2 + [0.0] * 3


def test_holding_for_ever_costs_three_tenths() -> None:
    tracker = RewardTracker(CONFIG, (A, B))
    held = (seed(A, Stage.HOLDING, alpha=1.0), seed(B, Stage.HOLDING, alpha=1.0))
    reports = [report(*held, epoch=epoch, budget=200) for epoch in range(1, 150)]
    control = flat(epochs=200)
    costs = [one_step(a, b, tracker=tracker, control=control).components["costs"] for a, b in pairwise(reports)]
    assert sum(costs) == pytest.approx(-0.3)
    assert min(costs) == -0.01


def test_a_rollback_costs_whoever_had_grown_something() -> None:
    undone: dict[str, Any] = {"epoch": 6, "anomaly": "diverged"}
    grown, bare = report(seed(A, Stage.TRAINING), epoch=5), report(seed(A), epoch=5)
    assert one_step(grown, report(seed(A, Stage.PRUNED), **undone)).components["costs"] == -0.1
    assert one_step(bare, report(seed(A), **undone)).components["costs"] == 0.0


def test_a_refused_decision_costs_and_does_nothing_else() -> None:
    before, after = report(seed(A), epoch=5), report(seed(A), epoch=6)
    found = one_step(before, after, Decision(op=Op.PRUNE, slot=A), refused=True)
    assert found.components == {**dict.fromkeys(COMPONENTS["shaped"], 0.0), "costs": -0.02}


def test_progress_of_a_seed_counts_from_its_own_germination() -> None:
    """A slot's second seed has no part in what was gained before it: ahead by 4 when it starts, by 5 now, credited with 2 * 1 * 3 / 4."""
    tracker = RewardTracker(CONFIG, (A,))
    stages = [(Stage.BLENDING, 64.0), (Stage.PRUNED, 64.0), (Stage.DORMANT, 64.0), (Stage.TRAINING, 64.0), (Stage.BLENDING, 65.0)]
    reports = [report(seed(A), epoch=1)]
    for epoch, (stage, accuracy) in enumerate(stages, start=2):
        reports.append(report(seed(A, stage, contribution=3.0, parameters=0), epoch=epoch, val_accuracy=accuracy))
    paid = [one_step(a, b, tracker=tracker).components["attribution"] for a, b in pairwise(reports)]
    first = 0.5 * math.tanh(3.0 / 40.0)
    assert paid == pytest.approx([0.995 * first, -first, 0.0, 0.0, 0.995 * 0.5 * math.tanh(1.5 / 40.0)])


# Modes


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_has_its_components_and_they_add_up(mode: Mode) -> None:
    found = one_step(*blending_step(), config=RewardConfig(mode=mode))
    assert tuple(found.components) == COMPONENTS[mode]
    assert found.total == pytest.approx(sum(found.components.values()))


def test_simplified_and_sparse_are_parts_of_shaped() -> None:
    full = final_step(WAIT, FinalScore(accuracy=61.0, loss=1.0, parameters=1000)).components
    for mode in ("simplified", "sparse"):
        config = RewardConfig(mode=mode)
        part = final_step(WAIT, FinalScore(accuracy=61.0, loss=1.0, parameters=1000), config=config).components
        assert part == {name: full[name] for name in COMPONENTS[config.mode]}


def test_mode_loss_looks_at_the_loss_and_not_at_the_accuracy() -> None:
    config = RewardConfig(mode="loss")
    before, after = report(seed(A), epoch=5, val_loss=1.1), report(seed(A), epoch=6, val_loss=0.9)
    found = one_step(before, after, config=config)
    assert found.components["progress"] == pytest.approx(0.995 * math.tanh(20.0 * 0.2 / 40.0))
    assert one_step(before, replace(after, val_accuracy=5.0), config=config) == found
