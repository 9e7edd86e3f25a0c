"""The reward audit: what is known to be farmed elsewhere earns less than waiting here, and better plans earn more.

Every host has a control, the same host under WAIT, which earns exactly nothing; so "less than WAIT" is "less than 0".
"""

from __future__ import annotations

from functools import cache

import pytest

from esper.leyline.actions import Op
from esper.leyline.stages import Stage
from esper.simic.rewards import Mode, RewardConfig, Twin
from esper.tamiyo import Controller, make
from tests.simic.plans import (
    FIRST,
    POOR,
    RICH,
    SECOND,
    SLOTS,
    WORLDS,
    DependentHost,
    Episode,
    cycle,
    exploits,
    field,
    grow,
    honest_plans,
    rank_correlation,
    returns,
    rewards,
    seesaw,
    simulate,
    train,
)
from tests.simic.reward_tables import PAGE, TABLES, place
from tests.tamiyo.simulator import World

MODES: tuple[Mode, ...] = ("shaped", "simplified", "loss")
"""Those in which more than the end is paid for."""


@cache
def waiting(world: World, random_seed: int = 0) -> Twin:
    return simulate(make("wait"), world, random_seed).control


@cache
def trained_waiting(width: int, seed: int) -> Twin:
    return train(make("wait"), width=width, seed=seed).control


def total(episode: Episode, control: Twin | None, mode: Mode = "shaped") -> float:
    return returns(episode, control, RewardConfig(mode=mode))["total"]


# Waiting


@pytest.mark.parametrize("mode", MODES)
def test_waiting_earns_exactly_nothing(mode: Mode) -> None:
    for episode in (simulate(make("wait"), RICH), train(make("wait"))):
        steps = rewards(episode, episode.control, RewardConfig(mode=mode))
        assert {value for step in steps for value in step.values()} == {0.0}


# Exploits, on simulated hosts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", WORLDS)
def test_every_exploit_earns_less_than_waiting(world: str, mode: Mode) -> None:
    for name, episode in zip(exploits(), field(world).exploits, strict=True):
        assert episode.acts() > 0
        assert total(episode, field(world).control, mode) < 0.0, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", WORLDS)
def test_every_exploit_earns_less_than_waiting_when_there_is_no_control(world: str, mode: Mode) -> None:
    wait = simulate(make("wait"), WORLDS[world])
    for name, episode in zip(exploits(), field(world).exploits, strict=True):
        assert total(episode, None, mode) < total(wait, None, mode), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("blueprint", ["norm", "conv_small", "conv_light", "conv_heavy"])
