"""One run under watch: its record, shared by all who look at it, and what has changed since someone last looked.

Reading happens in threads, so that the server answers while a large run is read; a lock keeps one thread at a time on a record.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.karn import views
from esper.karn.record import Record
from esper.leyline.errors import EsperError, RunError

MOST_EVENTS = 500
"""Events that one message carries; whoever is further behind starts anew."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far someone has seen a run: the id of a server-sent event. It means something to one server, about one reading of one run."""

    reading: str
    generation: int
    offset: int

    def __str__(self) -> str:
        return f"{self.reading}-{self.generation}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """The position that an id stands for; None for anything else."""
        match = re.fullmatch(r"([0-9a-f]{8})-(\d{1,9})-(\d{1,15})", text, re.ASCII)
        return None if match is None else cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Change:
    """What a stream sends: its name, how far the reader has then seen the run, and JSON."""

    kind: str
    position: Position | None
    data: str


class Watched:
    """A run that someone looks at."""

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.path = path
        self.used = time.monotonic()
        """When it was last looked at."""
        self.version = 0
        """Goes up whenever there is something new to see, its status included."""
        self.gone = ""
        """Why it cannot be read any more, in a sentence; empty while it can."""
        self._lock = threading.Lock()
        self._record: Record | None = None
        self._reading = ""
        self._shown: str | None = None
        self._cache: dict[object, str] = {}
        self._events: dict[Position, int] = {}

    def refresh(self) -> int:
        """Read on; the version after it. A run that has vanished is no error here: `gone` says so."""
        with self._lock:
            self.used = time.monotonic()
            try:
                shown = self._read()
                gone = ""
            except EsperError as error:
                shown, gone = None, str(error)
                self._record = None
            except OSError as error:
                shown, gone = None, f"the run {self.path} cannot be read: {error.strerror}"
                self._record = None
            if shown != self._shown or gone != self.gone:
                self._shown, self.gone = shown, gone
                self.version += 1
            return self.version

    def overview(self) -> dict[str, Any]:
        """What can be said of the run as a whole, as far as it was read, and `at`, the position that a stream goes on from."""
        with self._lock:
            if self._record is None or self._shown is None:
                raise RunError(self.gone or f"the run {self.path} was not read yet")
            return {**json.loads(self._shown), "at": str(self._position())}

    def view(self, name: object, make: Callable[[Record], Any]) -> str:
        """A view of the run as JSON. Worked out once for as long as nothing new is written; `name` says which it is, arguments included."""
        with self._lock:
            self.used = time.monotonic()
            if self._record is None:
                self._shown = self._read()
            assert self._record is not None
            if name not in self._cache:
                self._cache[name] = _json(make(self._record))
            return self._cache[name]

    def since(self, position: Position | None) -> Change:
        """What is new to someone who has seen the run up to there: the overview and the events since, or that all has to be read anew."""
        with self._lock:
            if self._record is None or self._shown is None:
                return Change("gone", None, _json({"error": self.gone or f"the run {self.path} is not there"}))
            now = self._position()
            last = self._events.setdefault(now, len(self._record))
            first = self._events.get(position, -1) if position is not None and position.generation == now.generation else -1
            if first < 0 or last - first > MOST_EVENTS:
                return Change("reset", now, f'{{"overview":{self._shown}}}')
            name = ("since", first)
            if name not in self._cache:
                self._cache[name] = _json(views.feed(self._record, before=last, limit=last - first)["events"][::-1] if last > first else [])
            return Change("update", now, f'{{"overview":{self._shown},"events":{self._cache[name]}}}')

    def release(self) -> None:
        """Let go of what was read; the next look reads it again."""
        with self._lock:
            self._record = None
            self._cache.clear()

    def _read(self) -> str:
        """Read what is new, and give the overview."""
        if self._record is None:
            self._record, self._reading = Record(self.path), secrets.token_hex(4)
            self._events.clear()
            self._record.refresh()
        elif not self._record.refresh() and self._shown is not None:
            return self._shown
        self._cache.clear()
        self._events[self._position()] = len(self._record)
        return _json({**views.overview(self._record), "key": self.key})

    def _position(self) -> Position:
        assert self._record is not None
        return Position(self._reading, self._record.generation, self._record.offset)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
