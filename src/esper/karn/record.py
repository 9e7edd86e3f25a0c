"""A run folder as it is read: the one source of every view of a run, while it goes on and after it.

Events are found by one pass over the bytes that looks at the head of each line; a line is parsed when somebody asks for it. A run that
goes on is read on from where it was read before. Nothing is written, no lock is held, and no torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from esper.karn.event_index import KINDS, NOBODY, Index, Row, code_of, row_of
from esper.leyline.config import read_toml
from esper.leyline.errors import EsperError, EventError, RunError
from esper.leyline.files import open_file
from esper.tolaria.storage.runs import RunInfo, read_run, read_summary

EVENTS, CONFIG, SUMMARY = "events.jsonl", "config.toml", "summary.json"
KEPT_BYTES = 16 << 20
"""Rows of a kind whose lines have no more bytes than this in all are kept once they are parsed."""
BLOCK = 1 << 24
"""Bytes that are read at once."""
TAIL = 1 << 12
"""Bytes before the end of what was read by which a file is known again."""

T = TypeVar("T")


class _Changed(Exception):
    """The file is not the one that was read any more."""


class Record:
    """A run folder, as far as it is written. `refresh` reads on; until then everything stays as it was found.

    events: whether they are read at all; a list of many runs has enough in the summaries of those that are finished. Several threads may
    ask at once. Raises RunError where there is no run.
    """

    def __init__(self, path: Path, events: bool = True) -> None:
        self.path = Path(path)
        self.info: RunInfo = read_run(self.path)
        self.summary: dict[str, Any] | None = None
        """What summary.json holds; None before the run is finished."""
        self.config: dict[str, Any] = {}
        """What config.toml holds."""
        self.generation = 0
        """Goes up when what was read before is not there any more: the run went on from an earlier checkpoint, or is another one."""
        self._lock = RLock()
        self._seen: dict[str, tuple[int, int]] = {}
        self._problems: dict[str, str] = {}
        self._events, self._begun = events, not events
        self._tail = b""
        self._forget()
        self._read_files()

    @property
    def id(self) -> str:
        """Of the run in this folder."""
        return self.info.id

    @property
    def offset(self) -> int:
        """Bytes of the events that were read so far."""
        self._begin()
        return self._index.offset

    @property
    def problem(self) -> str | None:
        """What of the run could not be read, in a sentence; None where everything could. Events after a damaged one count as not there."""
        self._begin()
        found = list(self._problems.values())
        if self._index.wrong:
            found.append(f"{self.path / EVENTS}, {self._index.wrong}")
        return found[0] if found else None

    def __len__(self) -> int:
        """Events read so far."""
        self._begin()
        return len(self._index)

    def check(self) -> None:
        """Raise EventError where something of the run could not be read."""
        if self.problem is not None:
            raise EventError(self.problem)

    # Reading on

    def refresh(self) -> bool:
        """Read what is new; whether anything is. Raises RunError when the run is gone."""
        with self._lock:
            before = self.info, self.generation
            self.info = read_run(self.path)
            if self.info.id != before[0].id:
                self._anew()
            changed = self._read_files()
            grown = self._read_events()
            new = changed or grown or (self.info, self.generation) != before
            if new:
                self._memory.clear()
            return new

    def _begin(self) -> None:
        """Read the events, if that was not done yet: whoever asks for the summary alone need not wait for them."""
        if not self._begun:
            with self._lock:
                self._read_events()

    def _signature(self, name: str) -> tuple[int, int] | None:
        """By which a file is known to have changed; None where there is none."""
        try:
            found = os.stat(self.path / name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _read_files(self) -> bool:
        """Config and summary, if they were written since they were read; whether they were."""
        changed = False
        for name in (CONFIG, SUMMARY):
            now = self._signature(name)
            if self._seen.get(name) == now:
                continue
            if now is None:
                del self._seen[name]
            else:
                self._seen[name] = now
            self._problems.pop(name, None)
            content: dict[str, Any] | None = None
            try:
                if now is not None:
                    content = read_toml(self.path / name) if name == CONFIG else read_summary(self.path)
            except EsperError as error:
                self._problems[name] = str(error)
            if name == CONFIG:
                self.config = content or {}
            else:
                self.summary = content
            changed = True
        return changed

    def _read_events(self) -> bool:
        """Note the whole lines that were not read yet; whether there were any."""
        now, self._begun = self._signature(EVENTS), True
        if now == self._seen.get(EVENTS) or not self._events:
            return False
        before = self.generation, self._index.offset, self._index.wrong
        try:
            with open_file(self.path / EVENTS) as file:
                if not self._known(file.fileno()):
                    self._anew()
                rest = b""
                while block := os.pread(file.fileno(), BLOCK, self._index.offset + len(rest)):
                    rest += block
                    done = self._index.take(rest)
                    self._tail = rest[max(0, done - TAIL) : done] or self._tail
                    rest = rest[done:]
                    if self._index.wrong:
                        break
        except FileNotFoundError:
            if self._index.offset:
                self._anew()
        except OSError as error:
            raise RunError(f"the events of the run cannot be read: {self.path / EVENTS}: {error.strerror}") from error
        if now is not None:
            self._seen[EVENTS] = now
        return (self.generation, self._index.offset, self._index.wrong) != before

    def _known(self, file: int) -> bool:
        """Whether a file goes on as the one that was read."""
        return os.pread(file, len(self._tail), self._index.offset - len(self._tail)) == self._tail

    def _anew(self) -> None:
        self.generation += 1
        self._forget()

    def _forget(self) -> None:
        """Nothing is read of the events."""
        self._index, self._tail = Index(), b""
        self._seen.pop(EVENTS, None)
        self._rows: dict[str, list[Row]] = {}
        self._memory: dict[Any, Any] = {}
        self.kept: dict[str, Any] = {}
        """What a view keeps to go on from when there are more events; gone when these are others."""

    # Asking

    def count(self, *kinds: str) -> int:
        """How many events of these kinds there are."""
        self._begin()
        return sum(len(self._index.by_kind[code_of(kind)]) for kind in kinds)

    def numbers(self, *kinds: str, host: int | None = None) -> Sequence[int]:
        """The numbers (`seq`) of the events of these kinds, of a host or of all, in order; without kinds, of all."""
        self._begin()
        with self._lock:
            index = self._index
            if host is not None:
                codes = {code_of(kind) for kind in kinds or KINDS}
                return [seq for seq in index.by_host.get(host, ()) if index.kinds[seq] in codes]
            if len(kinds) == 1:
                return index.by_kind[code_of(kinds[0])][:]
            return sorted(seq for kind in kinds for seq in index.by_kind[code_of(kind)]) if kinds else range(len(index))

    def kind_of(self, seq: int) -> str:
        """The kind of an event."""
        return KINDS[self._index.kinds[seq]]

    def host_of(self, seq: int) -> int | None:
        """The host of an event."""
        return None if self._index.hosts[seq] == NOBODY else self._index.hosts[seq]

    def rows(self, *kinds: str, host: int | None = None) -> list[Row]:
        """The events of these kinds, of a host or of all, in order; without kinds, of all. They are shared: change nothing in them."""
        self._begin()
        with self._lock:
            if host is None and len(kinds) == 1:
                return list(self._rows_of(kinds[0]))
            return self.at(self.numbers(*kinds, host=host))

    def last(self, kind: str) -> Row | None:
        """The newest event of a kind."""
        found = self.at(self.numbers(kind)[-1:])
        return found[0] if found else None

    def at(self, numbers: Iterable[int]) -> list[Row]:
        """The events of these numbers, as far as they can be read."""
        self._begin()
        wanted = list(numbers)
        with self._lock:
            try:
                return self._parsed([seq for seq in wanted if 0 <= seq < len(self._index)])
            except _Changed:
                self._anew()
                self._read_events()
            try:
                return self._parsed([seq for seq in wanted if 0 <= seq < len(self._index)])
            except _Changed:
                raise RunError(f"{self.path / EVENTS} changes faster than it can be read") from None

    def lines(self, numbers: Sequence[int]) -> list[bytes]:
        """The lines of the events of these numbers, as they are in the file; whether each is whole shows when it is parsed. No line,
        and a `generation` more, when the file is another by now."""
        if not numbers:
            return []
        with self._lock:
            with suppress(FileNotFoundError), open_file(self.path / EVENTS) as file:  # one that is gone is another as well
                found = [os.pread(file.fileno(), size - 1, start) for start, size in map(self._index.span, numbers)]
                if self._known(file.fileno()):
                    return found
            self._anew()
            self._read_events()
            return []

    def remembered(self, key: Any, work_out: Callable[[], T]) -> T:
        """What a function gave for this state of the record; it is asked once."""
        self._begin()
        with self._lock:
            if key not in self._memory:
                self._memory[key] = work_out()
            found: T = self._memory[key]
            return found

    def _rows_of(self, kind: str) -> list[Row]:
        numbers = self._index.by_kind[code_of(kind)]
        if self._index.sizes[code_of(kind)] > KEPT_BYTES:
            self._rows.pop(kind, None)
            return self.at(numbers)
        kept, generation = self._rows.get(kind, []), self.generation
        if len(kept) < len(numbers):
            kept = [*kept, *self.at(numbers[len(kept) :])]
            if generation != self.generation:
                return self._rows_of(kind)
            self._rows[kind] = kept
        return kept

    def _parsed(self, numbers: Sequence[int]) -> list[Row]:
        rows: list[Row] = []
        if not numbers:
            return rows
        try:
            with open_file(self.path / EVENTS) as file:
                for seq in numbers:
                    start, size = self._index.span(seq)
                    line = os.pread(file.fileno(), size, start)
                    row = row_of(line, seq, self.kind_of(seq))
                    if row is None:
                        if not self._known(file.fileno()):
                            raise _Changed
                        self._index.cut(seq, line)
                        self._tail = os.pread(file.fileno(), min(TAIL, self._index.offset), max(0, self._index.offset - TAIL))
                        self._rows.clear()
                        self._memory.clear()
                        self.kept.clear()
                        break
                    rows.append(row)
        except FileNotFoundError:
            raise _Changed from None
        return rows
