"""The last call: after the last decision of a budget, what a gate would accept and is worth its rent is kept, whoever decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esper.leyline.actions import WAIT, Op
from esper.leyline.reports import GateConfig, LifecycleConfig
from esper.leyline.stages import Stage
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.tolaria.training.config import TrainingConfig
from tests.simic.plans import Script, grow

GROWN = grow((1, "r0c0", "conv_light"), keep=False)
"""Blends a seed in and holds it to the end."""


def ended(*, last_call: bool = True, rent: float = 5.0, script: Script = GROWN, kernel: int = 1) -> Growth:
    """A standard host of the digits under the script."""
    training = TrainingConfig(gates=GateConfig.permissive(), lifecycle=LifecycleConfig(last_call=last_call))
    growth = Growth(GrowthConfig(epochs=12, control=False, training=training, fix={"rent": str(rent), "kernel": str(kernel)}))
    Play(growth, ControllerDecider([script]), [Start("digits", 0)]).through()
    return growth


def test_a_seed_that_is_held_to_the_end_is_kept_if_it_is_worth_its_rent() -> None:
    kept, dropped, dear = ended().hosts[0].result, ended(last_call=False).hosts[0].result, ended(rent=100.0, kernel=3).hosts[0].result
    assert kept is not None
    assert dropped is not None
    assert dear is not None
    assert kept.slots["r0c0"]["stage"] == "FOSSILIZED"
    assert dropped.slots["r0c0"]["stage"] == "HOLDING"
    assert kept.fossilized == 1
    assert dropped.fossilized == 0
    assert kept.parameters > dropped.parameters == dropped.host_parameters
    assert kept.val_accuracy > dropped.val_accuracy + 5.0
    assert (kept.rent, dear.rent, dear.fossilized) == (5.0, 100.0, 0)
    assert kept.reward > dropped.reward


def test_a_last_decision_to_prune_is_respected() -> None:
    def choose(observation):  # type: ignore[no-untyped-def]
        if observation.report.epoch == observation.report.budget and observation.masks.slots(Op.PRUNE).any():
            return replace(WAIT, op=Op.PRUNE, slot="r0c0")
        return GROWN.choose(observation)

    result = ended(script=Script("prunes", choose)).hosts[0].result
    assert result is not None
    assert (result.fossilized, result.pruned) == (0, 1)


def test_whoever_waits_is_not_touched() -> None:
    growth = ended(script=Script("waits", lambda observation: WAIT))
    assert all(slot.state.stage is Stage.DORMANT for slot in growth.hosts[0].host.model.slots.values())


@pytest.mark.parametrize("rent", [-1.0, 101.0])
def test_a_rent_has_bounds(rent: float) -> None:
    from esper.leyline.errors import ConfigError

    with pytest.raises(ConfigError, match="rent"):
        ended(rent=rent)
