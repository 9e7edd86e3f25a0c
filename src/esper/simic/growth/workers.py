"""The environment in worker processes: hosts are independent, so each worker grows a share of them; the numbers stay the same."""

from __future__ import annotations

import multiprocessing as mp
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from esper.leyline.actions import Decision
from esper.leyline.errors import EsperError, RunError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Growth, Outcome, Start
from esper.tamiyo import Observation


class GrowthWorkers:
    """Several Growths, each in a process of its own. Hosts are dealt out in turn and come back in their order."""

    def __init__(self, config: GrowthConfig, workers: int) -> None:
        assert workers >= 1
        context = mp.get_context("spawn")  # a forked torch can hang on its own thread pools
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._hosts = 0
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, config), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def reset(self, starts: Sequence[Start]) -> list[Observation]:
        """Begin an episode for each start."""
        self._hosts = len(starts)
        return self._deal("reset", list(starts))

    def restart(self, starts: Mapping[int, Start]) -> dict[int, Observation]:
        """Begin another episode at some places; the other hosts stay as they are."""
        count = len(self._pipes)
        shares = [{place // count: start for place, start in starts.items() if place % count == number} for number in range(count)]
        answers = self._ask("restart", shares)
        return {place: answers[place % count][place // count] for place in starts}

    def step(self, decisions: Sequence[Decision]) -> list[Outcome | None]:
        """One decision for each host."""
        assert len(decisions) == self._hosts, f"{len(decisions)} decisions for {self._hosts} hosts"
        return self._deal("step", list(decisions))

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            try:
                pipe.send(("close", None))
            except OSError:
                continue  # it is gone already
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()

    def _deal(self, method: str, items: list[Any]) -> list[Any]:
        """Ask each worker about its share of the items, and put the answers back in order."""
        count = len(self._pipes)
        answers: list[Any] = [None] * len(items)
        for number, part in enumerate(self._ask(method, [items[number::count] for number in range(count)])):
            answers[number::count] = part
        return answers

    def _ask(self, method: str, shares: Sequence[Any]) -> list[Any]:
        """Send each worker its share and collect the answers; all of them before an error is raised, so that none is left over."""
        for number, (pipe, share) in enumerate(zip(self._pipes, shares, strict=True)):
            try:
                pipe.send((method, share))
            except OSError:
                raise self._gone(number) from None
        answers = [self._receive(pipe, number) for number, pipe in enumerate(self._pipes)]
        for number, (kind, value) in enumerate(answers):
            if kind == "mistake":
                raise value
            if kind == "bug":
                raise RuntimeError(f"worker {number} failed:\n{value}")
        return [value for _, value in answers]

    def _receive(self, pipe: Connection, number: int) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = pipe.recv()
        except (EOFError, OSError):
            raise self._gone(number) from None
        return answer

    def _gone(self, number: int) -> RunError:
        """What became of a worker that no longer listens or answers."""
        self._processes[number].join(timeout=5)
        code = self._processes[number].exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "signal 9 often means that memory ran out" if code == -9 else "what was saved before is intact"
        return RunError(f"worker {number} {how}; {hint}")


def _serve(pipe: Connection, config: GrowthConfig) -> None:
    """A worker's life: do what is asked until told to close, or until the parent is gone."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    growth: Growth | None = None
    while True:
        try:
            method, items = pipe.recv()
        except EOFError:
            return
        if method == "close":
            return
        try:
            if growth is None:
                growth = Growth(config)
            # A worker without a share has nothing to train, and answers with as little.
            pipe.send(("answer", getattr(growth, method)(items) if items else items))
        except EsperError as error:
            pipe.send(("mistake", error))
        except Exception:
            pipe.send(("bug", traceback.format_exc()))
