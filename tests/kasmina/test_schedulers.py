"""Learning-rate schedulers across growth: built in time they treat seeds as the host, and built too early they are found out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import optim
from torch.optim import lr_scheduler

from tests.kasmina.garden import OPTIMIZERS, assert_refuses_to_follow, check_groups, followed, grow, tiny_host, whole_life

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
    optimizer = OPTIMIZERS["sgd"](net.host.parameters())
    SCHEDULERS[kind](optimizer)
    assert_refuses_to_follow(net, optimizer, "a learning-rate scheduler was built before the optimiser followed the model")


def schedule(scheduler: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order of step and schedule is not what is tested
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


@pytest.mark.parametrize("source", ["parameter_groups", "the host's parameters"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_treats_seeds_as_the_host_whatever_grows(kind: str, source: str) -> None:
    net, bare = grow(), tiny_host()
    optimizer, plain = followed(net, "sgd", source), OPTIMIZERS["sgd"](bare.parameters())
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
    optimizer = OPTIMIZERS["sgd"](net.parameter_groups())
    scheduler = SCHEDULERS["OneCycleLR"](optimizer)
    net.follow(optimizer)
    whole_life(net, optimizer, lambda: schedule(scheduler))
    check_groups(net, optimizer)


def test_a_plateau_scheduler_built_before_following_goes_on_working() -> None:
    net = grow()
    optimizer = OPTIMIZERS["sgd"](net.host.parameters())
    scheduler = SCHEDULERS["ReduceLROnPlateau"](optimizer)
    net.follow(optimizer)
    for _ in range(3):
        schedule(scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05 * 0.01] * 4)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_seeds_that_share_the_groups_of_their_neighbours_come_after_any_scheduler(kind: str) -> None:
    net = grow()
    host = list(net.host.parameters())
    optimizer = OPTIMIZERS["sgd"](net.host.named_parameters())
    scheduler = SCHEDULERS[kind](optimizer)
    net.follow(optimizer, share_groups=True)

    def between() -> None:
        schedule(scheduler)
        (group,) = optimizer.param_groups
        seeds = [p for slot in net.slots.values() for p in slot.seed_parameters()]
        assert [id(p) for p in group["params"]] == [id(p) for p in (*host, *seeds)], "the host's, then seeds in the order of their slots"
        assert len(group["param_names"]) == len(group["params"])
        assert {id(p) for p in optimizer.state} <= {id(p) for p in group["params"]}

    whole_life(net, optimizer, between)
    net.unfollow()
    assert optimizer.param_groups[0]["params"] == host
