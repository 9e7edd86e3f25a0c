"""A run's events in a file, one line of JSON each: what every figure and page is made from afterwards.

Lines are appended whole and end with a newline, so a line without one is torn: the process was killed, or the disk was full, while it
was written. Such a last line is cut off when the file is opened for writing, and left out when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from esper.leyline.errors import EventError, RunError
from esper.leyline.events import Envelope, from_json_line, to_json_line
from esper.leyline.files import open_file, write_all

_BLOCK = 1 << 16
"""Bytes that are read at once when a line's beginning is sought from its end."""


class JsonlSink:
    """Appends events to a file; creates it, or goes on after the last whole line of it. Raises RunError when the disk fails.

    Lines are held in memory until `flush`, which makes one write of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[bytes] = []
        self._waiting = 0
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

    def write(self, envelope: Envelope) -> None:
        """Take an event. Raises EventError, and takes nothing, when one of its values has the wrong type."""
        line = to_json_line(envelope).encode("ascii") + b"\n"
        self._lines.append(line)
        self._waiting += len(line)

    def flush(self, fsync: bool = False) -> None:
        """Hand what waits to the system in one write, and with `fsync` wait until it is on the disk."""
        descriptor = self._open_file()
        lines, waiting = b"".join(self._lines), self._waiting
        self._lines, self._waiting = [], 0
        try:
            if lines:
                write_all(descriptor, lines)
            if fsync:
                os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            self._file = None
            self._fail("be written", error)
        self._written += waiting

    def truncate_to(self, offset: int) -> None:
        """Cut off everything after `offset` bytes, which has to be the end of a line; what waits is dropped."""
        descriptor = self._open_file()
        self._check_end_of_line(offset)
        try:
            os.ftruncate(descriptor, offset)
            os.fsync(descriptor)
        except OSError as error:
            self._fail("be cut", error)
        self._lines, self._waiting, self._written = [], 0, offset

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
        """Write what waits and close the file. Closing twice is harmless."""
        if self._file is None:
            return
        self.flush()
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
