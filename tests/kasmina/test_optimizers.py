"""Optimisers across growth: the groups match the seeds, untouched state survives, and what cannot follow is told so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.leyline.stages import Stage
from tests.kasmina.garden import (
    IMAGES,
    OPTIMIZERS,
    SLOTS,
    SOURCES,
    assert_refuses_to_follow,
    check_groups,
    everything,
    followed,
    group_of,
    grow,
    lead,
    mix,
    same,
    seed_of,
    sgd,
    slot_of,
    step,
    tiny_host,
    values,
    whole_life,
)


def state_of(optimizer: optim.Optimizer, module: nn.Module) -> list[Tensor]:
    """Copies of all that the optimiser remembers of the module's parameters."""
    return [value.clone() for p in module.parameters() for value in optimizer.state[p].values() if isinstance(value, Tensor)]


# Following


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_groups_match_the_seeds_through_a_whole_life(kind: str, source: str) -> None:
    net = grow()
    optimizer = followed(net, kind, source)
    check_groups(net, optimizer)
    whole_life(net, optimizer, lambda: check_groups(net, optimizer))
    assert len(optimizer.param_groups) == 1 + len(SLOTS)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_followed_optimiser_trains_seeds_exactly_as_one_that_had_them_from_the_start(kind: str) -> None:
    net = grow()
    optimizer = followed(net, kind)
    net.germinate("mix", "mlp_small", tempo=1)
    net.advance("mix")
    born, twin = values(seed_of(net, "mix")), copy.deepcopy(net)
    plain = OPTIMIZERS[kind](twin.parameters())
    for _ in range(3):
        step(net, optimizer)
        step(twin, plain)
    assert same(values(net), values(twin))
    assert not same(values(seed_of(net, "mix")), born)


def test_a_gate_that_begins_to_learn_after_its_seed_does_not_disturb_fused_sgd() -> None:
    nets = []
    for fused in (False, True):
        net = grow()
        optimizer = optim.SGD(net.parameter_groups(), lr=0.05, momentum=0.9, nesterov=True, fused=fused)
        net.follow(optimizer)
        lead(net, "mix", Stage.HOLDING, optimizer, style="gated")
        lead(net, "late", Stage.HOLDING, optimizer)
        net.set_alpha_target("late", 1.0, style="gated")
        for _ in range(3):
            step(net, optimizer)
        nets.append(net)
    for plain, fast in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(plain, fast)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw fused"])
def test_what_is_remembered_of_untouched_parameters_survives_each_stage_bit_for_bit(kind: str) -> None:
    net = grow()
    optimizer = followed(net, kind)
    step(net, optimizer)
    remembered = state_of(optimizer, net.host)
    assert remembered
    net.germinate("mix", "norm", tempo=1)
    net.germinate("late", "norm", tempo=1)
    net.tick()
    assert same(state_of(optimizer, net.host), remembered)
    step(net, optimizer)
    host, seed = state_of(optimizer, net.host), state_of(optimizer, seed_of(net, "mix"))
    assert seed
    net.advance("mix")
    net.tick()
    assert mix(net).stage is Stage.HOLDING
    net.set_alpha_target("mix", 1.0, speed=0, style="gated")
    net.tick()
    net.record("mix", contribution=1.0)
    net.tick()
    net.prune("late")
    net.fossilize("mix")
    for _ in range(8):
        net.tick()
    net.germinate("late", "lora8")
    assert same(state_of(optimizer, net.host), host)
    assert same(state_of(optimizer, seed_of(net, "mix")), seed)


def test_a_pruned_seeds_state_is_gone() -> None:
    net = grow()
    optimizer = sgd(net)
    host = len(list(net.host.parameters()))
    lead(net, "mix", Stage.HOLDING, optimizer, style="gated")
    step(net, optimizer)
    assert len(optimizer.state) == host + len(slot_of(net, "mix").seed_parameters())
    net.prune("mix")
    assert len(optimizer.state) == host
    step(net, optimizer)
    check_groups(net, optimizer)


