"""What every run has: rounds, a record of them, a state to go on from, and a summary."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

import esper
from esper.leyline.events import RunStarted
from esper.simic.growth.play import Progress
from esper.tolaria.training.engine import Choice


class Work(Protocol):
    """What a run does: hosts under a controller (ControllerRun), a policy that learns by playing (PPORun) or from recordings (OfflineRun),
    a search of settings (SearchRun), or runs for several values of a setting (SweepRun).

    A round is the unit between checkpoints.
    """

    @property
    def round(self) -> int:
        """Rounds done."""

    @property
    def rounds(self) -> int:
        """Rounds in all."""

    @property
    def done(self) -> bool:
        """Whether nothing is left but to end."""

    def begin(self) -> None:
        """Tell the hub what begins, or, restored from a checkpoint, what goes on."""

    def run_round(self, progress: Progress | None = None) -> None:
        """One round more; once the last is done, whatever is left to do after it."""

    def end(self) -> dict[str, Any]:
        """What came out: the summary."""

    def state(self) -> dict[str, Any]:
        """Everything to go on from."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""

    def close(self) -> None:
        """Let go of data and processes."""


def run_started(command: str, config: Any, *, task: str, hosts: int, rounds: int, **about: float | int | str) -> RunStarted:
    """What every run tells at its start; `about` is what else a person wants to know."""
    return RunStarted(
        command=command,
        method=config.kind,
        task=task,
        hosts=hosts,
        rounds=rounds,
        seed=config.seed,
        versions=versions(),
        machine=hardware(),
        about=about,
    )


def machine(choice: Choice, devices: Sequence[torch.device]) -> dict[str, str]:
    """Where and how hosts are trained, as a run tells it at its start."""
    return {"engine": choice.engine, "engine_why": choice.why, "devices": ", ".join(map(str, devices))}


def hardware() -> dict[str, int | str]:
    """What this machine is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[str, int | str] = {"system": f"{platform.system()} {platform.release()}", "processor": platform.machine(), "cores": cores}
    found["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        found["gpus"] = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return found


def versions() -> dict[str, str]:
    """What a result depends on besides its config."""
    return {"esper": esper.__version__, "python": platform.python_version(), "torch": torch.__version__}
