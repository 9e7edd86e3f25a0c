"""What a seed's stage or a wrong value forbids: each command is refused with what was wrong, and nothing has changed."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from esper.leyline.actions import Style
from esper.leyline.errors import ConfigError, EsperError, TransitionError, UnknownNameError
from esper.leyline.stages import TRANSITIONS, Stage
from tests.kasmina.garden import STAGES, at, everything, grow, mix


@pytest.mark.parametrize("stage", STAGES)
def test_germination_needs_an_empty_slot(stage: Stage) -> None:
    net = at(stage)
    before = everything(net)
    if stage is Stage.DORMANT:
        net.germinate("mix", "norm")
        assert mix(net).stage is Stage.GERMINATED
    else:
        with pytest.raises(TransitionError, match=f"slot 'mix' cannot go from {stage.name} to GERMINATED"):
            net.germinate("mix", "norm")
        assert everything(net) == before


@pytest.mark.parametrize("stage", STAGES)
def test_only_a_holding_seed_can_be_fossilised(stage: Stage) -> None:
    net = at(stage)
    before = everything(net)
    if stage is Stage.HOLDING:
        net.record("mix", contribution=0.0)
        net.fossilize("mix")
    else:
        with pytest.raises(TransitionError, match=f"cannot go from {stage.name} to FOSSILIZED; from {stage.name} it may go to: "):
            net.fossilize("mix")
        assert everything(net) == before


@pytest.mark.parametrize("stage", [s for s in STAGES if Stage.PRUNED not in TRANSITIONS[s]])
@pytest.mark.parametrize("speed", [0, 3])
def test_what_is_not_alive_cannot_be_pruned(stage: Stage, speed: int) -> None:
    net = at(stage)
    before = everything(net)
    with pytest.raises(TransitionError, match=f"cannot go from {stage.name} to PRUNED"):
        net.prune("mix", speed=speed)
    assert everything(net) == before


@pytest.mark.parametrize("stage", [s for s in STAGES if s not in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING)])
def test_only_seeds_on_their_way_to_holding_can_advance(stage: Stage) -> None:
    net = at(stage)
    before = everything(net)
    with pytest.raises(TransitionError, match=f"slot 'mix' is {stage.name}; only GERMINATED, TRAINING and BLENDING can advance"):
        net.advance("mix")
    assert everything(net) == before


@pytest.mark.parametrize("stage", [s for s in STAGES if s not in (Stage.BLENDING, Stage.HOLDING)])
def test_only_blending_and_holding_seeds_have_an_alpha_to_retarget(stage: Stage) -> None:
    net = at(stage)
    before = everything(net)
    with pytest.raises(TransitionError, match=f"slot 'mix' is {stage.name}; only BLENDING and HOLDING have an alpha to retarget"):
        net.set_alpha_target("mix", 0.5)
    assert everything(net) == before


@pytest.mark.parametrize("stage", STAGES)
def test_what_cannot_be_measured_in_a_stage_cannot_be_recorded_in_it(stage: Stage) -> None:
    net = at(stage)
    before = everything(net)
    if stage not in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED):
        with pytest.raises(TransitionError, match="a contribution needs a seed that is blended in"):
            net.record("mix", contribution=1.0)
    if stage is not Stage.TRAINING:
        with pytest.raises(TransitionError, match="a trial is for a seed in TRAINING"):
            net.record("mix", trial_contribution=1.0)
    with pytest.raises(TransitionError):
        net.record("mix", contribution=1.0, trial_contribution=1.0)
    assert everything(net) == before, "not even half of it is recorded"


@pytest.mark.parametrize("stage", [s for s in STAGES if s not in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)])
def test_where_no_gate_lies_ahead_there_is_no_verdict(stage: Stage) -> None:
    with pytest.raises(TransitionError, match=f"slot 'mix' is {stage.name}; no gate lies ahead of it"):
        at(stage).verdict("mix")


BAD_GERMINATIONS: list[tuple[dict[str, Any], str]] = [
    ({"style": "linear"}, "unknown style 'linear'; did you mean 'LINEAR_ADD'?"),
    ({"style": 2}, "unknown style '2'"),
    ({"tempo": 0}, "a tempo is a whole number of epochs, at least 1, found 0"),
    ({"tempo": 2.5}, "found 2.5"),
    ({"tempo": True}, "found True"),
    ({"alpha_target": 0.0}, "an alpha target is a number above 0 and at most 1, found 0.0"),
    ({"alpha_target": 1.01}, "found 1.01"),
    ({"alpha_target": math.nan}, "found nan"),
    ({"alpha_target": True}, "found True"),
    ({"alpha_target": "1.0"}, "found '1.0'"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_GERMINATIONS)
def test_a_germination_with_a_wrong_value_names_it_and_changes_nothing(wrong: dict[str, Any], message: str) -> None:
    net = grow()
    before = everything(net)
    with pytest.raises(EsperError, match=re.escape(message)):
        net.germinate("mix", "norm", **wrong)
    assert everything(net) == before


@pytest.mark.parametrize("command", ["prune", "retarget"])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"speed": -1}, ConfigError, "a speed is a whole number of epochs, 0 for at once, found -1"),
        ({"speed": 1.5}, ConfigError, "found 1.5"),
        ({"speed": 0, "curve": "sigmod"}, UnknownNameError, "unknown curve 'sigmod'; did you mean 'SIGMOID'?"),
        ({"speed": 3, "curve": "sigmod"}, UnknownNameError, "unknown curve 'sigmod'; did you mean 'SIGMOID'?"),
    ],
)
def test_a_ramp_with_a_wrong_value_names_it_and_changes_nothing(
    command: str, wrong: dict[str, Any], error: type[EsperError], message: str
) -> None:
    net = at(Stage.HOLDING)
    before = everything(net)
    with pytest.raises(error, match=re.escape(message)):
        net.prune("mix", **wrong) if command == "prune" else net.set_alpha_target("mix", 0.5, **wrong)
    assert everything(net) == before


def test_names_of_styles_and_curves_are_taken_in_either_case() -> None:
    net = grow()
    net.germinate("mix", "norm", style="gated")
    net.germinate("late", "norm", style="SIGMOID_ADD")
    assert [net.report(slot).style for slot in ("mix", "late")] == [Style.GATED, Style.SIGMOID_ADD]


def test_an_alpha_target_given_as_a_whole_number_is_kept_as_a_number_with_a_point() -> None:
    net = grow()
    net.germinate("mix", "norm", alpha_target=1)
    assert isinstance(mix(net).alpha_target, float)
    grow().load_state_dict(net.state_dict())