def test_a_gate_that_leaves_with_its_style_takes_its_state_along_and_the_seed_keeps_its_own() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.HOLDING, optimizer, style="gated")
    step(net, optimizer)
    remembered = state_of(optimizer, seed_of(net, "mix"))
    net.set_alpha_target("mix", 1.0, style="linear_add")
    check_groups(net, optimizer)
    assert same(state_of(optimizer, seed_of(net, "mix")), remembered)


def test_following_twice_is_harmless() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.TRAINING, optimizer)
    step(net, optimizer)
    before = everything(net, optimizer)
    net.follow(optimizer)
    assert everything(net, optimizer) == before
    step(net, optimizer)
    check_groups(net, optimizer)


def test_seeds_that_grew_before_the_optimiser_are_stepped_once() -> None:
    net = grow()
    net.germinate("mix", "mlp_small", style="gated")
    net.advance("mix")
    for source in ("parameters", "names", "the host's parameters", "parameter_groups"):
        copied = copy.deepcopy(net)
        optimizer = followed(copied, source=source)
        check_groups(copied, optimizer)
        step(copied, optimizer)
        twin = copy.deepcopy(net)
        step(twin, OPTIMIZERS["sgd"](twin.parameters()))
        assert same(values(copied), values(twin))


def test_a_new_group_takes_the_settings_of_the_group_that_its_module_is_in() -> None:
    net = grow()
    host = net.host
    optimizer = optim.SGD(
        [
            {"params": list(host.stem.parameters()), "lr": 0.5, "weight_decay": 0.25},  # type: ignore[union-attr]
            {"params": [*host.mix.parameters(), *host.late.parameters()], "lr": 0.125},  # type: ignore[union-attr]
            {"params": list(host.head.parameters()), "lr": 1.0, "momentum": 0.5},  # type: ignore[union-attr]
        ],
        lr=0.1,
        momentum=0.9,
    )
    net.follow(optimizer)
    settings = {slot: (group_of(optimizer, slot)["lr"], group_of(optimizer, slot)["weight_decay"]) for slot in SLOTS}
    assert settings == {"stem.0": (0.5, 0.25), "mix": (0.125, 0.0), "late": (0.125, 0.0)}
    assert [group_of(optimizer, slot)["momentum"] for slot in SLOTS] == [0.9] * 3


def test_a_slot_without_parameters_takes_the_settings_of_the_nearest_before_it() -> None:
    host = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    net = Growable(host, ["1", "4"], IMAGES)
    optimizer = optim.SGD(
        [
            {"params": [*host[6].parameters()], "lr": 1.0},
            {"params": [*host[3].parameters()], "lr": 0.25, "weight_decay": 0.5},
            {"params": [*host[0].parameters()], "lr": 0.125, "weight_decay": 0.75},
        ],
        lr=0.1,
    )
    net.follow(optimizer)
    settings = {slot: (group_of(optimizer, slot)["lr"], group_of(optimizer, slot)["weight_decay"]) for slot in ("1", "4")}
    assert settings == {"1": (0.125, 0.75), "4": (0.25, 0.5)}
    frozen = Growable(net.release(), ["4"], IMAGES)
    partial = optim.SGD([{"params": [*host[6].parameters()], "lr": 1.0}, {"params": [*host[0].parameters()], "lr": 0.125}], lr=0.1)
    frozen.follow(partial)
    assert group_of(partial, "4")["lr"] == 0.125, "what is not in the optimiser is passed over"


