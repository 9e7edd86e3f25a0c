"""What holds for every test: one torch thread, and how hypothesis searches."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# On models this small a second thread makes torch slower, and the test workers have the cores already. torch reads the
# variable when it is first imported, which is after this file; tests that need no torch never import it.
os.environ["OMP_NUM_THREADS"] = "1"

# No deadline, because a shared machine stalls now and then. In CI the examples are the same every time, so that a failure there
# is caused by the change under test; elsewhere they vary, and a failure prints the line that repeats it.
settings.register_profile("esper", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("esper")


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000)


@pytest.fixture
def tasks_as_they_were() -> Iterator[None]:
    """What a test registers is forgotten after it: tests on one worker share the register, in whatever order they come."""
    from esper.tolaria.tasks import TASKS

    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs that a second each made: `grown`, three hosts with twins, and `learned`, two rounds of PPO. Not to be
    changed: whoever wants to damage one takes a copy."""
    from esper.simic.growth.config import ControllerRunConfig
    from esper.simic.runs.ppo_config import PPORunConfig
    from esper.simic.runs.runner import start
    from tests.simic.runs import small

    folder = tmp_path_factory.mktemp("recorded")
    grown: ControllerRunConfig = small(hosts=3, epochs=8)
    start(grown, folder / "grown", "esper train heuristic --hosts 3")
    fix = {"widths": "[2, 2]", "train_size": "100"}
    learned = PPORunConfig(rounds=2, hosts=3, pool=3, examined=2, epochs=6, workers=1, fix=fix, hidden=16, slot_width=16)
    start(learned, folder / "learned", "esper train ppo --rounds 2")
    return folder
