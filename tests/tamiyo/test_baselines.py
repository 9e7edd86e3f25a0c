"""The baselines: waiting, deciding at random, and the calendar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from esper.leyline.actions import Decision, Head, Op, Style
from esper.leyline.errors import ConfigError
from esper.leyline.stages import Stage
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tamiyo import Controller, FixedConfig, Observation, RandomConfig, make
from esper.tamiyo.controllers.controller import State, random_stream
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.observe.masks import BoolArray, choose
from tests.tamiyo.simulator import Step, World, fossils, play


def acts(steps: list[Step], op: Op) -> list[tuple[int, Decision]]:
    return [(step.observation.report.epoch, step.decision) for step in steps if step.decision.op is op]


def test_wait_never_acts() -> None:
    host, steps = play(make("wait"))
    assert all(step.decision.op is Op.WAIT for step in steps)
    assert host.germinated == 0


# Random


def test_what_random_decides_depends_on_its_seed_and_on_what_it_sees_alone() -> None:
    controller = make("random")
    _, steps = play(controller, random_seed=1)

    def decisions(seed: int) -> list[Decision]:
        return [controller.decide(step.observation, controller.start(seed))[0] for step in steps]

    assert decisions(1) == [step.decision for step in steps]
    assert decisions(1) != decisions(2)


@dataclass(frozen=True)
class Untrained:
    """Draws every head from a prior, as a policy does that has learned nothing."""

    config: Prior
    name: str = "untrained"

    def start(self, seed: int) -> State:
        return {"seed": seed}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        rng = random_stream(self.name, state["seed"], state["seed"], observation.report.epoch)

        def pick(head: Head, mask: BoolArray) -> int:
            return int(rng.choice(len(mask), p=self.config.probabilities(head, mask)))

        return choose(observation.masks, pick), state


def share_with_a_fossil(controller: Controller, world: World, episodes: int) -> float:
    return sum(fossils(play(controller, world, random_seed=i)[0]) > 0 for i in range(episodes)) / episodes


@pytest.mark.parametrize(
    "controller", [make("random", RandomConfig(wait=0.9)), Untrained(PPORunConfig().ppo.prior)], ids=["random", "policy"]
)
def test_under_the_exploration_prior_a_fossil_in_an_episode_is_common_enough_to_learn_from(controller: Controller) -> None:
    share = share_with_a_fossil(controller, World(), 100)
    assert share > 0.2, f"{share:.0%} of episodes of 25 epochs end with a fossil: there would be little to learn from"


def test_without_auto_advance_and_with_uniform_ops_a_fossil_is_rare() -> None:
    assert share_with_a_fossil(make("random", RandomConfig(uniform=True)), World(auto_advance=False), 60) < 0.2


def test_the_random_baseline_grows_something_in_most_episodes_and_uses_every_op() -> None:
    used = set()
    for i in range(20):
        used |= {step.decision.op for step in play(make("random"), random_seed=i)[1]}
    assert used == set(Op)


# Fixed


def light(**values: Any) -> FixedConfig:
    """A schedule with what the simulated hosts can grow."""
    return FixedConfig(blueprints=("conv_light",), **values)


def test_fixed_germinates_by_the_calendar_at_places_spread_evenly_and_keeps_all() -> None:
    host, steps = play(make("fixed", light(first=3, period=5, seeds=3, tempo=3)))
    starts = acts(steps, Op.GERMINATE)
    assert [epoch for epoch, _ in starts] == [3, 8, 13]
    assert [decision.slot for _, decision in starts] == ["r0c0", "r0c1", "r0c2"]
    assert {decision.blueprint for _, decision in starts} == {"conv_light"}
    assert fossils(host) == 3
    assert not acts(steps, Op.PRUNE)


@pytest.mark.parametrize(("seeds", "places"), [(1, ["r0c2"]), (2, ["r0c1", "r0c3"]), (5, [f"r0c{i}" for i in range(5)])])
def test_fixed_spreads_few_seeds_over_many_slots(seeds: int, places: list[str]) -> None:
    _, steps = play(make("fixed", light(seeds=seeds)), World(slots=5, budget=40))
    assert [decision.slot for _, decision in acts(steps, Op.GERMINATE)] == places


def test_fixed_makes_up_for_a_start_that_had_to_wait() -> None:
    _, steps = play(make("fixed", light(first=2, period=1, seeds=2)))
    epochs = [epoch for epoch, _ in acts(steps, Op.GERMINATE)]
    assert epochs[0] == 2
    # The second was due after epoch 3, when the first was in TRAINING, and starts once that one is blending.
    assert epochs[1] == 6


def test_fixed_advances_and_keeps_as_soon_as_it_may_without_auto_advance_too() -> None:
    host, steps = play(make("fixed", light(first=2, seeds=1, style=Style.GATED)), World(auto_advance=False))
    assert [epoch for epoch, _ in acts(steps, Op.ADVANCE)] == [3, 6, 9]
    assert [epoch for epoch, _ in acts(steps, Op.FOSSILIZE)] == [10]
    assert host.seeds[1].stage is Stage.FOSSILIZED
    assert host.seeds[1].style is Style.GATED


def test_fixed_says_when_none_of_its_blueprints_fits_and_when_its_tempo_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"none of its blueprints \(mlp\) fits slot 'r0c0'"):
        play(make("fixed", FixedConfig(blueprints=("mlp",))))
    with pytest.raises(ConfigError, match="tempo is 4; expected one of 3, 5, 7, 10"):
        FixedConfig(tempo=4)
