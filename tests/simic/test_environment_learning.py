"""The environment in other people's hands: a library trains on it unmodified, and so does the example's script."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.simic.tiny import make

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["esper/Growth-v0", "esper/GrowthFlat-v0"])
def test_maskable_ppo_trains_on_it_unmodified(name):
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.utils import get_action_masks

    env = make(name, epochs=6)
    model = MaskablePPO("MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=2, gamma=0.995, seed=0)
    before = [value.clone() for value in model.policy.state_dict().values()]
    model.learn(64)
    assert model.num_timesteps == 64
    assert any((old != new).any() for old, new in zip(before, model.policy.state_dict().values(), strict=True))
    assert np.isfinite(model.ep_info_buffer[-1]["r"])
    assert model.ep_info_buffer[-1]["l"] == 6
    observation, _ = env.reset(seed=0)
    masks = get_action_masks(env)
    action, _ = model.predict(observation, action_masks=masks)
    assert env.action_space.contains(action)
    assert masks[action] if name == "esper/GrowthFlat-v0" else masks[action[0]]


@pytest.mark.slow
def test_the_example_script_trains_and_grows_a_host(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["maskable_ppo.py", "--epochs", "2", "--steps", "16", "--hosts", "2"])
    runpy.run_path(str(PROJECT / "examples/maskable_ppo.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1].startswith("host 2: accuracy ")
