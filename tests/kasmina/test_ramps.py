"""Ramps of alpha on the way: retargeting, changing the style, and pruning at once or slowly."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from esper.kasmina import Growable
from esper.leyline.actions import Curve, Style
from esper.leyline.errors import GateError, TransitionError
from esper.leyline.events import AlphaRetargeted, StageChanged
from esper.leyline.stages import Stage
from tests.kasmina.garden import (
    at,
    everything,
    gate_of,
    grow,
    lead,
    mix,
    same,
    seed_of,
    sgd,
    slot_of,
    step,
    values,
)


def changes(net: Growable) -> list[tuple[Stage, Stage]]:
    return [(event.before, event.after) for event in net.journal if isinstance(event, StageChanged)]


# Retargeting


@pytest.mark.parametrize("style", Style)
def test_alpha_first_rises_in_a_line_and_in_the_sigmoid_style_along_a_sigmoid(style: Style) -> None:
    net = grow()
    lead(net, "mix", Stage.BLENDING, sgd(net), style=style, tempo=4)
    alphas = []
    for _ in range(4):
        net.tick()
        alphas.append(net.report("mix").alpha)
    # The sigmoid of steepness 12, at 1/4 of its way: (1 - tanh(1.5) / tanh(3)) / 2.
    quarter = 0.0451 if style is Style.SIGMOID_ADD else 0.25
    assert alphas == pytest.approx([quarter, 0.5, 1.0 - quarter, 1.0], abs=1e-4)


def test_a_target_of_one_half_stays_blending_until_it_is_raised_to_one() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.BLENDING, optimizer, tempo=1, alpha_target=0.5)
    net.drain_journal()
    for _ in range(5):
        net.tick()
        assert (mix(net).stage, mix(net).alpha) == (Stage.BLENDING, 0.5)
    assert net.journal == [], "no gate is asked for a seed that is not on its way to full influence"
    with pytest.raises(GateError, match=r"alpha's target is 0\.5, not 1\.0"):
        net.advance("mix")
    net.set_alpha_target("mix", 1.0, speed=3)
    found = []
    for _ in range(3):
        assert mix(net).stage is Stage.BLENDING
        net.tick()
        found.append(mix(net).alpha)
    assert found == pytest.approx([2 / 3, 5 / 6, 1.0])
    assert mix(net).stage is Stage.HOLDING


def test_retargeting_takes_a_holding_seed_back_to_blending() -> None:
    net = at(Stage.HOLDING)
    net.set_alpha_target("mix", 0.25, speed=3, curve="cosine")
    assert (mix(net).stage, mix(net).previous_stage, mix(net).alpha, mix(net).epochs_in_stage) == (Stage.BLENDING, Stage.HOLDING, 1.0, 0)
    assert net.journal == [
        StageChanged(
            slot="mix",
            before=Stage.HOLDING,
            after=Stage.BLENDING,
            cause="set_alpha_target",
            blueprint="mlp_small",
            parameters=mix(net).parameters,
        ),
        AlphaRetargeted(slot="mix", alpha=1.0, target=0.25, epochs=3, curve=Curve.COSINE),
    ]
    found = []
    for _ in range(4):
        net.tick()
        found.append(mix(net).alpha)
    assert found == pytest.approx([1 - 0.75 * 0.25, 1 - 0.75 * 0.75, 0.25, 0.25])  # (1 - cos(pi / 3)) / 2 = 1/4
    assert mix(net).stage is Stage.BLENDING


def test_a_retarget_at_once_moves_alpha_before_the_next_tick() -> None:
    net = at(Stage.HOLDING)
    net.set_alpha_target("mix", 0.75, speed=0)
    assert (mix(net).alpha, float(slot_of(net, "mix").alpha), mix(net).ramp_left) == (0.75, 0.75, 0)
    net.set_alpha_target("mix", 1.0, speed=0)
    assert mix(net).stage is Stage.BLENDING
    net.tick()
    assert mix(net).stage is Stage.HOLDING


def test_alpha_on_its_way_cannot_be_sent_elsewhere() -> None:
    net = at(Stage.BLENDING)
    with pytest.raises(TransitionError, match=r"alpha is still on its way to 1\.0, 2 epochs left"):
        net.set_alpha_target("mix", 0.5)


def test_a_retarget_can_change_the_style_and_brings_or_takes_the_gate() -> None:
    net = at(Stage.HOLDING)
    optimizer = sgd(net)
    before = values(seed_of(net, "mix"))
    plain = mix(net).parameters
    net.set_alpha_target("mix", 1.0, speed=0, style="gated")
    assert (mix(net).style, mix(net).parameters) == (Style.GATED, plain + 7)  # a linear layer from 6 features to 1
    assert gate_of(net, "mix").training
    first = values(gate_of(net, "mix"))
    step(net, optimizer)
    net.set_alpha_target("mix", 1.0, speed=0)
    assert mix(net).style is Style.GATED
    assert not same(values(gate_of(net, "mix")), first), "a retarget without a style keeps the gate and what it has learnt"
    net.set_alpha_target("mix", 1.0, speed=0, style=Style.LINEAR_MULTIPLY)
    assert (mix(net).style, mix(net).parameters, slot_of(net, "mix").gating) == (Style.LINEAR_MULTIPLY, plain, None)
    assert not same(values(seed_of(net, "mix")), before), "the seed itself went on learning"


def test_a_new_gate_has_the_mode_of_the_network() -> None:
    net = at(Stage.HOLDING).eval()
    net.set_alpha_target("mix", 1.0, speed=0, style="gated")
    assert not any(module.training for module in net.modules())


# Pruning


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_a_live_seed_can_be_removed_at_once(stage: Stage) -> None:
    net = at(stage)
    parameters = mix(net).parameters
    net.prune("mix")
    assert changes(net) == [(stage, Stage.PRUNED)]
    assert isinstance(net.journal[0], StageChanged)
    assert net.journal[0].parameters == parameters
    assert (mix(net).alpha, mix(net).alpha_target, mix(net).parameters) == (0.0, 0.0, 0)
    assert net.parameter_count() == sum(p.numel() for p in net.host.parameters())


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING])
def test_a_seed_without_influence_goes_at_once_whatever_the_speed(stage: Stage) -> None:
    net = at(stage)
    assert mix(net).alpha == 0.0
    net.prune("mix", speed=8)
    assert mix(net).stage is Stage.PRUNED


def test_a_ramped_prune_of_a_holding_seed_goes_down_through_blending_and_ends_in_pruned() -> None:
    net = at(Stage.HOLDING)
    net.prune("mix", speed=5, curve=Curve.LINEAR)
    assert changes(net) == [(Stage.HOLDING, Stage.BLENDING)]
    assert (mix(net).pruning, mix(net).alpha, mix(net).alpha_target, mix(net).ramp_left) == (True, 1.0, 0.0, 5)
    found = []
    for _ in range(4):
        net.tick()
        found.append(mix(net).alpha)
        assert mix(net).stage is Stage.BLENDING
    assert found == pytest.approx([0.8, 0.6, 0.4, 0.2])
    net.tick()
    assert (mix(net).stage, mix(net).pruning, mix(net).alpha) == (Stage.PRUNED, False, 0.0)
    assert changes(net) == [(Stage.HOLDING, Stage.BLENDING), (Stage.BLENDING, Stage.PRUNED)]


def test_a_ramped_prune_starts_from_the_alpha_that_is_reached() -> None:
    net = grow()
    lead(net, "mix", Stage.BLENDING, sgd(net), tempo=5)
    net.tick()
    net.tick()
    net.prune("mix", speed=3)
    net.tick()
    assert mix(net).alpha == pytest.approx(0.4 * 2 / 3)


def test_a_seed_that_is_being_pruned_can_only_be_removed_at_once() -> None:
    net = at(Stage.HOLDING)
    net.prune("mix", speed=3)
    commands: list[tuple[Callable[[], None], str]] = [
        (lambda: net.advance("mix"), "is being ramped down to be pruned; it cannot advance"),
        (lambda: net.fossilize("mix"), "cannot go from BLENDING to FOSSILIZED"),
        (lambda: net.set_alpha_target("mix", 1.0), "alpha is still on its way to 0.0, 3 epochs left"),
        (lambda: net.prune("mix", speed=3), "is already being ramped down, 3 epochs left; prune at once with speed 0"),
    ]
    before = everything(net)
    for command, message in commands:
        with pytest.raises(TransitionError, match=re.escape(message)):
            command()
        assert everything(net) == before
    net.prune("mix")
    assert mix(net).stage is Stage.PRUNED
