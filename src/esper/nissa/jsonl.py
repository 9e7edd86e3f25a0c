"""A run's events in a file, one line of JSON each: what every figure and page is made from afterwards.

Lines are appended whole and end with a newline, so a line without one is torn: the process was killed while it was written. Such a last
line is cut off when the file is opened for writing, and left out when it is read.

A disk that is full, or fails, does not stop the run: what cannot be written waits in memory and is tried again at every flush. Beyond a
bound the journal ends for good, with the whole lines that are in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from esper.leyline.errors import EventError, RunError
from esper.leyline.events import Envelope, from_json_line, to_json_line
from esper.leyline.files import open_file

_BLOCK = 1 << 16
"""Bytes that are read at once when a line's beginning is sought from its end."""
MOST_WAITING = 256 << 20
"""Bytes that may wait in memory for a disk that takes nothing."""


class JsonlSink:
    """Appends events to a file; creates it, or goes on after the last whole line of it. Raises RunError when it cannot be opened.

    Lines are held in memory until `flush`, which makes one write of them. most_waiting: bytes of them that are held while the disk fails.
    """

    def __init__(self, path: Path, most_waiting: int = MOST_WAITING) -> None:
        self.path = path
        self.most_waiting = most_waiting
        self.lost = 0
        """Events that will never be in the file; more than none once the journal has ended before the run."""
        self.problem = ""
        """Why the disk did not take what it was last given; empty when it did."""
        self._lines: list[bytes] = []
        self._waiting = 0
        self._torn = False  # a part of a line is in the file, and could not be cut off yet
        try:
            self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(self._file).st_size
            self._written = _line_start(self._file, size)
            if self._written != size:
                os.ftruncate(self._file, self._written)
        except OSError as error:
            self._fail("be opened", error)

    @property
    def offset(self) -> int:
        """Bytes from the start of the file to the end of the last event, those that wait to be written included."""
        return self._written + self._waiting

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file is None

    @property
    def written(self) -> int:
        """Bytes of whole lines that are in the file."""
        return self._written

    @property
    def waiting(self) -> int:
        """Events that are not in the file yet."""
        return len(self._lines)

    def write(self, envelope: Envelope) -> None:
        """Take an event. Raises EventError, and takes nothing, when one of its values has the wrong type."""
        line = to_json_line(envelope).encode("ascii") + b"\n"
        if self.lost:
            self.lost += 1
            return
        self._lines.append(line)
        self._waiting += len(line)

    def flush(self, fsync: bool = False) -> None:
        """Hand what waits to the system, and with `fsync` wait until it is on the disk. A disk that does not take it is a `problem`."""
        descriptor = self._open_file()
        self.problem = ""
        try:
            if self._torn:
                os.ftruncate(descriptor, self._written)
                self._torn = False
            if self._lines:
                self._append(descriptor, b"".join(self._lines))
            if fsync:
                os.fsync(descriptor)
        except OSError as error:
            self.problem = error.strerror or str(error)
        if self._waiting > self.most_waiting:
            self.lost, self._lines, self._waiting = self.lost + len(self._lines), [], 0

    def _append(self, descriptor: int, content: bytes) -> None:
        """Write the content. Raises OSError when not all of it could be; the whole lines that could are then in the file."""
        done = 0
        try:
            while done < len(content):
                done += os.write(descriptor, memoryview(content)[done:])
        finally:
            whole = content.rfind(b"\n", 0, done) + 1
            self._torn = done > whole
            lines = len(self._lines) if whole == len(content) else content.count(b"\n", 0, whole)
            del self._lines[:lines]
            self._written += whole
            self._waiting -= whole
            if self._torn:
                os.ftruncate(descriptor, self._written)
                self._torn = False

    def truncate_to(self, offset: int) -> None:
        """Cut off everything after `offset` bytes, which has to be the end of a line; what waits is dropped."""
        descriptor = self._open_file()
        self._check_end_of_line(offset)
        try:
            if offset != self._written or self._torn:
                os.ftruncate(descriptor, offset)
                os.fsync(descriptor)
        except OSError as error:
            self._fail("be cut", error)
        self._lines, self._waiting, self._written, self._torn, self.lost = [], 0, offset, False, 0

    def next_seq(self, offset: int | None = None) -> int:
        """The number that follows the last event in the file, or the last one before `offset`; 0 when there is none."""
        descriptor = self._open_file()
        end = self._written if offset is None else offset
        self._check_end_of_line(end)
        if end == 0:
            return 0
        start = _line_start(descriptor, end - 1)
        return _parse(self.path, f"byte {start}", os.pread(descriptor, end - start, start)).seq + 1

    def close(self) -> None:
        """Write what waits and close the file; what the disk does not take now is lost. Closing twice is harmless."""
        if self._file is None:
            return
        self.flush()
        self.lost, self._lines, self._waiting = self.lost + len(self._lines), [], 0
        os.close(self._file)
        self._file = None

    def _open_file(self) -> int:
        if self._file is None:
            raise RunError(f"{self.path} is closed; nothing more can be recorded in it")
        return self._file

    def _check_end_of_line(self, offset: int) -> None:
        if not 0 <= offset <= self._written or _line_start(self._open_file(), offset) != offset:
            found = f"ends at byte {self._written}" if offset > self._written else "has no end of a line there"
            raise RunError(f"no event ends at byte {offset} of {self.path}, which {found}: it was edited or belongs to another run")

    def _fail(self, action: str, error: OSError) -> NoReturn:
        raise RunError(f"the events of the run cannot {action}: {self.path}: {error.strerror}") from error


def read_events(path: Path) -> Iterator[Envelope]:
    """The events in a file, in order, while it is written or afterwards; a torn last line is left out.

    Raises EventError, with the line's number, for anything else that is wrong: a damaged line, a lost or a doubled event.
    """
    try:
        file = open_file(path)
    except OSError as error:
        raise RunError(f"the events of the run cannot be read: {path}: {error.strerror}") from error
    with file:
        for seq, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            envelope = _parse(path, f"line {seq + 1}", line)
            if envelope.seq != seq:
                raise EventError(f"{path}, line {seq + 1}: holds event {envelope.seq}, expected {seq}: events were lost, doubled or edited")
            yield envelope


def _parse(path: Path, place: str, line: bytes) -> Envelope:
    try:
        return from_json_line(line.decode("utf-8"))
    except (EventError, UnicodeDecodeError) as error:
        raise EventError(f"{path}, {place}: {error}") from error


def _line_start(descriptor: int, end: int) -> int:
    """Where the line begins that the bytes before `end` leave unfinished: `end` itself when they close with a newline."""
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
