"""Many hosts in one environment: the same numbers as one by one, step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from esper.leyline.errors import ConfigError
from esper.simic.environment import ActionError, GrowthVector
from tests.simic.tiny import TINY, make, uneven_task

HOSTS = 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))


def vector(name="esper/Growth-v0", **settings):
    given = {**TINY, **settings}
    return gymnasium.make_vec(f"esper.simic.environment:{name}", num_envs=HOSTS, vectorization_mode="vector_entry_point", **given)


def one_by_one(name="esper/Growth-v0", **settings):
    """The same hosts in Gymnasium's own vector environment, around as many single environments."""
    return SyncVectorEnv([lambda: make(name, **settings)] * HOSTS, autoreset_mode=AutoresetMode.SAME_STEP)


def legal_actions(env, random):
    """One action for each host, drawn from the flat masks of its heads."""
    sizes = np.cumsum(np.atleast_1d(getattr(env.single_action_space, "nvec", env.single_action_space.shape or [0])))[:-1]
    chosen = [[random.choice(np.flatnonzero(mask)) for mask in np.split(row, sizes)] for row in env.action_masks()]
    return np.array(chosen).reshape(env.action_space.shape)


def same_steps(many, single, steps, random):
    """Both from one seed with the same actions: everything they give is equal. Returns how many episodes ended."""
    assert data_equivalence(many.reset(seed=7), single.reset(seed=7), exact=True)
    ended = 0
    for _ in range(steps):
        actions = legal_actions(many, random)
        here, there = many.step(actions), single.step(actions)
        assert data_equivalence(here, there, exact=True)
        ended += int(here[2].sum())
    return ended


@pytest.mark.parametrize(("name", "structured"), [("esper/Growth-v0", False), ("esper/GrowthFlat-v0", True)])
def test_many_at_once_are_the_same_as_one_by_one_through_ends_and_new_beginnings(name, structured):
    with uneven_task() as task:
        settings = {"task": task, "member": "family", "fix": {}, "epochs": None, "structured": structured}
        many, single = vector(name, **settings), one_by_one(name, **settings)
        assert many.observation_space == single.observation_space
        assert many.action_space == single.action_space
        assert many.metadata["autoreset_mode"] is single.metadata["autoreset_mode"]
        assert same_steps(many, single, 8, np.random.default_rng(0)) > HOSTS


@pytest.mark.slow
def test_workers_give_the_same_numbers():
    settings = {"epochs": 2, "fix": {"widths": [2, 2], "train_size": 100}}
    many = vector(workers=1, **settings)
    try:
        assert same_steps(many, one_by_one(**settings), 3, np.random.default_rng(0)) == HOSTS
    finally:
        many.close()


def test_a_host_that_ends_tells_its_last_and_gives_way_to_the_next():
    env = vector(epochs=2)
    env.reset(seed=0)
    assert "final_obs" not in env.step(np.zeros((HOSTS, 8), int))[-1]
    observations, _, terminated, truncated, infos = env.step(np.zeros((HOSTS, 8), int))
    assert terminated.all()
    assert not truncated.any()
    assert infos["_final_obs"].all()
    progress = [float(last[0]) for last in infos["final_obs"]]
    assert progress == [1.0] * HOSTS
    assert observations[:, 0].tolist() == [0.5] * HOSTS
    assert infos["final_info"]["final"]["parameters"].tolist() == [52.0] * HOSTS
    assert infos["host_seed"].shape == (HOSTS,)


def test_seeds_can_be_given_one_by_one():
    env = vector(epochs=1)
    alike = env.reset(seed=[4, 4, 5])[1]["host_seed"]
    assert alike[0] == alike[1]
    assert env.reset(seed=[5, 5, 4])[1]["host_seed"].tolist() == [alike[2], alike[2], alike[0]]


def test_rendering_shows_every_host():
    env = vector(epochs=1, render_mode="ansi")
    env.reset(seed=0)
    assert [picture.splitlines()[0].split()[:2] for picture in env.render()] == [["epoch", "1/1"]] * HOSTS


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="num_envs is 0"):
        GrowthVector(0)
    with pytest.raises(ConfigError, match="workers is -1"):
        GrowthVector(1, workers=-1)
    env = vector(epochs=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros((HOSTS, 8), int))
    with pytest.raises(ConfigError, match="2 seeds for 3 environments"):
        env.reset(seed=[1, 2])
    with pytest.raises(ActionError, match="is not an action"):
        env.step(np.zeros(8, int))


def test_a_seed_of_numpys_is_a_seed() -> None:
    settings = {**TINY, "epochs": 2}
    seeds = [3, np.int64(3), [3, 4]]
    seen = []
    for seed in seeds:
        envs = GrowthVector(2, **settings)
        seen.append(envs.reset(seed=seed)[0].tolist())
        envs.close()
    assert seen[0] == seen[1] == seen[2]
