"""A policy as a controller: whole episodes of legal decisions, the same ones whoever plays them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from esper.leyline.actions import Op
from esper.leyline.errors import LearningError, StateError
from esper.tamiyo import Controller
from esper.tamiyo.policy.batch import ObservationBatch, decision_of
from esper.tamiyo.policy.policy import Policy, PolicyConfig
from esper.tamiyo.policy.policy_controller import PolicyController
from esper.tamiyo.policy.policy_file import load_policy, save_policy
from tests.tamiyo.simulator import BLUEPRINTS, World, play

NAMES = ("conv_small", "norm", "conv_heavy", "conv_light")
"""Those of the simulator in another order."""
WORLD = World(budget=20)


def policy(seed: int = 0) -> Policy:
    assert set(NAMES) == {name for names in BLUEPRINTS.values() for name in names}
    made = Policy(PolicyConfig(blueprints=NAMES, hidden=32, slot_width=16), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        made.heads.op.weight.mul_(300.0)  # opinions that change with what is seen
        made.heads.op.bias[Op.WAIT] = -5.0  # and a wish to act
    return made


def test_whole_episodes_are_legal_and_repeatable():
    controller = PolicyController(policy())
    assert isinstance(controller, Controller)
    _, first = play(controller, WORLD, random_seed=3)
    _, again = play(controller, WORLD, random_seed=3)
    assert [step.decision for step in first] == [step.decision for step in again]
    assert len({step.decision.op for step in first}) > 1


def test_it_decides_as_the_policy_does_in_a_batch():
    made = policy()
    _, steps = play(PolicyController(made), WORLD, random_seed=3)
    state = made.initial_state(1)
    for step in steps:
        batch = ObservationBatch.from_observations([step.observation], NAMES)
        acted = made.act(batch, state, None)
        state = acted.state
        decision = decision_of(step.observation.masks, acted.actions[0].tolist(), NAMES)
        assert step.decision == replace(decision, reason=f"probability {acted.log_prob.exp().item():.2g}")


def test_what_it_remembers_survives_json_bit_by_bit():
    controller = PolicyController(policy())
    _, steps = play(controller, WORLD, random_seed=1)
    state = controller.start(7)
    for step in steps:
        _, state = controller.decide(step.observation, state)
        assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert any(value != 0.0 for values in state["memory"] for value in values)


def test_the_state_handed_in_is_left_alone():
    controller = PolicyController(policy())
    _, steps = play(controller, WORLD, random_seed=1)
    state = controller.start(7)
    before = json.dumps(state)
    controller.decide(steps[0].observation, state)
    assert json.dumps(state) == before


def test_a_policy_whose_probabilities_are_no_numbers_is_refused_in_a_sentence():
    controller = PolicyController(policy())
    _, steps = play(controller, WORLD, random_seed=1)
    with torch.no_grad():
        controller.policy.heads.op.weight.fill_(3e38)
    with pytest.raises(LearningError, match="a probability that is not a number: its weights are too large; train it again"):
        controller.decide(steps[0].observation, controller.start(0))


def test_memory_of_another_policy_is_refused():
    controller = PolicyController(policy())
    _, steps = play(controller, WORLD, random_seed=1)
    with pytest.raises(StateError, match="the saved memory has 8 values; this policy remembers 32"):
        controller.decide(steps[0].observation, {"memory": [[0.0] * 8] * 2})


def test_a_saved_policy_plays_the_same_episode(tmp_path):
    made = policy()
    save_policy(made, tmp_path / "policy.safetensors")
    _, here = play(PolicyController(made), WORLD, random_seed=2)
    _, there = play(PolicyController(load_policy(tmp_path / "policy.safetensors")), WORLD, random_seed=2)
    assert [step.decision for step in here] == [step.decision for step in there]
    assert Op.GERMINATE in {step.decision.op for step in here}