def test_fossilising_what_does_not_contribute_earns_less_than_waiting(blueprint: str, mode: Mode) -> None:
    episode = simulate(grow((1, SLOTS[0], blueprint), (1, SLOTS[1], blueprint)), POOR)
    assert episode.final.parameters > 1000
    assert total(episode, waiting(POOR), mode) < 0.0
    wait = simulate(make("wait"), POOR)
    assert total(episode, None, mode) < total(wait, None, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_host_made_dependent_is_punished(slots: int, keep: bool, mode: Mode) -> None:
    plan = grow(*((1, slot, "conv_heavy") for slot in SLOTS[:slots]), keep=keep)
    episode, control = simulate(plan, World(noise=0.0), kind=DependentHost), waiting(World(noise=0.0))
    last = episode.steps[-1].before
    measured = [each.contribution for each in last.seeds if each.contribution is not None]
    assert min(measured) > 4.0, "without a seed the host is much worse"
    assert last.val_accuracy <= control.accuracy[-1] + 0.5, "with it, it is no better than its control"
    found = returns(episode, control, RewardConfig(mode=mode))
    assert found["total"] < 0.0
    assert mode == "simplified" or found["attribution"] <= 0.5 * 0.25 / 40.0, "no more than is allowed for noise"


def test_going_round_in_circles_is_paid_nothing_but_its_costs() -> None:
    for world in WORLDS.values():
        for plan in (cycle(SLOTS[0], "conv_light"), grow((20, SLOTS[0], "norm"))):
            found = returns(simulate(plan, world), waiting(world), RewardConfig())
            assert found["pbrs"] == pytest.approx(0.0, abs=1e-12)
            assert found["total"] == pytest.approx(found["costs"] + found["progress"] + found["terminal"], abs=1e-12)


def test_holding_longer_than_needed_earns_no_more_than_keeping_at_once() -> None:
    world = World(noise=0.0)
    by_wait = [simulate(grow((1, SLOTS[0], "conv_light"), hold=hold), world) for hold in (1, 3, 5, 8, 12)]
    assert {episode.final.accuracy for episode in by_wait} == {by_wait[0].final.accuracy}, "the same network in the end"
    earned = [total(episode, waiting(world)) for episode in by_wait]
    assert earned[:3] == pytest.approx([earned[0]] * 3, abs=1e-3), "nothing is gained by haste"
    assert earned[0] > earned[3] > earned[4], "and a little is lost by dawdling"


@pytest.mark.parametrize("mode", MODES)
def test_whoever_ends_no_better_than_waiting_earns_less(mode: Mode) -> None:
    """Whatever was done on the way, by lot: 60 episodes on hosts of all kinds."""
    seen = 0
    for name, world in WORLDS.items():
        for random_seed in range(20):
            episode = simulate(make("random"), world, random_seed)
            control = waiting(world, random_seed)
            if episode.acts() and episode.gain(control, mode) <= 0.0:
                seen += 1
                assert total(episode, control, mode) < 0.0, f"{name}, {random_seed}"
    assert seen > 20


# Exploits, on a real network


@pytest.mark.parametrize(
    ("name", "plan"),
    {
        "hold": grow((1, FIRST, "mlp"), keep=False),
        "cycle": cycle(FIRST, "mlp"),
        "seesaw": seesaw(FIRST, "mlp_small", speed=3),
        "late": grow((21, FIRST, "mlp"), (21, SECOND, "mlp")),
    }.items(),
)
def test_an_exploit_of_a_real_network_earns_less_than_waiting(name: str, plan: Controller) -> None:
    episode, control = train(plan), trained_waiting(4, 0)
    assert episode.acts() > 0
    assert [total(episode, control, mode) < 0.0 for mode in MODES] == [True] * len(MODES), name
    wait = train(make("wait"))
    assert total(episode, None) < total(wait, None)


def test_a_real_network_made_dependent_is_punished() -> None:
    """Hosts that are large enough by themselves leave work to a seed that they do not need."""
    dependent = 0
    for seed in range(3):
        episode, control = train(grow((1, FIRST, "mlp")), width=16, seed=seed), trained_waiting(16, seed)
        last = episode.steps[-1].before
        lost = [each.contribution for each in last.seeds if each.stage is Stage.FOSSILIZED and each.contribution is not None]
        if max(lost, default=0.0) > 5.0 and last.val_accuracy <= control.accuracy[-1]:
            dependent += 1
            found = returns(episode, control, RewardConfig())
            assert found["attribution"] <= 0.0
            assert found["total"] < 0.0
    assert dependent > 0


def test_fossilising_with_the_last_decision_counts() -> None:
    """The only difference between two episodes is their last decision; the network is harvested after it."""
    kept, dropped = train(grow((19, FIRST, "mlp"))), train(grow((19, FIRST, "mlp"), keep=False))
    assert [episode.steps[-1].decision.op for episode in (kept, dropped)] == [Op.FOSSILIZE, Op.WAIT]
    assert [step.report.val_accuracy for step in kept.steps] == [step.report.val_accuracy for step in dropped.steps]
    assert kept.final.parameters > dropped.final.parameters
    control = trained_waiting(4, 0)
    earned = [total(each, control, "sparse") for each in (kept, dropped)]
    assert (earned[0] > earned[1]) == (kept.gain(control) > dropped.gain(control))


# Honest growth


@pytest.mark.parametrize("mode", MODES)
def test_early_growth_that_gains_earns_more_than_waiting_and_more_than_late_growth(mode: Mode) -> None:
    early, later, late = (simulate(grow((epoch, SLOTS[0], "conv_light")), World(noise=0.0)) for epoch in (1, 11, 16))
    earned = [total(each, waiting(World(noise=0.0)), mode) for each in (early, later, late)]
    assert earned[0] > earned[1] > earned[2]
    assert earned[0] > 0.0


def test_early_growth_of_a_real_network_that_gains_earns_more_than_waiting() -> None:
    gained = 0
    for seed in range(3):
        episode, control = train(grow((1, FIRST, "mlp")), seed=seed), trained_waiting(4, seed)
        if episode.gain(control) > 1.0:
            gained += 1
            assert all(total(episode, control, mode) > 0.0 for mode in ("shaped", "simplified"))
            assert total(episode, None) > total(train(make("wait"), seed=seed), None)
    assert gained > 0


@pytest.mark.parametrize("mode", [*MODES, "sparse"])
def test_better_plans_earn_more(mode: Mode) -> None:
    """Rank correlation of return and final score over 36 plans on each kind of host, and over all of them with the exploits."""
    everything: list[tuple[float, float]] = []
    for name in WORLDS:
        pairs = field(name).pairs(mode)
        honest = pairs[: len(honest_plans())]
        assert rank_correlation(*zip(*honest, strict=True)) > 0.9, name
        assert max(honest)[1] > max(gain for _, gain in honest) - 0.5, "who earns most has the best network, to within its costs"
        everything += pairs
    assert rank_correlation(*zip(*everything, strict=True)) > 0.9


def test_better_plans_of_real_networks_earn_more() -> None:
    starts = [((1, FIRST, "mlp"),), ((1, FIRST, "norm"),), ((1, SECOND, "mlp_small"),), ((1, FIRST, "mlp"), (2, SECOND, "mlp"))]
    plans = [*(grow(*each) for each in starts), grow((14, FIRST, "mlp")), grow((1, FIRST, "mlp"), keep=False)]
    played = [(train(plan, seed=seed), trained_waiting(4, seed)) for seed in (0, 1) for plan in plans]
    for mode in (*MODES, "sparse"):
        gains = [episode.gain(control, mode) for episode, control in played]
        earned = [total(episode, control, mode) for episode, control in played]
        assert rank_correlation(earned, gains) > 0.9, mode
        assert all(reward < 0.0 for reward, gain in zip(earned, gains, strict=True) if gain <= 0.0)


# The page


@pytest.mark.parametrize("name", ["worked", "audit", "correlations"])
def test_the_tables_of_the_page_are_true(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert place(page, name, TABLES[name]()) == page, "run python -m tests.simic.reward_tables"
