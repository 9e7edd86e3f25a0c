"""Each diagnostic on a case that was worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from esper.karn.diagnostics.actions import action_distribution, head_entropies, phase_of
from esper.karn.diagnostics.gates import gate_audit
from esper.karn.diagnostics.gradients import gradient_flow
from esper.karn.diagnostics.lives import seed_success, timing
from esper.karn.diagnostics.outcomes import chance, outcomes, reward_by_action
from esper.karn.diagnostics.response import responses
from esper.karn.diagnostics.values import calibration
from esper.leyline.actions import Decision, Op, Style
from esper.leyline.events import GateChecked, Refused, RolledBack
from esper.leyline.reports import Gate, GradientStats
from esper.leyline.stages import Stage
from tests.karn.hand_made import BOUND, episode, mind, stage, step
from tests.tamiyo.samples import seed

GERMINATE = Decision(op=Op.GERMINATE, slot="r0c0", blueprint="norm", style=Style.GATED)


def test_a_budget_has_three_phases() -> None:
    assert [phase_of(epoch, 6) for epoch in range(1, 7)] == ["early"] * 2 + ["middle"] * 2 + ["late"] * 2
    assert [phase_of(epoch, 2) for epoch in (1, 2)] == ["early", "middle"]


def test_shares_are_of_decisions_that_left_a_choice() -> None:
    acting = episode(step(1, decision=GERMINATE), step(2, legal=BOUND), step(3))
    waiting = episode(step(1), step(2), step(3))
    found = action_distribution([acting, waiting])
    assert (found.decisions, found.choices) == (6, 5)
    assert found.shares["all"]["GERMINATE"] == pytest.approx(1 / 5)
    assert found.shares["early"]["GERMINATE"] == pytest.approx(1 / 2)
    assert found.shares["late"]["WAIT"] == 1.0
    assert found.waiting == 0.5
    assert found.values["style"] == {"GATED": 1}
    assert found.values["alpha_curve"] == {}


def test_without_any_choice_there_are_no_shares() -> None:
    found = action_distribution([episode(step(1, legal=BOUND))])
    assert found.shares["all"] == {}
    assert found.waiting is None


def test_entropy_counts_where_a_head_had_a_choice() -> None:
    thought = mind([0.2, 0.8, 0.9])
    thought.legal[2, 0] = 1
    other = mind([0.4, 0.4, 0.4])
    (head,) = (found := head_entropies([episode(step(1), step(2), step(3), mind=thought), episode(step(1), step(2), step(3), mind=other)]))
    assert head == "op"
    whole = found["op"].phases["all"]
    assert (whole.n, whole.low, whole.high) == (5, 0.2, 0.8)
    assert whole.mean == pytest.approx((0.2 + 0.8 + 0.4 * 3) / 5)
    assert found["op"].phases["early"].mean == pytest.approx(0.3)
    assert found["op"].doubt == pytest.approx((0.8 + 0.4) / 2)
    assert (found["op"].commonest, found["op"].share) == ("WAIT", 1.0)
    assert head_entropies([episode(step(1))]) == {}


def test_lives_are_put_together_from_what_was_recorded() -> None:
    born = step(1, decision=GERMINATE, events=(stage(Stage.DORMANT, Stage.GERMINATED),))
    other = replace(GERMINATE, slot="r0c1", style=Style.LINEAR_ADD)
    second = step(2, decision=other, events=(stage(Stage.DORMANT, Stage.GERMINATED, "r0c1", "conv_light"),))
    blended = step(3, seeds=(seed("r0c0", Stage.HOLDING, contribution=2.5),), events=(stage(Stage.HOLDING, Stage.FOSSILIZED),))
    played = episode(born, second, blended, step(4))
    first, last = played.result.seeds
    assert (first.slot, first.style, first.born) == ("r0c0", "GATED", 1)
    assert (first.ended, first.outcome, first.contribution) == (3, "fossilized", 2.5)
    assert (last.slot, last.blueprint, last.ended, last.outcome, last.contribution) == ("r0c1", "conv_light", 4, "unfinished", None)
    found = seed_success([played])
    assert (found["all"]["all"].created, found["all"]["all"].survival, found["all"]["all"].contribution) == (2, 0.5, 2.5)
    assert found["blueprint"]["conv_light"].unfinished == 1
    assert found["slot"]["r0c0"].fossilized == 1
    assert found["style"]["LINEAR_ADD"].survival == 0.0
    when = timing([played])
    assert when.germinations == (0, 0, 1, 0, 1, 0, 0, 0, 0, 0)  # at a quarter and at half of the budget
    assert when.first is not None
    assert when.first.mean == 0.25
    assert when.lifetimes["fossilized"].mean == 2.0
    assert when.acts["early"]["GERMINATE"] == 2.0


def test_a_slot_can_have_several_lives() -> None:
    again = [stage(Stage.DORMANT, Stage.GERMINATED), stage(Stage.GERMINATED, Stage.PRUNED)]
    played = episode(step(1, events=(again[0],)), step(2, events=(again[1],)), step(3, events=(again[0],)))
    assert [life.outcome for life in played.result.seeds] == ["pruned", "unfinished"]


def test_calibration_of_a_critic_that_expects_one_too_much() -> None:
    returns = np.arange(20.0)
    found = calibration(returns + 1.0, returns, returns + 1.0)
    assert found is not None
    assert found.correlation == pytest.approx(1.0)
    assert found.bias == found.normalised_error == pytest.approx(1.0 / returns.std())
    assert found.explained_variance == pytest.approx(1.0)
    assert found.curve[0] == (1.5, 0.5)
    assert len(found.curve) == 10


def test_monte_carlo_and_targets_are_told_apart() -> None:
    value, returns = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0])
    found = calibration(value, returns, value)
    assert found is not None
    assert found.correlation == pytest.approx(0.0)
    assert found.explained_variance == pytest.approx(1.0 - 0.5 / 0.25)
    assert found.target_explained_variance == 1.0


def test_nothing_is_told_of_a_critic_without_variety() -> None:
    assert calibration(np.zeros(4), np.arange(4.0), np.zeros(4)) is None
    assert calibration(np.arange(4.0), np.zeros(4), np.zeros(4)) is None


def test_responses_are_by_trend_and_by_seeds_and_each_host_counts_once() -> None:
    living = (seed("r0c0", Stage.TRAINING),)
    falling = [step(epoch, trend=-1.0, decision=GERMINATE) for epoch in (3, 4)]
    often = episode(*falling, step(5, trend=0.1, seeds=living), host=0)
    never = episode(step(3, trend=-1.0), step(4, trend=0.9, legal=BOUND), host=1)
    found = responses([often, never])
    assert found["loss falling"].steps == 3
    assert found["loss falling"].act is not None
    assert found["loss falling"].act.mean == 0.5
    assert found["loss falling"].act.low is None  # two hosts are too few for an interval
    assert found["loss rising"].act is None
    assert found["a live seed"].steps == 1
    assert found["no live seed"].germinate == found["loss falling"].germinate


def test_a_policy_responds_by_its_probabilities() -> None:
    thought = mind([0.5], op=[[0.75, 0.25, 0, 0, 0, 0]])
    found = responses([episode(step(3, trend=1.0), host=host, mind=thought) for host in range(6)])["loss rising"]
    assert found.act is not None
    assert (found.act.mean, found.act.low) == (0.25, 0.25)


def test_a_life_by_the_table_passes_the_audit() -> None:
    def passed(gate: Gate) -> GateChecked:
        return GateChecked(gate=gate, slot="r0c0", passed=True, reasons=(), figures={})

    whole = episode(
        step(1, events=(passed(Gate.G0), stage(Stage.DORMANT, Stage.GERMINATED))),
        step(2, events=(passed(Gate.G1), stage(Stage.GERMINATED, Stage.TRAINING))),
        step(3, events=(passed(Gate.G2), stage(Stage.TRAINING, Stage.BLENDING))),
        step(4, events=(passed(Gate.G3), stage(Stage.BLENDING, Stage.HOLDING))),
        step(5, events=(stage(Stage.HOLDING, Stage.BLENDING), passed(Gate.G3), stage(Stage.BLENDING, Stage.HOLDING))),
        step(6, events=(passed(Gate.G5), stage(Stage.HOLDING, Stage.FOSSILIZED))),
    )
    found = gate_audit([whole])
    assert found.violations == ()
    assert found.transitions == 7
    assert found.gates["G3"] == (2, 0)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((stage(Stage.DORMANT, Stage.GERMINATED),), "without a passed G0"),
        ((stage(Stage.DORMANT, Stage.FOSSILIZED),), "DORMANT to FOSSILIZED is not in the table"),
        ((stage(Stage.TRAINING, Stage.PRUNED),), "but the slot was DORMANT"),
    ],
)
def test_a_broken_rule_is_a_violation(events: tuple[object, ...], said: str) -> None:
    (found,) = gate_audit([episode(step(1, events=events))]).violations
    assert said in found
    assert "host 0, epoch 1, slot r0c0" in found


def test_refusals_and_failed_gates_are_counted() -> None:
    failed = GateChecked(gate=Gate.G2, slot="r0c0", passed=False, reasons=("too early",), figures={})
    found = gate_audit([episode(step(1, events=(failed, Refused(op=Op.ADVANCE, slot="r0c0", reason="too early"))))])
    assert found.gates["G2"] == (0, 1)
    assert found.refused == 1


def test_gradients_flow_by_stage() -> None:
    def stats(norm: float, vanishing: float = 0.0, finite: bool = True) -> GradientStats:
        return GradientStats(steps=1, norm=norm, peak=norm, vanishing=vanishing, exploding=0.0, finite=finite)

    training = (seed("r0c0", Stage.TRAINING, gradients=stats(2.0, vanishing=0.5)),)
    found = gradient_flow([episode(step(1, gradients=stats(1.0), seeds=training), step(2, gradients=stats(math.nan, finite=False)))])
    assert (found["host"].epochs, found["host"].norm, found["host"].broken) == (2, 1.0, 0.5)
    assert (found["TRAINING"].norm, found["TRAINING"].vanishing) == (2.0, 0.5)
    assert "BLENDING" not in found


def test_outcomes_are_means_over_hosts_with_and_without_seeds() -> None:
    grown = episode(step(1, val_accuracy=70.0, bare_accuracy=40.0), val_accuracy=66.0, parameters=300, control_accuracy=50.0, rollbacks=1)
    bare = episode(step(1), val_accuracy=50.0, control_accuracy=52.0, host=1)
    found = outcomes([grown, bare], lambda each: each.result.val_accuracy - each.result.parameters / 100)
    assert found.score.mean == pytest.approx((63.0 + 49.0) / 2)
    assert found.accuracy.mean == 58.0
    assert found.twin == 51.0
    assert (found.with_seeds, found.without_seeds) == (70.0, 40.0)
    assert found.growth == 2.0
    assert found.operations is None, "nothing was counted"
    assert (found.rollbacks, found.rolled_back) == (1, 0.0)


def test_operations_are_those_of_hosts_that_never_grow_and_more() -> None:
    first, second = step(1, operations=10), step(2, operations=40)
    spent = {"forward": 50, "counterfactual": 10}
    assert outcomes([episode(first, second, flops=spent)], lambda each: 0.0).operations == 3.0


def test_a_rollback_counts_against_a_policy_when_seeds_were_there() -> None:
    alone = step(1, events=(RolledBack(reason="loss", to_epoch=0, pruned=()),))
    grown = step(1, events=(RolledBack(reason="loss", to_epoch=0, pruned=("r0c0",)),))
    assert outcomes([episode(alone), episode(grown, host=1)], lambda each: 0.0).rolled_back == 0.5


def test_rewards_are_by_op() -> None:
    found = reward_by_action([episode(step(1, reward=1.0), step(2, reward=3.0), step(3, decision=GERMINATE, reward=-1.0))])
    assert (found["WAIT"].n, found["WAIT"].mean, found["WAIT"].std) == (2, 2.0, 1.0)
    assert found["GERMINATE"].mean == -1.0
    assert "PRUNE" not in found


def test_chance_is_what_differs_between_plays_of_one_host() -> None:
    acting, waiting = (step(1, decision=GERMINATE), step(2)), (step(1), step(2))
    plays = [
        episode(*acting, host=0, draw=0, val_accuracy=60.0, germinated=1),
        episode(*waiting, host=0, draw=1, val_accuracy=50.0),
        episode(*waiting, host=1, draw=0, val_accuracy=20.0),
        episode(*waiting, host=1, draw=1, val_accuracy=20.0),
    ]
    found = chance(plays, lambda each: each.result.val_accuracy)
    assert found is not None
    assert found.disagreement == 0.25
    assert found.score_std == pytest.approx(5.0)  # the variances 50 and 0, in the mean 25
    assert found.score_share == pytest.approx(12.5 / np.var([60.0, 50.0, 20.0, 20.0]))
    assert found.seeds_std == pytest.approx(0.5)
    assert chance(plays[:1], lambda each: 0.0) is None
