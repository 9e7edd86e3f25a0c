"""What holds for every controller: the register, the interface, pure decisions, plain states, and nothing but legal decisions."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.config import from_mapping, to_toml
from esper.leyline.errors import ConfigError, UnknownNameError
from esper.leyline.reports import EpochReport
from esper.tamiyo import CONTROLLERS, Controller, HeuristicConfig, RandomConfig, Rules, make
from esper.tamiyo.controllers.controller import random_stream, register
from tests.tamiyo.samples import report_streams, tracker
from tests.tamiyo.simulator import World, play

NAMES = sorted(CONTROLLERS)
FITTING: dict[str, dict[str, Any]] = {"fixed": {"blueprints": ["norm"]}}
"""What a controller needs to be told for the blueprints of these tests."""


def test_the_four_controllers_are_registered_with_a_purpose() -> None:
    assert {"wait", "random", "fixed", "heuristic"} <= set(CONTROLLERS)
    assert all(kind.purpose for kind in CONTROLLERS.values())


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_controller_under_its_own_name_with_a_config_that_a_file_can_hold(name: str) -> None:
    controller = make(name)
    assert isinstance(controller, Controller)
    assert controller.name == name
    config = CONTROLLERS[name].config()
    assert from_mapping(CONTROLLERS[name].config, {}) == config
    assert isinstance(to_toml(config), str)


def test_unknown_names_wrong_configs_and_doubles_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown controller 'heuristc'; did you mean 'heuristic'"):
        make("heuristc")
    with pytest.raises(ConfigError, match="its config must be a RandomConfig; found HeuristicConfig"):
        make("random", HeuristicConfig())
    with pytest.raises(ConfigError, match="random: unknown key 'wiat'; did you mean 'wait'"):
        make("random", {"wiat": 0.5})
    with pytest.raises(ConfigError, match="already a controller 'wait'"):
        register("wait", RandomConfig, lambda config: make("wait"), purpose="again")
    assert make("random", {"wait": 0.5}) == make("random", RandomConfig(wait=0.5))


@pytest.mark.parametrize("name", NAMES)
@given(stream=report_streams(), limit=st.none() | st.integers(1, 3), seed=st.integers(0, 2**31))
def test_every_decision_is_legal_and_a_function_of_observation_and_state(
    name: str, stream: list[EpochReport], limit: int | None, seed: int
) -> None:
    controller = make(name, FITTING.get(name))
    slots = tuple(each.slot for each in stream[0].seeds)
    watching, state = tracker(slots, Rules(max_seeds=limit)), controller.start(seed)
    for moment in stream:
        seen, before = watching.observe(moment), copy.deepcopy(state)
        decision, after = controller.decide(seen, state)
        seen.masks.check(decision)
        assert state == before
        assert controller.decide(seen, json.loads(json.dumps(state, allow_nan=False))) == (decision, after)
        watching.note_decision(decision, succeeded=True)
        state = after


@pytest.mark.parametrize("name", NAMES)
def test_whole_episodes_are_legal_under_every_kind_of_host(name: str) -> None:
    kinds = [(True, True, 0, 1), (True, False, 9, 3), (False, True, 14, 5), (False, False, 0, 3)]
    for i, (strict, auto, rollback, slots) in enumerate(kinds):
        world = World(strict=strict, auto_advance=auto, rollback=rollback, slots=slots, budget=30)
        _, steps = play(make(name), world, random_seed=i, rules=Rules(max_seeds=2))
        assert len(steps) == 30


@pytest.mark.parametrize("name", NAMES)
def test_no_controller_touches_the_global_random_numbers(name: str) -> None:
    random.seed(1)
    np.random.seed(1)
    before = (random.getstate(), str(np.random.get_state()))
    play(make(name), random_seed=3)
    assert (random.getstate(), str(np.random.get_state())) == before


def test_random_streams_differ_by_name_and_by_each_number_and_repeat_otherwise() -> None:
    arguments: list[tuple[str, int, int, int]] = [("a", 0, 0, 1), ("a", 1, 0, 1), ("a", 0, 1, 1), ("a", 0, 0, 2), ("b", 0, 0, 1)]
    drawn = [random_stream(*each).integers(2**62).item() for each in arguments]
    assert len(set(drawn)) == len(arguments)
    assert drawn == [random_stream(*each).integers(2**62).item() for each in arguments]
