"""Hosts in a worker process: what goes wrong in it is told here as it would be without it, and so is its own end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esper.leyline.actions import WAIT
from esper.leyline.errors import DataError, RunError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Start
from esper.simic.growth.workers import GrowthWorkers

STARTS = {0: Start("digits", 0)}


@contextmanager
def worker(data: Path | None = None) -> Iterator[GrowthWorkers]:
    workers = GrowthWorkers(GrowthConfig(epochs=2, control=False, data=data), 1)
    try:
        yield workers
    finally:
        workers.close()


def assert_told(workers: GrowthWorkers) -> None:
    with pytest.raises(RunError, match="worker 0 was ended by signal 9; signal 9 often means that memory ran out"):
        workers.begin(STARTS)


def test_a_mistake_a_bug_and_a_kill_are_told_one_after_another(tmp_path: Path) -> None:
    with worker(tmp_path) as workers:
        with pytest.raises(DataError, match="brings its own data"):
            workers.begin(STARTS)
        with pytest.raises(RuntimeError, match="worker 0 failed:\nTraceback"):
            workers.act({0: WAIT})
        os.kill(workers._processes[0].pid, signal.SIGKILL)
        workers._processes[0].join()
        assert_told(workers)


def test_a_worker_that_is_killed_with_a_question_in_its_pipe_is_told() -> None:
    with worker() as workers:
        workers.begin(STARTS)
        os.kill(workers._processes[0].pid, signal.SIGSTOP)
        workers._pipes[0].send(("act", ({0: WAIT},)))
        os.kill(workers._processes[0].pid, signal.SIGKILL)
        assert_told(workers)
