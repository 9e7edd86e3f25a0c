"""Hosts in a worker process: what goes wrong in it is told here as it would be without it, and so is its own end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from esper.leyline.actions import WAIT
from esper.leyline.errors import DataError, RunError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Start
from esper.simic.growth.workers import GrowthWorkers

STARTS = {0: Start("digits", 0)}


@pytest.mark.parametrize("killed", ["before a question", "with a question in its pipe"])
def test_a_worker_that_is_killed_is_told(killed: str) -> None:
    workers = GrowthWorkers(GrowthConfig(epochs=2, control=False), 1)
    try:
        if killed == "before a question":
            os.kill(workers._processes[0].pid, signal.SIGKILL)
            workers._processes[0].join()
        else:
            workers.begin(STARTS)
            os.kill(workers._processes[0].pid, signal.SIGSTOP)
            workers._pipes[0].send(("act", ({0: WAIT},)))
            os.kill(workers._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RunError, match="worker 0 was ended by signal 9; signal 9 often means that memory ran out"):
            workers.begin(STARTS)
    finally:
        workers.close()


def test_a_mistake_in_a_worker_is_raised_here(tmp_path: Path) -> None:
    workers = GrowthWorkers(GrowthConfig(epochs=2, control=False, data=tmp_path), 1)
    try:
        with pytest.raises(DataError, match="brings its own data"):
            workers.begin(STARTS)
        with pytest.raises(RuntimeError, match="worker 0 failed:\nTraceback"):
            workers.act({0: WAIT})
    finally:
        workers.close()
