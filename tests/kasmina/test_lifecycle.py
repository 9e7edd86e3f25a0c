"""A seed's life by hand: what each command and each tick does, epoch by epoch."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
import torch

from esper.kasmina import Growable
from esper.kasmina.seed_state import SeedState
from esper.leyline.actions import TEMPOS, WAIT, Curve, Decision, Op, Style
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import GateError, TransitionError
from esper.leyline.events import GateChecked, StageChanged
from esper.leyline.reports import Gate, LifecycleConfig, SeedRecord, SeedReport
from esper.leyline.stages import Stage
from tests.kasmina.garden import (
    BLUEPRINTS,
    SLOTS,
    STAGES,
    as_bytes,
    at,
    everything,
    grow,
    lead,
    mix,
    seed_of,
    sgd,
    slot_of,
    step,
)

HANDS_ON = LifecycleConfig(auto_advance=False)


def changes(net: Growable) -> list[tuple[Stage, Stage]]:
    return [(event.before, event.after) for event in net.journal if isinstance(event, StageChanged)]


# The whole way


def test_the_whole_way_to_a_fossil_takes_the_transitions_and_gates_it_should() -> None:
    net = grow()
    lead(net, "mix", Stage.FOSSILIZED, sgd(net))
    stages = [Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED]
    assert changes(net) == list(pairwise(stages))
    assert [e.gate for e in net.journal if isinstance(e, GateChecked)] == [Gate.G0, Gate.G1, Gate.G2, Gate.G3, Gate.G5]
    assert all(e.passed and not e.reasons for e in net.journal if isinstance(e, GateChecked))
    causes = [e.cause for e in net.journal if isinstance(e, StageChanged)]
    assert causes == ["germinate", "advance", "advance", "tick", "fossilize"]
    assert {e.blueprint for e in net.journal if isinstance(e, StageChanged)} == {"mlp_small"}
    assert {e.parameters for e in net.journal if isinstance(e, StageChanged)} == {mix(net).parameters}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_reached_and_the_other_slots_stay_empty(stage: Stage) -> None:
    net = at(stage)
    assert mix(net).stage is stage
    assert [net.report(slot).stage for slot in ("stem.0", "late")] == [Stage.DORMANT] * 2
    assert (mix(net).parameters > 0) is (stage in (2, 3, 4, 6, 7))


@pytest.mark.parametrize("stage", STAGES)
def test_a_report_says_what_the_record_does_and_survives_pickling_and_plain_values(stage: Stage) -> None:
    net = at(stage)
    report, state = mix(net), slot_of(net, "mix").state
    assert {f.name: getattr(report, f.name) for f in fields(SeedRecord)} == {f.name: getattr(state, f.name) for f in fields(SeedRecord)} | {
        "gradients": report.gradients,
        "gradient_ratio": report.gradient_ratio,
        "host_gradient": report.host_gradient,
    }
    assert (report.alpha, report.ramp_left) == (state.alpha, state.ramp_left)
    assert pickle.loads(pickle.dumps((report, state))) == (report, state)
    assert from_plain(SeedReport, to_plain(report)) == report
    assert SeedState.from_json(to_plain(state)) == state


def rise(curve: Curve, tempo: int) -> list[float]:
    """Alpha in each epoch of the first ramp, by the formulas of the curves."""
    if curve is Curve.LINEAR:
        return [epoch / tempo for epoch in range(1, tempo + 1)]
    low = 1 / (1 + math.exp(6))
    shares = [(1 / (1 + math.exp(-12 * (epoch / tempo - 0.5))) - low) / (1 - 2 * low) for epoch in range(1, tempo)]
    return [*shares, 1.0]


@pytest.mark.parametrize("tempo", TEMPOS)
@pytest.mark.parametrize("style", Style)
def test_alpha_rises_to_its_target_within_tempo_epochs_then_the_seed_is_holding(style: Style, tempo: int) -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.TRAINING, optimizer, style=style, tempo=tempo)
    step(net, optimizer)
    net.advance("mix")
    assert (mix(net).alpha, mix(net).ramp_left) == (0.0, tempo)
    found = []
    for epoch in range(tempo):
        assert mix(net).stage is Stage.BLENDING
        assert mix(net).epochs_in_stage == epoch
        net.tick()
        found.append(mix(net).alpha)
        assert float(slot_of(net, "mix").alpha) == pytest.approx(found[-1])
    assert found == pytest.approx(rise(Curve.SIGMOID if style is Style.SIGMOID_ADD else Curve.LINEAR, tempo), abs=1e-12)
    assert mix(net).stage is Stage.HOLDING
    assert (mix(net).alpha, mix(net).ramp_left, mix(net).epochs_in_stage) == (1.0, 0, 1)


def test_alpha_of_a_sigmoid_in_three_epochs_has_the_values_worked_by_hand() -> None:
    # t = 1/3: (sigma(-2) - sigma(-6)) / (1 - 2 sigma(-6)) = (0.1192029 - 0.0024726) / 0.9950548
    assert rise(Curve.SIGMOID, 3) == pytest.approx([0.1173104, 0.8826896, 1.0], abs=1e-6)


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75, 1.0])
def test_a_first_ramp_ends_exactly_at_the_target_of_the_germination(target: float) -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.BLENDING, optimizer, tempo=3, alpha_target=target)
    found = []
    for _ in range(3):
        net.tick()
        found.append(mix(net).alpha)
    assert found == pytest.approx([target / 3, 2 * target / 3, target])
    assert found[-1] == target
    assert mix(net).stage is (Stage.HOLDING if target == 1.0 else Stage.BLENDING)


# Time


def test_epochs_in_a_stage_count_those_that_are_trained_in_it() -> None:
    net = grow()
    net.germinate("mix", "norm")
    assert (mix(net).epochs_in_stage, mix(net).age) == (0, 0)
    for epoch in range(1, 4):
        net.tick()
        assert (mix(net).stage, mix(net).epochs_in_stage, mix(net).age) == (Stage.TRAINING, epoch, epoch)


@pytest.mark.parametrize(("embargo", "reset"), [(1, 1), (2, 3), (5, 1)])
def test_a_pruned_slot_is_empty_again_after_exactly_its_embargo_and_reset(embargo: int, reset: int) -> None:
    net = at(Stage.TRAINING, lifecycle=LifecycleConfig(embargo_epochs=embargo, reset_epochs=reset))
    net.prune("mix")
    assert mix(net).stage is Stage.PRUNED
    stages = []
    for _ in range(embargo + reset + 1):
        net.tick()
        stages.append(mix(net).stage)
    assert stages == [Stage.EMBARGOED] * embargo + [Stage.RESETTING] * reset + [Stage.DORMANT]


def test_the_default_embargo_is_five_epochs_and_the_reset_one() -> None:
    assert (LifecycleConfig().embargo_epochs, LifecycleConfig().reset_epochs, LifecycleConfig().auto_advance) == (5, 1, True)


def test_an_empty_slot_does_not_age() -> None:
    net = grow()
    before = everything(net)
    for _ in range(3):
        net.tick()
    assert everything(net) == before


def test_a_pruned_slot_keeps_its_record_until_it_is_empty() -> None:
    net = at(Stage.TRAINING)
    net.record("mix", trial_contribution=0.5)
    net.prune("mix", cause="a test")
    assert (mix(net).blueprint, mix(net).trial_contribution, mix(net).parameters, mix(net).alpha) == ("mlp_small", 0.5, 0, 0.0)
    assert [e.cause for e in net.journal if isinstance(e, StageChanged)] == ["a test"]
    while mix(net).stage is not Stage.DORMANT:
        net.tick()
    assert (mix(net).blueprint, mix(net).trial_contribution, mix(net).gradients, mix(net).age) == ("", None, None, 0)


# Advancing


def test_auto_advance_takes_g1_and_g3_and_leaves_the_start_of_blending_to_the_controller() -> None:
    net = grow()
    optimizer = sgd(net)
    net.germinate("mix", "norm", tempo=1)
    net.tick()
    assert mix(net).stage is Stage.TRAINING
    for _ in range(4):
        step(net, optimizer)
        net.tick()
    assert mix(net).stage is Stage.TRAINING
    net.advance("mix")
    net.tick()
    assert mix(net).stage is Stage.HOLDING
    for _ in range(4):
        net.tick()
    assert mix(net).stage is Stage.HOLDING


def test_without_auto_advance_nothing_moves_on_by_itself() -> None:
    net = grow(lifecycle=HANDS_ON)
    optimizer = sgd(net)
    net.germinate("mix", "norm", tempo=2)
    for _ in range(3):
        net.tick()
    assert mix(net).stage is Stage.GERMINATED
    net.advance("mix")
    step(net, optimizer)
    net.advance("mix")
    with pytest.raises(GateError, match=r"G3 refused: alpha is 0\.000, 2 epochs from its target"):
        net.advance("mix")
    for _ in range(4):
        net.tick()
    assert (mix(net).stage, mix(net).alpha) == (Stage.BLENDING, 1.0)
    net.advance("mix")
    assert mix(net).stage is Stage.HOLDING


def test_a_seed_that_is_not_finite_is_refused_by_g1_at_each_tick_and_on_command() -> None:
    net = grow()
    net.germinate("mix", "norm")
    with torch.no_grad():
        seed_of(net, "mix").gamma[0] = math.nan
    net.drain_journal()
    for _ in range(2):
        net.tick()
    refusal = GateChecked(gate=Gate.G1, slot="mix", passed=False, reasons=("the seed has parameters that are not finite",), figures={})
    assert net.journal == [refusal, refusal]
    with pytest.raises(GateError, match="G1 refused: the seed has parameters that are not finite"):
        net.advance("mix")
    assert net.journal == [refusal] * 3
    assert mix(net).stage is Stage.GERMINATED


def test_a_refused_gate_is_recorded_and_changes_nothing_else() -> None:
    net = grow(gates=None)
    optimizer = sgd(net)
    net.germinate("mix", "norm")
    net.tick()
    step(net, optimizer)
    net.drain_journal()
    before = everything(net, optimizer)
    with pytest.raises(GateError, match="1 epochs in TRAINING, at least 3 needed; trial contribution not measured"):
        net.advance("mix")
    (event,) = net.drain_journal()
    assert everything(net, optimizer) == before
    assert event == GateChecked(gate=Gate.G2, slot="mix", passed=False, reasons=net.verdict("mix").reasons, figures=event.figures)
    assert event.figures["epochs_in_stage"] == 1.0


def test_a_contribution_counts_once_it_was_measured_in_an_epoch_of_holding() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.BLENDING, optimizer, tempo=1)
    step(net, optimizer)
    net.record("mix", contribution=50.0)
    net.tick()
    assert mix(net).stage is Stage.HOLDING
    with pytest.raises(GateError, match="contribution not measured since the seed has full influence"):
        net.fossilize("mix")
    net.record("mix", contribution=-1.0)
    net.tick()
    net.fossilize("mix")
    assert mix(net).stage is Stage.FOSSILIZED


# Decisions


def test_each_op_of_a_decision_does_what_its_command_does() -> None:
    decided, commanded = grow(), grow()
    optimizers = [sgd(decided), sgd(commanded)]

    def both(decision: Decision, command: Callable[[], None]) -> None:
        decided.act(decision)
        command()
        assert decided.journal == commanded.journal
        assert as_bytes(decided.state_dict()) == as_bytes(commanded.state_dict())
        for net, optimizer in zip((decided, commanded), optimizers, strict=True):
            step(net, optimizer)
            net.tick()

    def decision(op: Op, **fields: Any) -> Decision:
        return Decision(op=op, slot="mix", **fields)

    both(WAIT, lambda: None)
    both(
        decision(Op.GERMINATE, blueprint="lora8", style=Style.GATED, tempo=3, alpha_target=0.5),
        lambda: commanded.germinate("mix", "lora8", style=Style.GATED, tempo=3, alpha_target=0.5),
    )
    both(WAIT, lambda: None)
    both(decision(Op.ADVANCE), lambda: commanded.advance("mix"))
    both(WAIT, lambda: None)
    both(WAIT, lambda: None)
    both(
        decision(Op.SET_ALPHA_TARGET, alpha_target=1.0, alpha_speed=3, alpha_curve=Curve.SIGMOID, style=Style.LINEAR_MULTIPLY),
        lambda: commanded.set_alpha_target("mix", 1.0, speed=3, curve=Curve.SIGMOID, style=Style.LINEAR_MULTIPLY),
    )
    both(decision(Op.PRUNE, alpha_speed=5, alpha_curve=Curve.COSINE), lambda: commanded.prune("mix", speed=5, curve=Curve.COSINE))
    both(decision(Op.PRUNE), lambda: commanded.prune("mix"))
    assert mix(decided).stage is Stage.EMBARGOED


def test_the_op_fossilize_keeps_a_holding_seed() -> None:
    net = at(Stage.HOLDING)
    net.record("mix", contribution=1.0)
    net.act(Decision(op=Op.FOSSILIZE, slot="mix"))
    assert mix(net).stage is Stage.FOSSILIZED


def test_a_decision_that_is_not_allowed_raises_as_its_command_does() -> None:
    net = at(Stage.TRAINING)
    with pytest.raises(TransitionError, match="cannot go from TRAINING to FOSSILIZED"):
        net.act(Decision(op=Op.FOSSILIZE, slot="mix"))


# The record of what happened


def test_the_journal_is_taken_once() -> None:
    net = grow()
    net.germinate("mix", "norm")
    assert [type(event) for event in net.drain_journal()] == [GateChecked, StageChanged]
    assert net.drain_journal() == []


@pytest.mark.parametrize("slot", SLOTS)
def test_slots_live_apart_from_each_other(slot: str) -> None:
    net = grow()
    lead(net, slot, Stage.FOSSILIZED, sgd(net))
    others = [other for other in SLOTS if other != slot]
    assert [net.report(other).stage for other in others] == [Stage.DORMANT] * 2
    assert net.report(slot).blueprint == BLUEPRINTS[slot]
    assert {getattr(event, "slot") for event in net.journal} == {slot}  # noqa: B009
