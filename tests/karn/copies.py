"""Copies of recorded runs that were stopped or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path


def cut_short(run: Path, to: Path, *, rounds: int, torn: bytes = b"") -> Path:
    """A copy of a finished run as it was after so many rounds, when it was killed. torn: of a line that was being written then."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("summary.json", "report.html"))
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    ends = [place for place, line in enumerate(lines, start=1) if b'"kind":"round_finished"' in line]
    (to / "events.jsonl").write_bytes(b"".join(lines[: ends[rounds - 1]]) + torn)
    return to
