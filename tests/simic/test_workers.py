"""Hosts in worker processes: a worker that dies is told in a sentence, whenever it dies."""

from __future__ import annotations

import os
import signal

import pytest

from esper.leyline.actions import WAIT
from esper.leyline.errors import RunError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Start
from esper.simic.growth.workers import GrowthWorkers

STARTS = dict(enumerate([Start("digits", seed) for seed in range(2)]))


@pytest.mark.parametrize("killed", ["before a question", "with a question in its pipe"])
def test_a_worker_that_is_killed_is_told(killed: str) -> None:
    workers = GrowthWorkers(GrowthConfig(epochs=2, control=False), 2)
    try:
        if killed == "before a question":
            os.kill(workers._processes[1].pid, signal.SIGKILL)
            workers._processes[1].join()
        else:
            workers.begin(STARTS)
            os.kill(workers._processes[1].pid, signal.SIGSTOP)
            workers._pipes[1].send(("act", ({1: WAIT},)))
            os.kill(workers._processes[1].pid, signal.SIGKILL)
        with pytest.raises(RunError, match="worker 1 was ended by signal 9; signal 9 often means that memory ran out"):
            workers.begin(STARTS)
    finally:
        workers.close()
