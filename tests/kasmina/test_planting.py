"""Seeds that are part of a network from the first step on."""

from __future__ import annotations

import pytest
import torch

from esper.leyline.actions import Style
from esper.leyline.errors import TransitionError, UnknownNameError
from esper.leyline.events import StageChanged
from esper.leyline.stages import Stage
from tests.kasmina.garden import BLUEPRINTS, as_bytes, at, grow, mix, sgd, step


@pytest.mark.parametrize("style", list(Style))
def test_a_planted_seed_is_a_fossil_with_full_influence_that_learns_at_once(style: Style) -> None:
    net = grow()
    optimizer = sgd(net)
    net.plant("mix", "mlp_small", style=style)
    assert mix(net).stage is Stage.FOSSILIZED
    assert mix(net).alpha == 1.0
    before = [p.clone() for p in net.slots["mix"].seed_parameters()]
    step(net, optimizer)
    assert any(not torch.equal(p, was) for p, was in zip(net.slots["mix"].seed_parameters(), before, strict=True))
    net.tick()
    assert mix(net).stage is Stage.FOSSILIZED


def test_it_has_the_initial_values_that_a_germination_would_give_it() -> None:
    planted, germinated = grow(), grow()
    planted.plant("mix", "mlp_small")
    germinated.germinate("mix", "mlp_small")
    for one, other in zip(planted.slots["mix"].seed_parameters(), germinated.slots["mix"].seed_parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_is_told_as_one_event_with_all_its_parameters() -> None:
    net = grow()
    bare = net.parameter_count()
    net.plant("mix", "mlp_small", style=Style.GATED)
    (event,) = net.journal
    assert isinstance(event, StageChanged)
    assert (event.before, event.after, event.cause) == (Stage.DORMANT, Stage.FOSSILIZED, "plant")
    assert event.parameters == net.parameter_count() - bare


def test_a_model_with_planted_seeds_is_saved_and_loaded() -> None:
    net, other = grow(), grow()
    net.plant("mix", "mlp_small")
    other.load_state_dict(net.state_dict())
    assert as_bytes(net.state_dict()) == as_bytes(other.state_dict())
    assert other.is_static


def test_a_slot_that_is_taken_is_refused_and_stays() -> None:
    net = at(Stage.TRAINING)
    before = mix(net)
    with pytest.raises(TransitionError):
        net.plant("mix", "mlp_small")
    assert mix(net) == before


def test_an_unknown_blueprint_leaves_the_slot_empty() -> None:
    net = grow()
    with pytest.raises(UnknownNameError, match="mlp_small"):
        net.plant("mix", "mlp_smal")
    assert mix(net).stage is Stage.DORMANT


def test_a_network_is_static_while_nothing_but_planted_seeds_is_in_it() -> None:
    net = grow()
    assert not net.is_static, "a bare host can grow"
    net.plant("mix", "mlp_small")
    assert net.is_static
    other = next(slot for slot in net.slot_ids if slot != "mix")
    net.germinate(other, BLUEPRINTS[other])
    assert not net.is_static
