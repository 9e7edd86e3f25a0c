"""New seeds: where their first values come from, what germination leaves alone, and blueprints that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import SlotShape, blueprint
from esper.kasmina.blueprints import BLUEPRINTS as REGISTER
from esper.leyline.errors import BlueprintError, UnknownNameError
from esper.leyline.reports import Topology
from esper.leyline.stages import Stage
from tests.kasmina.garden import everything, grow, lead, mix, same, seed_of, sgd, slot_of, step, values


@pytest.fixture
def register() -> Iterator[None]:
    """Leaves the register of blueprints as it was."""
    before = dict(REGISTER)
    yield
    REGISTER.clear()
    REGISTER.update(before)


# Initial values


def test_seeds_that_grow_in_inference_mode_can_be_trained() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "late", Stage.HOLDING, optimizer)
    with torch.inference_mode():
        net.germinate("mix", "mlp_small", style="gated")
        net.advance("mix")
        net.set_alpha_target("late", 1.0, style="gated")
        net.tick()
        net.load_state_dict(net.state_dict())
    before = values(slot_of(net, "late")), values(seed_of(net, "mix"))
    step(net, optimizer)
    assert not same(values(slot_of(net, "late")), before[0])
    assert not same(values(seed_of(net, "mix")), before[1])


def test_a_second_germination_gets_other_values_and_the_same_one_the_same() -> None:
    def first_and_second(**settings: Any) -> tuple[list[Tensor], list[Tensor]]:
        net = grow(**settings)
        net.germinate("mix", "mlp_small")
        first = values(seed_of(net, "mix"))
        net.prune("mix")
        while mix(net).stage is not Stage.DORMANT:
            net.tick()
        net.germinate("mix", "mlp_small")
        return first, values(seed_of(net, "mix"))

    first, second = first_and_second()
    assert not same(first, second)
    torch.manual_seed(99)
    again = first_and_second()
    assert same(first, again[0])
    assert same(second, again[1])
    assert not same(first, first_and_second(seed=1)[0])


def test_two_slots_of_one_shape_get_different_seeds() -> None:
    net = grow()
    net.germinate("mix", "mlp_small")
    net.germinate("late", "mlp_small")
    assert not same(values(seed_of(net, "mix")), values(seed_of(net, "late")))


def test_no_command_draws_from_the_global_random_stream(register: None) -> None:
    @blueprint("noisy", Topology.VECTOR, purpose="a branch that draws random numbers whenever it runs")
    def noisy(shape: SlotShape) -> nn.Module:
        return nn.Sequential(nn.Linear(shape.width, shape.width), nn.Dropout(0.5), Noise())

    net = grow()
    before = torch.get_rng_state()
    net.germinate("mix", "noisy", style="gated", tempo=1)
    net.germinate("late", "mlp")
    net.advance("mix")
    net.tick()
    assert torch.equal(torch.get_rng_state(), before)
    lead(net, "stem.0", Stage.HOLDING, sgd(net))
    before = torch.get_rng_state()
    net.set_alpha_target("stem.0", 1.0, style="gated")
    grow().load_state_dict(net.state_dict())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_no_command_touches_the_random_stream_of_an_accelerator() -> None:
    host = grow().release().cuda()
    net = grow(host, example=torch.randn(2, 1, 4, 4, device="cuda"))
    torch.cuda.manual_seed_all(3)
    before = torch.cuda.get_rng_state()
    net.germinate("mix", "mlp_small", style="gated")
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(p.is_cuda for p in seed_of(net, "mix").parameters())


def test_a_seed_that_is_born_with_parameters_that_are_not_finite_is_refused(register: None) -> None:
    @blueprint("unset", Topology.VECTOR, purpose="a branch whose weights nobody has set")
    def unset(shape: SlotShape) -> nn.Module:
        branch = nn.Linear(shape.width, shape.width)
        nn.init.constant_(branch.weight, torch.nan)
        return branch

    net = grow()
    with pytest.raises(BlueprintError, match="'unset' builds a seed with parameters that are not finite for slot 'mix'"):
        net.germinate("mix", "unset")
    assert net.report("mix").stage is Stage.DORMANT


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_a_seed_is_the_same_whatever_torchs_default_device_is() -> None:
    net, other = grow(), grow()
    net.germinate("mix", "mlp_small", style="gated")
    with torch.device("meta"):
        other.germinate("mix", "mlp_small", style="gated")
    assert same(values(slot_of(net, "mix")), values(slot_of(other, "mix")))


def test_germination_leaves_the_buffers_of_a_new_seed_as_the_blueprint_made_them(register: None) -> None:
    @blueprint("normed", Topology.VECTOR, purpose="a batch norm, whose statistics a run on made-up features would spoil")
    def normed(shape: SlotShape) -> nn.Module:
        return nn.BatchNorm1d(shape.width)

    net = grow(example=torch.randn(1, 1, 4, 4))  # a batch of one, which a batch norm in training mode refuses
    net.germinate("mix", "normed")
    norm = seed_of(net, "mix").branch
    assert isinstance(norm, nn.BatchNorm1d)
    assert int(norm.num_batches_tracked or 0) == 0
    assert torch.equal(norm.running_var, torch.ones(6))  # type: ignore[arg-type]
    assert norm.training


# Blueprints that do not fit


def test_an_unknown_blueprint_gets_the_nearest_name() -> None:
    net = grow()
    before = everything(net)
    with pytest.raises(UnknownNameError, match="unknown blueprint 'mlp_smal'; did you mean 'mlp_small'"):
        net.germinate("mix", "mlp_smal")
    assert everything(net) == before


def test_a_blueprint_of_another_topology_says_what_it_is_for() -> None:
    net = grow()
    before = everything(net)
    with pytest.raises(BlueprintError, match="'conv_light' is for map2d, map1d; the slot is vector, which has: norm, lora8"):
        net.germinate("mix", "conv_light")
    assert everything(net) == before


def widens(shape: SlotShape) -> nn.Module:
    return nn.Linear(shape.width, shape.width + 1)


def stretches(shape: SlotShape) -> nn.Module:
    return nn.Unflatten(1, (1, shape.width))


def fails_to_build(shape: SlotShape) -> nn.Module:
    raise ZeroDivisionError("no such width")


def fails_to_run(shape: SlotShape) -> nn.Module:
    return nn.Conv2d(shape.width, shape.width, 3)


def builds_no_module(shape: SlotShape) -> nn.Module:
    return "a module"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (widens, r"blueprint 'own' fails on features of shape \(8, 6\) at slot 'mix': RuntimeError: .*size"),
        (stretches, r"blueprint 'own' turns features of shape \(8, 6\) into \(8, 8, 6\) at slot 'mix'"),
        (fails_to_build, r"blueprint 'own' cannot be built for slot 'mix', .*: ZeroDivisionError: no such width"),
        (fails_to_run, r"blueprint 'own' fails on features of shape \(8, 6\) at slot 'mix': RuntimeError: "),
        (builds_no_module, r"blueprint 'own' at .*: its builder must return an nn\.Module; found str"),
    ],
)
def test_a_users_blueprint_that_does_not_fit_is_refused_and_nothing_changes(
    register: None, builder: Callable[[SlotShape], nn.Module], message: str
) -> None:
    blueprint("own", Topology.VECTOR, purpose="does not fit")(builder)
    net = grow()
    optimizer = sgd(net)
    before = everything(net, optimizer)
    with pytest.raises(BlueprintError, match=message):
        net.germinate("mix", "own")
    assert everything(net, optimizer) == before
    net.germinate("mix", "norm")
    assert mix(net).stage is Stage.GERMINATED


def test_an_unknown_slot_gets_the_nearest_id() -> None:
    net = grow()
    for command in (net.advance, net.prune, net.fossilize, net.report, net.verdict, net.record):
        with pytest.raises(UnknownNameError, match="unknown slot 'mixx'; did you mean 'mix'"):
            command("mixx")
