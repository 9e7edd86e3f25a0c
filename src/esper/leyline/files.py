"""Files: read without ever waiting, and written so that a kill or a power cut leaves the old content or the new, never half of it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path) -> BinaryIO:
    """The file, to be read. Raises OSError for whatever is no regular file: a pipe might never begin, and a device never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else OSError(errno.EINVAL, "Not a regular file")


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; one call of the system may take only a part, which is how a disk that fills up begins."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, down to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of whatever file is at `path`: whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what `replace_file` left in a folder when it was killed. To be called by the only process that writes such files there."""
    for path in folder.glob(".*.*.tmp"):
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder down to the disk: a file that was created or renamed is safe only then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
