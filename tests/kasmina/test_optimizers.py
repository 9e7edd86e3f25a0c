"""Optimisers and learning-rate schedulers across growth: the groups match the seeds, untouched state survives, nothing else breaks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from esper.kasmina import Growable
from esper.leyline import OptimizerError, Stage
from tests.kasmina.garden import IMAGES, SLOTS, everything, grow, lead, mix, same, seed_of, sgd, slot_of, step, tiny_host, values

Build = Callable[[Any], optim.Optimizer]

KINDS: dict[str, Build] = {
    "sgd": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda params: optim.Adam(params, lr=0.01),
    "adam foreach": lambda params: optim.Adam(params, lr=0.01, foreach=True),
    "adam amsgrad": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: optim.AdamW(params, lr=0.01),
    "adamw fused": lambda params: optim.AdamW(params, lr=0.01, fused=True),
    "rmsprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.5),
    "adagrad": lambda params: optim.Adagrad(params, lr=0.01),
}

SOURCES: dict[str, Callable[[Growable], Any]] = {
    "parameter_groups": lambda net: net.parameter_groups(),
    "parameters": lambda net: net.parameters(),
    "the host's parameters": lambda net: net.host.parameters(),
    "names": lambda net: net.named_parameters(),
}


def followed(net: Growable, kind: str = "sgd", source: str = "parameter_groups") -> optim.Optimizer:
    optimizer = KINDS[kind](SOURCES[source](net))
    net.follow(optimizer)
    return optimizer


def group_of(optimizer: optim.Optimizer, slot: str) -> dict[str, Any]:
    (group,) = (group for group in optimizer.param_groups if "slot" in group and group["slot"] == slot)
    return group


def check(net: Growable, optimizer: optim.Optimizer) -> None:
    """The groups hold the live parameters and nothing else, each once, and no state is left of what is gone."""
    for slot in SLOTS:
        group = group_of(optimizer, slot)
        assert [id(p) for p in group["params"]] == [id(p) for p in slot_of(net, slot).seed_parameters()]
        assert "param_names" not in group or len(group["param_names"]) == len(group["params"])
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted({id(p) for p in net.parameters()})
    assert {id(p) for p in optimizer.state} <= set(held)


def state_of(optimizer: optim.Optimizer, module: nn.Module) -> list[Tensor]:
    """Copies of all that the optimiser remembers of the module's parameters."""
    return [value.clone() for p in module.parameters() for value in optimizer.state[p].values() if isinstance(value, Tensor)]


def whole_life(net: Growable, optimizer: optim.Optimizer, between: Callable[[], None]) -> None:
    """Takes "mix" to a fossil, "late" to a prune by a ramp and "stem.0" through a change of style to an end at once."""
    for slot, style in zip(SLOTS, ("gated", "linear_add", "linear_multiply"), strict=True):
        net.germinate(slot, "norm", tempo=1, style=style)
        between()
    net.tick()
    step(net, optimizer)
    for slot in SLOTS:
        net.advance(slot)
        between()
    net.tick()
    between()
    step(net, optimizer)
    net.record("mix", contribution=1.0)
    net.fossilize("mix")
    net.prune("late", speed=2)
    net.set_alpha_target("stem.0", 0.5, style="linear_add")
    between()
    for _ in range(2):
        net.tick()
        between()
        step(net, optimizer)
    net.prune("stem.0")
    between()
    assert [net.report(slot).stage for slot in SLOTS] == [Stage.PRUNED, Stage.FOSSILIZED, Stage.PRUNED]


# Following


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_groups_match_the_seeds_through_a_whole_life(kind: str, source: str) -> None:
    net = grow()
    optimizer = followed(net, kind, source)
    check(net, optimizer)
    whole_life(net, optimizer, lambda: check(net, optimizer))
    assert len(optimizer.param_groups) == 1 + len(SLOTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_followed_optimiser_trains_seeds_exactly_as_one_that_had_them_from_the_start(kind: str) -> None:
    net = grow()
    optimizer = followed(net, kind)
    net.germinate("mix", "mlp_small", tempo=1)
    net.advance("mix")
    born, twin = values(seed_of(net, "mix")), copy.deepcopy(net)
    plain = KINDS[kind](twin.parameters())
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
    check(net, optimizer)


def test_a_gate_that_leaves_with_its_style_takes_its_state_along_and_the_seed_keeps_its_own() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.HOLDING, optimizer, style="gated")
    step(net, optimizer)
    remembered = state_of(optimizer, seed_of(net, "mix"))
    net.set_alpha_target("mix", 1.0, style="linear_add")
    check(net, optimizer)
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
    check(net, optimizer)


def test_seeds_that_grew_before_the_optimiser_are_stepped_once() -> None:
    net = grow()
    net.germinate("mix", "mlp_small", style="gated")
    net.advance("mix")
    for source in ("parameters", "names", "the host's parameters", "parameter_groups"):
        copied = copy.deepcopy(net)
        optimizer = followed(copied, source=source)
        check(copied, optimizer)
        step(copied, optimizer)
        twin = copy.deepcopy(net)
        step(twin, KINDS["sgd"](twin.parameters()))
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
    check(net, second)
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
    check(net, second)
    assert first.param_groups[3]["params"] == []


