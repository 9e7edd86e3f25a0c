"""Gets published files: whole and with the right checksum, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from esper.leyline.errors import DataError
from esper.tolaria.data.sources import Download, Source, cache_folder

CHUNK = 1 << 18
TIMEOUT = 30
"""Seconds without a byte after which a server is given up."""

Progress = Callable[[Download, int], None]
"""Called with the file and the bytes of it that are there by now."""


def download(source: Source, progress: Progress, folder: Path | None = None) -> list[Path]:
    """Get every file of the set into `folder`, by default its place in the cache, and return their paths. What is there and whole stays."""
    target = cache_folder() / source.name if folder is None else folder
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_fetch(file, target / file.file, progress) for file in source.downloads]
    except OSError as error:
        raise DataError(f"{target}: cannot keep {source.title} there: {error.strerror or error}") from error


def _fetch(file: Download, path: Path, progress: Progress) -> Path:
    if path.is_file() and path.stat().st_size == file.size and _checksum_of(path, file) == file.checksum:
        progress(file, file.size)
        return path
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    digest, done = _digest(file), 0
    try:
        with temporary.open("xb") as part:
            for chunk in _chunks(file):
                digest.update(chunk)
                part.write(chunk)
                done += len(chunk)
                progress(file, done)
                if done > file.size:
                    break
            part.flush()
            os.fsync(part.fileno())
        if done != file.size or f"{digest.name}:{digest.hexdigest()}" != file.checksum:
            came = f"{'more than ' if done > file.size else ''}{min(done, file.size):,} bytes"
            raise DataError(f"{file.url}: {came} with another checksum came; expected {file.size:,} with {file.checksum}; nothing was kept")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _chunks(file: Download) -> Iterator[bytes]:
    """What the file's address gives, piece by piece."""
    request = urllib.request.Request(file.url, headers={"User-Agent": "esper"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            while chunk := answer.read(CHUNK):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(
            f"cannot download {file.url}: {reason}; nothing was kept: check the network, or get the file by other means "
            "and name its folder with --data DIR"
        ) from error


def _digest(file: Download) -> hashlib._Hash:
    return hashlib.new(file.checksum.partition(":")[0], usedforsecurity=False)


def _checksum_of(path: Path, file: Download) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: _digest(file))
    return f"{digest.name}:{digest.hexdigest()}"
