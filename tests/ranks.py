"""Real processes that train one model together, for tests: each runs the same function with its rank and leaves what it found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PROJECT = Path(__file__).resolve().parent.parent
SIZE = 2
WAIT = 120
"""Seconds after which a launch has failed."""


def launch(module: str, folder: Path, killed: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Run `main(rank, folder)` of a module in SIZE processes; what each has left. killed: ranks that die of a signal."""
    code = f"import sys; from {module} import main; main(int(sys.argv[1]), __import__('pathlib').Path(sys.argv[2]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder)],
            cwd=PROJECT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(SIZE)
    ]
    told = []
    try:
        for worker in workers:
            told.append(worker.communicate(timeout=WAIT)[0])
    finally:
        for worker in workers:
            worker.kill()
    for rank, worker in enumerate(workers):
        assert (worker.returncode < 0) if rank in killed else (worker.returncode == 0), f"rank {rank}:\n{told[rank]}"
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(SIZE)]


def begin(rank: int, meeting: Path, seconds: float = 60.0) -> None:
    """Join the others; whoever is late by so many seconds is lost."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=SIZE, timeout=timedelta(seconds=seconds))


def leave(rank: int, folder: Path, found: dict[str, Any]) -> None:
    """Keep what this rank has found."""
    torch.save(found, folder / f"rank{rank}.pt")


def error_of(action: Callable[[], object]) -> str:
    """What an action raises, in words; empty when it does not."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def end() -> None:
    """Leave the others, whatever state they are in."""
    with suppress(RuntimeError):
        dist.destroy_process_group()
