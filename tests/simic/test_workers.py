"""Hosts in a worker process: a worker that dies is told in a sentence, whenever it dies."""

from __future__ import annotations

import os
import signal

import pytest

from esper.leyline.actions import WAIT
from esper.leyline.errors import RunError
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
