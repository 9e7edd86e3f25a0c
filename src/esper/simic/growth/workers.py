"""The environment in worker processes: hosts are independent, so each worker grows a share of them; the numbers stay the same."""

from __future__ import annotations

import atexit
import gc
import multiprocessing as mp
import signal
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from esper.leyline.actions import Decision
from esper.leyline.errors import EsperError, RunError
from esper.leyline.events import HostStarted
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.dealing import Load, deal
from esper.simic.growth.environment import Environment, Growth, Start
from esper.simic.growth.host_run import Acted, Trained


def environment(config: GrowthConfig, workers: int, *, test: bool = False) -> Environment:
    """The environment in so many workers; with none of them, in this process. test: as for Growth."""
    return GrowthWorkers(config, workers, test=test) if workers else Growth(config, test=test)


class GrowthWorkers:
    """Several Growths, each in a process of its own, with hosts dealt out so that the processes end every epoch together."""

    def __init__(self, config: GrowthConfig, workers: int, *, test: bool = False) -> None:
        context = mp.get_context("spawn")  # a forked torch can hang on its own thread pools
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._worker: dict[int, int] = {}
        """By place, the worker that has its host."""
        self._loads: dict[int, Load] = {}
        """By place, what its host still asks for."""
        self._weighed: dict[Start, Load] = {}
        self._expected: dict[int, Start] | None = None
        """Hosts that the workers were told to make, and have not been asked about."""
        with _left_to_the_parent():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, config, test), daemon=True)
                process.start()
                there.close()
                self._pipes.append(here)
                self._processes.append(process)
        atexit.register(self.close)  # multiprocessing would send the signal that workers do not hear, and wait for them for ever

    def expect(self, starts: Mapping[int, Start]) -> None:
        """The hosts that begin next: the workers make them and train their first epoch while the parent does something else."""
        assert all(start.twin_of is None for start in starts.values()), "a twin trains beside its host, in one process"
        self._worker |= self._dealt(starts)
        self._send("begin", [(share, list(starts)) for share in self._shares(starts)])
        self._expected = dict(starts)

    def begin(self, starts: Mapping[int, Start]) -> dict[int, HostStarted]:
        """A new host at each of these places."""
        if self._expected is None:
            self.expect(starts)
        expected, self._expected = self._expected, None
        assert expected == starts, "what begins is what was expected"
        return self._collect()

    def train(self, progress: Callable[[int], None] | None = None) -> dict[int, Trained]:
        """One epoch of every host that has not ended; `progress` is told of a worker's share when it is done."""
        trained: dict[int, Trained] = self._ask("train", [()] * len(self._pipes), progress)
        for place in self._loads.keys() & trained:
            self._loads[place] = replace(self._loads[place], epochs=self._loads[place].epochs - 1)
        return trained

    def act(self, decisions: Mapping[int, Decision]) -> dict[int, Acted]:
        """Carry out one decision for each host that was trained."""
        return self._ask("act", [(share,) for share in self._shares(decisions)])

    def engines(self) -> list[dict[str, Any]]:
        """The state of each worker's engine, after all hosts have acted."""
        return list(self._ask("engine", [(number,) for number in range(len(self._pipes))]).values())

    def load_engines(self, states: list[dict[str, Any]]) -> None:
        """Let each worker's engine go on from its state; those of another number of workers change nothing."""
        if len(states) == len(self._pipes):
            self._ask("load_engine", [(state,) for state in states])

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

    def _dealt(self, starts: Mapping[int, Start]) -> dict[int, int]:
        """Which worker gets the new host of each place."""
        count = len(self._pipes)
        if count == 1:
            return dict.fromkeys(starts, 0)
        new = [start for start in dict.fromkeys(starts.values()) if start not in self._weighed]
        weighed = self._ask("weigh", [(dict(list(enumerate(new))[number::count]),) for number in range(count)])
        self._weighed |= {new[place]: load for place, load in weighed.items()}
        loads = {place: self._weighed[start] for place, start in starts.items()}
        carried = [[load for place, load in self._loads.items() if self._worker[place] == n and place not in starts] for n in range(count)]
        self._loads |= loads
        return deal(loads, carried)

    def _shares(self, items: Mapping[int, Any]) -> list[dict[int, Any]]:
        """What goes to each worker: the items of the places that it has."""
        shares: list[dict[int, Any]] = [{} for _ in self._pipes]
        for place, item in items.items():
            shares[self._worker[place]][place] = item
        return shares

    def _ask(self, method: str, arguments: list[tuple[Any, ...]], progress: Callable[[int], None] | None = None) -> dict[int, Any]:
        """Send each worker its arguments and collect the answers."""
        assert self._expected is None, "what was expected begins first"
        self._send(method, arguments)
        return self._collect(progress)

    def _send(self, method: str, arguments: list[tuple[Any, ...]]) -> None:
        for number, (pipe, each) in enumerate(zip(self._pipes, arguments, strict=True)):
            try:
                pipe.send((method, each))
            except OSError:
                raise self._gone(number) from None

    def _collect(self, progress: Callable[[int], None] | None = None) -> dict[int, Any]:
        """The answers by place, in the order in which workers are ready; all of them before an error is raised, so that none is left."""
        answers: dict[int, tuple[str, Any]] = {}
        waiting = dict(enumerate(self._pipes))
        while waiting:
            ready = wait(waiting.values())
            for number, pipe in [(number, pipe) for number, pipe in waiting.items() if pipe in ready]:
                try:
                    answers[number] = pipe.recv()
                except (EOFError, OSError):
                    raise self._gone(number) from None
                del waiting[number]
                if progress is not None:
                    progress(sum(len(value) for kind, value in answers.values() if kind == "answer"))
        for number, (kind, value) in sorted(answers.items()):
            if kind == "mistake":
                raise value
            if kind == "bug":
                raise RuntimeError(f"worker {number} failed:\n{value}")
        return dict(sorted(pair for _, value in answers.values() for pair in value.items()))

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


