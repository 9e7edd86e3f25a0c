"""Memory that each further host takes once it has trained for an epoch, against a plain PyTorch loop over the same network.

    python benchmarks/memory.py [--quick] [--device cuda]

Bytes that are asked for and not given back: on the CPU from glibc, through which Python's objects go here as well; on a GPU from torch, of
its memory alone. Each is measured in a process of its own, which has trained as many such hosts before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from plain_loop import MEMBERS, TASK, PlainLoop, member_named

from esper.cli.main import main
from esper.cli.measuring import Row, Settings
from esper.leyline.errors import DeviceError
from esper.tolaria.data import Data
from esper.tolaria.tasks import Member
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import ENGINES
from esper.tolaria.training.host import Host

PLAIN, HOSTS = "plain loop", 10


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by member, then by engine."""
    if settings.device == "cpu" and not hasattr(ctypes.CDLL(None), "mallinfo2"):
        raise DeviceError("on the CPU, memory is measured by the allocator of glibc 2.33 or newer, and this system has another")
    for name in ("standard",) if settings.quick else MEMBERS:
        taken: dict[str, float] = {}
        for engine in (PLAIN, *ENGINES):
            settings.progress(f"{engine}, {name}")
            program = f"from memory import kilobytes; print(kilobytes({engine!r}, {name!r}, {settings.device!r}))"
            command, environment = [sys.executable, "-c", program], {**os.environ, "PYTHONMALLOC": "malloc"}
            folder = Path(__file__).parent
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            taken[engine] = float(done.stdout)
        yield Row(what=f"{PLAIN}, {name}", value=taken[PLAIN], unit="kB a host")
        for engine in ENGINES:
            ratio = taken[engine] / taken[PLAIN]
            yield Row(what=f"{engine}, {name}", value=taken[engine], unit="kB a host", against=f"{PLAIN}, {name}", ratio=ratio)


def kilobytes(engine: str, name: str, device: str) -> float:
    """What each of HOSTS hosts adds to the memory that this process takes."""
    torch.set_num_threads(1)
    data, member = TASK.load(None, torch.device(device)), member_named(name)
    train = _train_plainly if engine == PLAIN else _train_hosts
    kept = [train(data, member, engine, range(HOSTS, 2 * HOSTS))]
    before = _allocated(device)
    kept.append(train(data, member, engine, range(HOSTS)))
    return (_allocated(device) - before) / HOSTS / 1e3


def _train_plainly(data: Data, member: Member, _: str, seeds: Sequence[int]) -> object:
    """An epoch of each; what is returned holds all that they need."""
    loops = [PlainLoop(data, member, seed) for seed in seeds]
    for loop in loops:
        loop.run_epoch()
    return loops


def _train_hosts(data: Data, member: Member, engine: str, seeds: Sequence[int]) -> object:
    hosts, runner = [Host(TASK, data, member, seed, TrainingConfig()) for seed in seeds], ENGINES[engine]()
    runner.run_epoch(hosts)
    return hosts, runner


class _Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 tells, in bytes: uordblks are handed out from its heaps, hblkhd as mappings of their own."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _allocated(device: str) -> int:
    gc.collect()
    if device != "cpu":
        return torch.cuda.memory_allocated(device)
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    told = mallinfo()
    return int(told.uordblks + told.hblkhd)


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
