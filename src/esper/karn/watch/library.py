"""The runs that are watched, by key. A key is looked up among the runs that were listed; it is never made into a path."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esper.karn.watch.watched import Watched
from esper.leyline.errors import EsperError, RunError, unknown
from esper.tolaria.storage.runs import POINTS, RunInfo, list_runs, read_run

BUDGET = 0.5
"""Seconds that a listing may take for reading runs that are new or changed; those that are left come with the next one."""
KEPT = 60.0
"""Seconds that what was read of a run is kept after someone last looked at it."""

Stamp = tuple[str, str, int, int]
"""What changes when there is something new to say of a run: its id and status, the size of its journal, when its summary was written."""


class Library:
    """A folder of runs, or one run; a sweep comes with the runs it is made of."""

    def __init__(self, root: Path, *, awaited: bool = False) -> None:
        """Raises RunError for no folder, a damaged run, or something else altogether. An empty folder may get its first run; so may one
        that is not there, if it is `awaited`."""
        there = os.path.isdir(root)
        if not there and not awaited:  # pathlib raises for a name that is too long
            raise RunError(f"there is no folder {root}; runs are made by esper train, in runs/ unless they are told otherwise")
        self.root = root
        self.only = (root / "run.json").exists()
        """Whether a run is watched rather than a folder of runs."""
        if self.only:
            read_run(root)
        self._lock = threading.RLock()
        self._watched: dict[str, Watched] = {}
        self._stamps: dict[str, Stamp] = {}
        self._cards: dict[str, dict[str, Any]] = {}
        self._problems: list[str] = []
        if there and not self._list() and not self._problems and any(not name.startswith(".") for name in os.listdir(root)):
            raise RunError(f"{root} is not a run, and there is none in it; expected a run, or a folder of runs such as runs/")

    @property
    def keys(self) -> list[str]:
        """Every run that there is, as listed last."""
        return list(self._watched)

    def get(self, key: str) -> Watched:
        """The run of that key. Raises RunError where none was ever listed under it; one that has vanished is found, and says so itself."""
        if key in self._watched:  # without the lock, which a listing may hold for a while
            return self._watched[key]
        with self._lock:
            self._list()
            if key not in self._watched:
                raise RunError(str(unknown("run", key, self._watched)))
            return self._watched[key]

    def cards(self) -> dict[str, Any]:
        """What `/api/runs` says: the overview of each run, as far as it could be read in the time there is, and what is damaged.

        `complete` says whether all is there; a run that was not read yet has `loading` in place of its figures.
        """
        with self._lock:
            stamps = self._list()
            deadline, late = time.monotonic() + BUDGET, 0
            for key in sorted(stamps, key=lambda key: stamps[key][1] != "running"):
                if self._stamps.get(key) == stamps[key]:
                    continue
                if time.monotonic() > deadline:
                    late += 1
                    self._cards.setdefault(key, {"key": key, "name": key, "loading": True, "parent": _parent(key, stamps)})
                    continue
                self._cards[key] = self._card(key, _parent(key, stamps))
                self._stamps[key] = stamps[key]
            self._tidy(stamps)
            cards = [self._cards[key] for key in stamps]
            return {"runs": cards, "problems": self._problems, "complete": late == 0, "folder": str(self.root), "only": self.only}

    def _card(self, key: str, parent: str | None) -> dict[str, Any]:
        watched = self._watched[key]
        watched.refresh()
        try:
            return {**watched.overview(), "parent": parent}
        except RunError as error:  # it vanished after it was listed, or is damaged
            return {"key": key, "name": key, "error": str(error), "parent": parent}

    def _tidy(self, stamps: dict[str, Stamp]) -> None:
        """Forget runs that are no longer there, and let go of what nobody has looked at for a while."""
        for key in [key for key in self._cards if key not in stamps]:
            self._cards.pop(key), self._stamps.pop(key, None)
        for key, watched in self._watched.items():
            if stamps.get(key, ("", "", 0, 0))[1] != "running" and time.monotonic() - watched.used > KEPT:
                watched.release()

    def _list(self) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        problems: list[str] = []
        for key, info in self._found(problems):
            if key not in self._watched or self._watched[key].path != info.path:
                self._watched[key] = Watched(key, info.path)
            stamps[key] = (info.id, info.status, _size(info.path / "events.jsonl"), _written(info.path / "summary.json"))
        self._problems = problems
        return stamps

    def _found(self, problems: list[str]) -> Iterator[tuple[str, RunInfo]]:
        """The runs and their keys: newest first, the points of a sweep after it."""
        taken: set[str] = set()
        if self.only:
            try:
                tops = [read_run(self.root)]
            except EsperError as error:
                problems.append(str(error))
                return
        else:
            tops, damaged = list_runs(self.root)
            problems += damaged
        for info in reversed(tops):
            key = _key(info.path.absolute().name, taken)
            yield key, info
            points, damaged = list_runs(info.path / POINTS)
            problems += damaged
            for point in sorted(points, key=lambda each: each.path.name):
                yield _key(f"{key}/{POINTS}/{point.path.name}", taken), point


def _key(name: str, taken: set[str]) -> str:
    """A name that can stand in an address: what is no text in it is replaced, and a second one of the same name gets a number."""
    plain = os.fsencode(name).decode("utf-8", "replace")
    key, number = plain, 2
    while key in taken:
        key, number = f"{plain}~{number}", number + 1
    taken.add(key)
    return key


def _parent(key: str, stamps: dict[str, Stamp]) -> str | None:
    """The sweep that a run is a point of."""
    parent = key.partition(f"/{POINTS}/")[0]
    return parent if parent != key and parent in stamps else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
