"""The environment in worker processes: hosts are independent, so each worker grows a share of them; the numbers stay the same."""

from __future__ import annotations

import atexit
import multiprocessing as mp
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from esper.leyline.actions import Decision
from esper.leyline.errors import EsperError, RunError
from esper.leyline.events import HostStarted
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Environment, Growth, Start
from esper.simic.growth.host_run import Acted, Trained


def environment(config: GrowthConfig, workers: int) -> Environment:
    """The environment in so many workers; with none of them, in this process."""
    return GrowthWorkers(config, workers) if workers else Growth(config)


class GrowthWorkers:
    """Several Growths, each in a process of its own. Places are dealt out in turn: with n workers, w has w, w + n, w + 2n and so on."""

    def __init__(self, config: GrowthConfig, workers: int) -> None:
        context = mp.get_context("spawn")  # a forked torch can hang on its own thread pools
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        with _left_to_the_parent():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, config), daemon=True)
                process.start()
                there.close()
                self._pipes.append(here)
                self._processes.append(process)
        atexit.register(self.close)  # multiprocessing would send the signal that workers do not hear, and wait for them for ever

    def begin(self, starts: Mapping[int, Start]) -> dict[int, HostStarted]:
        """A new host at each of these places."""
        assert all(start.twin_of is None for start in starts.values()), "a twin trains beside its host, in one process"
        return self._deal("begin", starts)

    def train(self, progress: Callable[[int], None] | None = None) -> dict[int, Trained]:
        """One epoch of every host that has not ended; `progress` is told of a worker's share at once."""
        return self._ask("train", [()] * len(self._pipes), progress)

    def act(self, decisions: Mapping[int, Decision]) -> dict[int, Acted]:
        """Carry out one decision for each host that was trained."""
        return self._deal("act", decisions)

    def close(self) -> None:
        """End the workers."""
        atexit.unregister(self.close)
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue  # it is gone already
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()

    def _deal(self, method: str, items: Mapping[int, Any]) -> dict[int, Any]:
        count = len(self._pipes)
        return self._ask(method, [({place: item for place, item in items.items() if place % count == number},) for number in range(count)])

    def _ask(self, method: str, arguments: list[tuple[Any, ...]], progress: Callable[[int], None] | None = None) -> dict[int, Any]:
        """Send each worker its arguments and collect the answers by place; all of them before an error is raised, so that none is left."""
        for number, (pipe, each) in enumerate(zip(self._pipes, arguments, strict=True)):
            try:
                pipe.send((method, each))
            except OSError:
                raise self._gone(number) from None
        answers: list[tuple[str, Any]] = []
        for number, pipe in enumerate(self._pipes):
            try:
                answers.append(pipe.recv())
            except (EOFError, OSError):
                raise self._gone(number) from None
            if progress is not None:
                progress(sum(len(value) for kind, value in answers if kind == "answer"))
        for number, (kind, value) in enumerate(answers):
            if kind == "mistake":
                raise value
            if kind == "bug":
                raise RuntimeError(f"worker {number} failed:\n{value}")
        return dict(sorted(pair for _, value in answers for pair in value.items()))

    def _gone(self, number: int) -> RunError:
        """What became of a worker that no longer listens or answers."""
        self._processes[number].join(timeout=5)
        code = self._processes[number].exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "signal 9 often means that memory ran out" if code == -9 else "what was saved before is intact"
        return RunError(f"worker {number} {how}; {hint}")


@contextmanager
def _left_to_the_parent() -> Iterator[None]:
    """Processes that start in here never hear Ctrl-C, SIGTERM or a closed terminal, imports included: those are the parent's to handle.

    They inherit what is blocked here. What arrives for the parent meanwhile reaches it afterwards.
    """
    resource_tracker.ensure_running()  # starting it unblocks them again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, config: GrowthConfig) -> None:
    """A worker's life: do what is asked until told to close, or until the parent is gone."""
    growth: Growth | None = None
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            return
        if request is None:
            return
        method, arguments = request
        try:
            if growth is None:
                growth = Growth(config)
            pipe.send(("answer", getattr(growth, method)(*arguments)))
        except EsperError as error:
            pipe.send(("mistake", error))
        except BrokenPipeError:
            return
        except Exception:
            pipe.send(("bug", traceback.format_exc()))