class _Worker:
    """The share of one worker: a Growth that trains the next epoch as soon as it can, while the parent records or learns."""

    def __init__(self, config: GrowthConfig, test: bool = False) -> None:
        self._growth = Growth(config, test=test)
        self._ahead: dict[int, Trained] = {}
        """What has been trained and not been asked for."""
        self._failed: Exception | None = None
        """What went wrong then."""

    def weigh(self, starts: Mapping[int, Start]) -> dict[int, Load]:
        """What each of these hosts would ask for."""
        return {place: self._growth.weigh(start) for place, start in starts.items()}

    def begin(self, starts: Mapping[int, Start], places: Collection[int]) -> dict[int, HostStarted]:
        """New hosts for this worker; `places` are those that begin anew anywhere, so that what was there is gone."""
        for place in places:
            self._growth.hosts.pop(place, None)
            self._ahead.pop(place, None)
        return self._growth.begin(starts)

    def train(self) -> dict[int, Trained]:
        """One epoch of every host that has not ended: what was trained ahead, and any that could not be."""
        failed, ahead = self._failed, self._ahead
        self._failed, self._ahead = None, {}
        if failed is not None:
            raise failed
        return ahead | self._growth.train()

    def act(self, decisions: Mapping[int, Decision]) -> dict[int, Acted]:
        """Carry out the decisions."""
        return self._growth.act(decisions)

    def engine(self, number: int) -> dict[int, dict[str, Any]]:
        """The state of the engine, by the worker's number."""
        return dict.fromkeys([number], *self._growth.engines())

    def load_engine(self, state: dict[str, Any]) -> dict[int, Any]:
        """Let the engine go on from a state; there is nothing to answer."""
        self._growth.load_engines([state])
        return {}

    def train_ahead(self) -> None:
        """The next epoch; what goes wrong in it is told when it is asked for."""
        try:
            self._ahead |= self._growth.train()
        except Exception as error:
            self._failed = error


def _serve(pipe: Connection, config: GrowthConfig, test: bool) -> None:
    """A worker's life: do what is asked until told to close, or until the parent is gone."""
    worker: _Worker | None = None
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            return
        if request is None:
            return
        method, arguments = request
        try:
            if worker is None:
                worker = _Worker(config, test)
                gc.freeze()  # the 300,000 objects of torch stay: to look at them in every collection would make all the others wait
            pipe.send(("answer", getattr(worker, method)(*arguments)))
            if method in ("begin", "act"):
                worker.train_ahead()
        except EsperError as error:
            pipe.send(("mistake", error))
        except BrokenPipeError:
            return
        except Exception:
            pipe.send(("bug", traceback.format_exc()))