@pytest.mark.parametrize("fused", [False, True])
def test_adagrad_gives_a_late_parameter_what_it_gives_to_one_that_it_is_built_with(fused: bool) -> None:
    net = grow()
    optimizer = optim.Adagrad(net.parameter_groups(), lr=0.01, initial_accumulator_value=0.5, fused=fused)
    net.follow(optimizer)
    net.germinate("mix", "norm")
    net.advance("mix")
    seed, sums = list(seed_of(net, "mix").parameters()), []
    assert not any(p in optimizer.state for p in seed)
    optimizer.register_step_pre_hook(lambda *_: sums.extend(optimizer.state[p]["sum"].clone() for p in seed))
    step(net, optimizer)
    assert all(torch.equal(found, torch.full_like(p, 0.5)) for found, p in zip(sums, seed, strict=True)), "known before the step"
    for p in seed:
        assert p.grad is not None
        torch.testing.assert_close(optimizer.state[p]["sum"], 0.5 + p.grad.square())
        assert optimizer.state[p]["step"] == 1


def test_a_learning_rate_kept_in_a_tensor_is_a_tensor_of_its_own_for_each_new_group() -> None:
    net = grow()
    optimizer = optim.Adam(net.host.parameters(), lr=torch.tensor(0.1), foreach=False)
    net.follow(optimizer)
    group_of(optimizer, "mix")["lr"].fill_(0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1, 0.1, 0.5, 0.1])


def test_a_module_outside_every_group_lends_its_seed_the_first_groups_settings() -> None:
    net = grow()
    optimizer = optim.SGD(net.host.head.parameters(), lr=0.5)  # type: ignore[union-attr]
    net.follow(optimizer)
    assert [group_of(optimizer, slot)["lr"] for slot in SLOTS] == [0.5] * 3


# Two optimisers


def test_seeds_can_have_an_optimiser_of_their_own() -> None:
    net = grow()
    host, seeds = optim.SGD(net.host.parameters(), lr=0.1, momentum=0.9), optim.Adam(net.parameter_groups()[1:], lr=0.01)
    net.follow(seeds)
    net.germinate("mix", "norm")
    net.advance("mix")
    before = values(net.host), values(seed_of(net, "mix"))
    step(net, seeds)
    assert same(values(net.host), before[0])
    assert not same(values(seed_of(net, "mix")), before[1])
    host.step()
    assert not same(values(net.host), before[0])
    assert {id(p) for p in seeds.state} == {id(p) for p in seed_of(net, "mix").parameters()}
    net.prune("mix")
    assert not seeds.state
    assert len(host.param_groups) == 1


def test_an_optimiser_that_follows_later_takes_the_seeds_over() -> None:
    net = grow()
    first = sgd(net)
    lead(net, "mix", Stage.TRAINING, first)
    step(net, first)
    second = followed(net, "adam")
    check_groups(net, second)
    assert [group["params"] for group in first.param_groups[1:]] == [[], [], []]
    assert {id(p) for p in first.state} == {id(p) for p in net.host.parameters()}
    before = values(seed_of(net, "mix"))
    net.tick()
    step(net, first)
    assert same(values(seed_of(net, "mix")), before), "the first optimiser no longer steps them"
    assert net.host_meter.read() is None, "nor measures them"
    step(net, second)
    assert not same(values(seed_of(net, "mix")), before)
    net.germinate("late", "norm")
    check_groups(net, second)
    assert first.param_groups[3]["params"] == []


def test_seeds_of_a_frozen_host_may_share_their_optimiser_with_another_module() -> None:
    net, head = grow(), nn.Linear(3, 3)
    net.host.requires_grad_(False)
    optimizer = optim.SGD([*net.parameter_groups(), {"params": head.parameters()}], lr=0.1)
    net.follow(optimizer)
    net.germinate("mix", "mlp_small")
    net.advance("mix")
    before, fixed = values(seed_of(net, "mix")), values(net.host)
    head(net(IMAGES)).sum().backward()
    optimizer.step()
    assert not same(values(seed_of(net, "mix")), before)
    assert same(values(net.host), fixed)


