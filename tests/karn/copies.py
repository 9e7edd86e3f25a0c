"""Copies of recorded runs that were stopped or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cut_short(run: Path, to: Path, *, rounds: int, torn: bytes = b"") -> Path:
    """A copy of a finished run as it was after so many rounds, when it was killed. torn: of a line that was being written then."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("summary.json", "report.html"))
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    ends = [place for place, line in enumerate(lines, start=1) if b'"kind":"round_finished"' in line]
    (to / "events.jsonl").write_bytes(b"".join(lines[: ends[rounds - 1]]) + torn)
    return to


def thinned(run: Path, to: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    """A copy of a run in which only some of its events are recorded, by their lines."""
    shutil.copytree(run, to)
    lines = [line for line in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if keep(line)]
    texts = [json.dumps({**line, "seq": seq}, separators=(",", ":")) for seq, line in enumerate(lines)]
    (to / "events.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return to
