"""Hosts in a worker process: what goes wrong in it is told here as it would be without it, and so is its own end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.leyline.actions import WAIT
from esper.leyline.errors import DataError, RunError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Environment, Growth, Start
from esper.simic.growth.workers import GrowthWorkers, _Worker

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


MIXED = GrowthConfig(member="family", control=False, fix={"widths": "[2, 2]", "epochs": "3"})


def told(environment: Environment) -> list[Any]:
    """All that an environment tells while hosts come and go, some of them in the middle of another's life."""
    found: list[Any] = [environment.begin({place: Start("digits", place) for place in range(5)})]
    for beginning in ({}, {1: Start("digits", 7), 2: Start("digits", 8)}, {}, {0: Start("digits", 9)}, {}):
        trained = environment.train()
        found.append({place: (each.observation.report, each.reward, each.events) for place, each in trained.items()})
        found.append({place: np.concatenate([each.observation.host, each.observation.slots.ravel()]) for place, each in trained.items()})
        found.append(environment.act(dict.fromkeys(trained, WAIT)))
        if beginning:
            environment.expect(beginning)
            found.append(environment.begin(beginning))
    return found


def test_hosts_that_come_and_go_are_the_same_in_workers() -> None:
    workers = GrowthWorkers(MIXED, 2)
    try:
        np.testing.assert_equal(told(workers), told(Growth(MIXED)))
        assert {workers._worker[place] for place in range(5)} == {0, 1}
    finally:
        workers.close()


def test_a_host_that_moves_to_another_worker_is_gone_from_the_first() -> None:
    first, second = _Worker(MIXED), _Worker(MIXED)
    first.begin({0: Start("digits", 0), 1: Start("digits", 1)}, [0, 1])
    first.act(dict.fromkeys(first.train(), WAIT))
    first.train_ahead()
    first.begin({}, [0])
    second.begin({0: Start("digits", 2)}, [0])
    assert first.train().keys() == {1}
    assert second.train().keys() == {0}


def test_what_goes_wrong_ahead_is_told_when_the_epoch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = _Worker(MIXED)
    worker.begin(STARTS, [0])
    worker.act(dict.fromkeys(worker.train(), WAIT))
    monkeypatch.setattr(worker._growth.hosts[0].host, "batch", None)
    worker.train_ahead()
    with pytest.raises(TypeError, match="not callable"):
        worker.train()