# What cannot follow


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (optim.LBFGS, "LBFGS has one fixed parameter group and cannot follow the growth; use SGD or Adam"),
        (optim.Muon, "Muon steps matrices alone, and seeds have other parameters as well; let the optimiser of the other"),
        (optim.SparseAdam, "SparseAdam steps sparse gradients alone, and those of seeds are dense; let the optimiser of the other"),
    ],
)
def test_an_optimiser_that_could_not_step_seeds_cannot_follow(kind: type[optim.Optimizer], message: str) -> None:
    net = grow()
    matrices = [p for p in net.host.parameters() if p.dim() == 2]
    assert_refuses_to_follow(net, kind(matrices), message)  # type: ignore[call-arg]


def test_an_optimiser_of_another_network_cannot_follow() -> None:
    message = r"holds none of the model's parameters; build it from model\.parameter_groups\(\)"
    assert_refuses_to_follow(grow(), optim.SGD(tiny_host().parameters(), lr=0.1), message)
    assert_refuses_to_follow(grow(), optim.SGD(grow().parameter_groups(), lr=0.1), message)


def test_an_optimiser_with_a_group_for_a_slot_that_is_not_here_cannot_follow() -> None:
    net = Growable(tiny_host(), ["mix"], IMAGES)
    groups = [*net.parameter_groups(), {"params": [], "slot": "stem.0"}]
    assert_refuses_to_follow(net, optim.SGD(groups, lr=0.1), r"has a group for slot 'stem\.0', which this model does not have")


# Saving and loading


@pytest.mark.parametrize("source", ["parameter_groups", "parameters", "names"])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw fused"])
def test_network_and_optimiser_go_on_bit_for_bit_after_a_round_trip(kind: str, source: str) -> None:
    net = grow()
    optimizer = followed(net, kind, source)
    lead(net, "mix", Stage.FOSSILIZED, optimizer, style="gated")
    lead(net, "late", Stage.BLENDING, optimizer)
    net.germinate("stem.0", "conv_light")
    step(net, optimizer)
    other = grow(seed=0)
    if source == "parameter_groups":  # either order works: the optimiser before the load, or after it
        resumed = followed(other, kind, source)
        other.load_state_dict(net.state_dict())
    else:
        other.load_state_dict(net.state_dict())
        resumed = followed(other, kind, source)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch keeps the loaded tensors themselves
    check_groups(other, resumed)
    for _ in range(2):
        for each, its in ((net, optimizer), (other, resumed)):
            step(each, its)
            each.tick()
    assert same(values(net), values(other))
    for each, its in ((net, optimizer), (other, resumed)):
        each.prune("late")
        each.set_alpha_target("stem.0", 1.0) if each.report("stem.0").stage is Stage.HOLDING else each.prune("stem.0")
        step(each, its)
        check_groups(each, its)
    assert same(values(net), values(other))
    assert repr(optimizer.state_dict()) == repr(resumed.state_dict())


def test_the_groups_are_followed_after_the_optimiser_has_loaded_a_state() -> None:
    net = grow()
    optimizer = sgd(net)
    step(net, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    whole_life(net, optimizer, lambda: check_groups(net, optimizer))
    assert len(optimizer.param_groups) == 4


def test_loading_a_network_keeps_what_is_remembered_of_the_host() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.TRAINING, optimizer)
    step(net, optimizer)
    remembered = state_of(optimizer, net.host)
    net.load_state_dict(net.state_dict())
    assert same(state_of(optimizer, net.host), remembered)
    check_groups(net, optimizer)


def test_a_copy_of_the_network_leaves_the_optimiser_with_the_original() -> None:
    net = grow()
    optimizer = sgd(net)
    copied = copy.deepcopy(net)
    copied.germinate("mix", "norm")
    assert group_of(optimizer, "mix")["params"] == []
    net.germinate("late", "norm")
    check_groups(net, optimizer)
    own = sgd(copied)
    check_groups(copied, own)
