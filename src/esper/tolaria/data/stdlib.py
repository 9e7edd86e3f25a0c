"""The sources of Python's own standard library as text that is always there."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from esper.leyline.errors import DataError
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.data.text import Texts

PACKAGES = (
    "asyncio", "collections", "concurrent/futures", "email", "html", "http", "importlib", "json", "logging",
    "multiprocessing", "unittest", "urllib", "xml/etree",
)  # fmt: skip
"""Packages that are read besides the modules of the top level."""
TOTAL_LIMIT = 1 << 20
"""Characters that are read at most, over all files."""
FILE_LIMIT = 16 << 10
"""Characters that are read of one file at most, so that no single module is a large part of the text."""
LEAST = 100_000
"""Fewer characters than this mean that Python was installed without its sources."""


def read_stdlib(folder: Path | None = None) -> Texts:
    """Sources for train, val and test: eight, one and one of ten files, by the hash of the path within `folder` (Python's own library).

    The files are taken in the order of that hash until the limit is reached, so that the text is a sample of the whole library. Its
    contents depend on the release of Python, which `Data.fingerprint` records.
    """
    folder = Path(os.__file__).parent if folder is None else folder
    splits: tuple[list[str], list[str], list[str]] = ([], [], [])
    total = 0
    # Modules of the top level and of the packages above; their sub-packages, tests among them, are left out.
    sources = [path for part in ("", *PACKAGES) for path in (folder / part).glob("*.py")]
    hashed = {stream_seed("stdlib", path.relative_to(folder).as_posix()): path for path in sources}
    for key, path in sorted(hashed.items()):
        try:
            text = path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")[:FILE_LIMIT]
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        if total + len(text) > TOTAL_LIMIT:
            break
        total += len(text)
        bucket = key % 10
        splits[1 if bucket == 0 else 2 if bucket == 1 else 0].append(text)
    if total < LEAST:
        raise DataError(f"{folder}: {total:,} characters of Python sources; expected {LEAST:,}, so this Python came without its sources")
    train, val, test = splits
    return Texts(train=train, val=val, test=test, origin=f"the standard library of Python {platform.python_version()}")
