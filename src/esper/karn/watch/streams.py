"""Server-sent events: every tab that looks at a run, or at the list of runs, hears of what is new.

A run is read twice a second while someone listens, once for all who do. An event's id says how far the run was seen, so a browser that
lost its connection says it when it comes back (`Last-Event-ID`) and gets exactly what it missed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from esper.karn.watch.library import Library
from esper.karn.watch.watched import Change, Position, Watched

INTERVAL = 0.5
"""Seconds between two looks at a run that someone watches."""
SHARE = 0.25
"""Of the time, at most, that looking may take: a run that takes long to read is looked at less often."""
HEARTBEAT = 10.0
"""Seconds of silence after which a stream says that it is still there."""
RETRY = 1000
"""Milliseconds after which a browser that lost its stream comes back."""


class Poller:
    """Looks again and again while anyone waits, and wakes all who wait after each look."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self.ended = False
        """Whether it looks no more."""

    def __enter__(self) -> Poller:
        self._waiting += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def looked(self) -> bool:
        """Wait for the next look; False when there will be none, as the server ends."""
        await self._looked.wait()
        return not self.ended

    def end(self) -> None:
        """Let everybody who waits go."""
        self.ended = True
        self._looked.set()

    async def _run(self) -> None:
        while not self.ended:
            began = time.monotonic()
            try:
                await run_in_threadpool(self._look)
            except Exception:  # a fault of ours: whoever waits is let go rather than left waiting, and its traceback is shown
                self.end()
                raise
            looked, self._looked = self._looked, asyncio.Event()
            looked.set()
            await asyncio.sleep(max(INTERVAL, (time.monotonic() - began) * (1 / SHARE - 1)))


class Streams:
    """All streams of a server."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._pollers: dict[Watched | None, Poller] = {}
        self._listing: dict[str, Any] = {}
        self._ended = False

    def end(self) -> None:
        """End every stream, so that the server can."""
        self._ended = True
        for poller in self._pollers.values():
            poller.end()

    async def of_run(self, watched: Watched, position: Position | None) -> AsyncIterator[str]:
        """What is new in a run to someone who has seen it up to there."""
        yield f"retry: {RETRY}\n\n"
        version, said = -1, time.monotonic()
        await run_in_threadpool(watched.refresh)
        with self._poller(watched, watched.refresh) as poller:
            while True:
                if watched.version != version:
                    version = watched.version
                    change = await run_in_threadpool(watched.since, position)
                    position, said = change.position, time.monotonic()
                    yield _message(change)
                elif time.monotonic() - said > HEARTBEAT:
                    said = time.monotonic()
                    yield ": still here\n\n"
                if not await poller.looked():
                    return

    async def of_runs(self) -> AsyncIterator[str]:
        """The list of runs: all of them at first, then those of which there is something new, and those that are gone."""
        yield f"retry: {RETRY}\n\n"
        known: dict[str, Any] = {}
        said, problems = time.monotonic(), None
        with self._poller(None, self._look) as poller:
            while await poller.looked():
                listing = self._listing
                runs = {card["key"]: card for card in listing["runs"]}
                changed = [card for key, card in runs.items() if known.get(key) is not card]
                gone = [key for key in known if key not in runs]
                if changed or gone or problems != listing["problems"]:
                    known, problems, said = runs, listing["problems"], time.monotonic()
                    data = {"runs": changed, "gone": gone, "order": list(runs), "problems": problems}
                    yield _message(Change("runs", None, json.dumps(data, separators=(",", ":"), allow_nan=False)))
                elif time.monotonic() - said > HEARTBEAT:
                    said = time.monotonic()
                    yield ": still here\n\n"

    def _look(self) -> None:
        self._listing = self._library.cards()

    def _poller(self, key: Watched | None, look: Callable[[], Any]) -> Poller:
        if key not in self._pollers or self._pollers[key].ended:
            self._pollers[key] = Poller(look)
        if self._ended:
            self._pollers[key].end()
        return self._pollers[key]


def _message(change: Change) -> str:
    """One server-sent event. The data is JSON in one line, so it needs no care."""
    id = "" if change.position is None else f"id: {change.position}\n"
    return f"{id}event: {change.kind}\ndata: {change.data}\n\n"
