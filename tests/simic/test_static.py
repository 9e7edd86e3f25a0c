"""Networks that do not grow, as large from the first step on as seeds could make them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from esper.kasmina.blueprints import names, parameter_count
from esper.leyline.actions import Planted, Style
from esper.leyline.events import HostFinished
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.tamiyo import make

TINY = GrowthConfig(control=False, epochs=2, fix={"widths": "[2,2,4]", "train_size": "100"})
DIGITS = Start("digits", 7)


def played(*starts: Start, config: GrowthConfig = TINY) -> list[HostFinished]:
    return Play(Growth(config), ControllerDecider([make("wait")] * len(starts)), starts).through()


def test_sizes_go_from_the_bare_host_to_the_largest_blueprint_in_every_slot() -> None:
    sizes = [result.parameters for result in played(*(replace(DIGITS, size=size / 4) for size in range(5)))]
    assert sizes == sorted(sizes)
    assert sizes[0] == played(DIGITS)[0].parameters
    slots = Growth(TINY).make(DIGITS).host.model.slots.values()
    largest = sum(max(parameter_count(name, slot.place.shape) for name in names(slot.place.shape.topology)) for slot in slots)
    assert sizes[-1] - sizes[0] == largest


def test_a_network_of_size_nothing_is_the_host_that_does_not_grow() -> None:
    assert played(replace(DIGITS, size=0.0)) == played(DIGITS)


def test_only_slots_that_may_be_used_are_planted() -> None:
    (result,) = played(replace(DIGITS, size=1.0), config=replace(TINY, slots=("r0c1", "r0c2"), max_seeds=1))
    assert [id for id, slot in result.slots.items() if slot["stage"] == "FOSSILIZED"] == ["r0c1"]


@pytest.mark.parametrize("style", list(Style))
def test_both_engines_train_planted_hosts_alike(style: Style) -> None:
    start = replace(DIGITS, planted=(Planted(slot="r0c0", blueprint="conv_light", style=style),))
    serial, fleet = (played(start, start, config=replace(TINY, engine=engine)) for engine in ("serial", "fleet"))
    assert serial[0].fossilized == fleet[0].fossilized == 1
    assert fleet[0].val_loss == pytest.approx(serial[0].val_loss, rel=1e-3)
    assert fleet[0].parameters == serial[0].parameters > serial[0].host_parameters


def test_a_rollback_of_the_first_epoch_keeps_what_was_planted() -> None:
    host = Growth(TINY).make(replace(DIGITS, size=1.0)).host
    before = {name: value.clone() for name, value in host.model.state_dict().items() if "seed" in name}
    for parameter in host.model.parameters():
        parameter.data.fill_(float("nan"))
    host.roll_back("a test")
    after = host.model.state_dict()
    assert before
    assert all(bool((after[name] == value).all()) for name, value in before.items())


def test_another_budget_is_all_that_more_epochs_change() -> None:
    short, long = played(DIGITS, replace(DIGITS, epochs=3))
    assert long.flops["forward"] * 2 == short.flops["forward"] * 3
    assert played(replace(DIGITS, epochs=2)) == [short]


def test_an_environment_with_planted_hosts_is_copied_whole() -> None:
    growth = Growth(TINY)
    growth.begin({0: replace(DIGITS, size=1.0, epochs=3)})
    growth.act(dict.fromkeys(growth.train(), make("wait").decide(None, {})[0]))  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(growth))
    one, other = growth.train()[0].observation.report, copy.train()[0].observation.report
    assert one == other
    assert one.budget == 3