# What cannot follow


def refused(net: Growable, optimizer: optim.Optimizer, message: str) -> None:
    before = everything(net, optimizer)
    with pytest.raises(OptimizerError, match=message):
        net.follow(optimizer)
    assert everything(net, optimizer) == before
    net.germinate("mix", "norm")
    assert len(optimizer.state_dict()["param_groups"]) == len(optimizer.param_groups)
    assert all(id(p) not in {id(q) for q in seed_of(net, "mix").parameters()} for g in optimizer.param_groups for p in g["params"])


def test_lbfgs_cannot_follow() -> None:
    net = grow()
    refused(net, optim.LBFGS(net.host.parameters()), "LBFGS has one fixed parameter group and cannot follow the growth; use SGD or Adam")


def test_an_optimiser_of_another_network_cannot_follow() -> None:
    message = r"holds none of the model's parameters; build it from model\.parameter_groups\(\)"
    refused(grow(), optim.SGD(tiny_host().parameters(), lr=0.1), message)
    refused(grow(), optim.SGD(grow().parameter_groups(), lr=0.1), message)


def test_an_optimiser_with_a_group_for_a_slot_that_is_not_here_cannot_follow() -> None:
    net = Growable(tiny_host(), ["mix"], IMAGES)
    groups = [*net.parameter_groups(), {"params": [], "slot": "stem.0"}]
    refused(net, optim.SGD(groups, lr=0.1), r"has a group for slot 'stem\.0', which this model does not have")


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
}


@pytest.mark.parametrize("kind", ["LambdaLR", "OneCycleLR", "CosineAnnealingLR", "SequentialLR"])
def test_a_scheduler_built_before_following_is_found_out(kind: str) -> None:
    net = grow()
    optimizer = KINDS["sgd"](net.host.parameters())
    SCHEDULERS[kind](optimizer)
    refused(net, optimizer, "a learning-rate scheduler was built before the optimiser followed the model")


def schedule(scheduler: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order of step and schedule is not what is tested
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


@pytest.mark.parametrize("source", ["parameter_groups", "the host's parameters"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_treats_seeds_as_the_host_whatever_grows(kind: str, source: str) -> None:
    net, bare = grow(), tiny_host()
    optimizer, plain = followed(net, "sgd", source), KINDS["sgd"](bare.parameters())
    scheduler, expected = SCHEDULERS[kind](optimizer), SCHEDULERS[kind](plain)
    rates = []

    def between() -> None:
        schedule(scheduler)
        schedule(expected)
        rates.append(plain.param_groups[0]["lr"])
        assert [group["lr"] for group in optimizer.param_groups] == [rates[-1]] * 4

    whole_life(net, optimizer, between)
    assert len(set(rates)) > 3


def test_a_scheduler_can_be_built_before_an_optimiser_with_all_its_groups_follows() -> None:
    net = grow()
    optimizer = KINDS["sgd"](net.parameter_groups())
    scheduler = SCHEDULERS["OneCycleLR"](optimizer)
    net.follow(optimizer)
    whole_life(net, optimizer, lambda: schedule(scheduler))
    check(net, optimizer)


def test_a_plateau_scheduler_built_before_following_goes_on_working() -> None:
    net = grow()
    optimizer = KINDS["sgd"](net.host.parameters())
    scheduler = SCHEDULERS["ReduceLROnPlateau"](optimizer)
    net.follow(optimizer)
    for _ in range(3):
        schedule(scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05 * 0.01] * 4)


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
    check(other, resumed)
    for _ in range(2):
        for each, its in ((net, optimizer), (other, resumed)):
            step(each, its)
            each.tick()
    assert same(values(net), values(other))
    for each, its in ((net, optimizer), (other, resumed)):
        each.prune("late")
        each.set_alpha_target("stem.0", 1.0) if each.report("stem.0").stage is Stage.HOLDING else each.prune("stem.0")
        step(each, its)
        check(each, its)
    assert same(values(net), values(other))
    assert repr(optimizer.state_dict()) == repr(resumed.state_dict())


def test_the_groups_are_followed_after_the_optimiser_has_loaded_a_state() -> None:
    net = grow()
    optimizer = sgd(net)
    step(net, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    whole_life(net, optimizer, lambda: check(net, optimizer))
    assert len(optimizer.param_groups) == 4


def test_loading_a_network_keeps_what_is_remembered_of_the_host() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", Stage.TRAINING, optimizer)
    step(net, optimizer)
    remembered = state_of(optimizer, net.host)
    net.load_state_dict(net.state_dict())
    assert same(state_of(optimizer, net.host), remembered)
    check(net, optimizer)


def test_a_copy_of_the_network_leaves_the_optimiser_with_the_original() -> None:
    net = grow()
    optimizer = sgd(net)
    copied = copy.deepcopy(net)
    copied.germinate("mix", "norm")
    assert group_of(optimizer, "mix")["params"] == []
    net.germinate("late", "norm")
    check(net, optimizer)
    own = sgd(copied)
    check(copied, own)
