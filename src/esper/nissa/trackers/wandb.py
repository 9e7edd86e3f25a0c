"""Weights & Biases: a run of its own in the run's folder `wandb`, sent to the server as it goes on or kept for `wandb sync`.

Sent is only what somebody is logged in for, or where WANDB_MODE=online asks for it; else it stays on this machine (offline).
"""

from __future__ import annotations

import netrc
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

import wandb

from esper.nissa.scalars import Point
from esper.nissa.trackers.tracker import Ledger, Tracked, figures


class WeightsAndBiases:
    """Numbers, settings and alerts of one run, with an id that it keeps when the run goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mode = mode()
        self.hint = "it is sent to the server as the run goes on"
        if self.mode == "offline":
            self.hint = f"offline, in {folder / 'wandb'}; send it with: wandb sync {folder / 'wandb'}/offline-run-*"
        self._ledger = Ledger(folder / "wandb" / "esper.json")
        self._run: wandb.Run | None = None
        self._unit = ""

    def begin(self, tracked: Tracked) -> None:
        """Start W&B's run, or go on with it."""
        self._ledger = Ledger.read(self._ledger.path)
        self._ledger.run = self._ledger.run or secrets.token_hex(4)
        self._ledger.save()
        self._unit = tracked.unit
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "esper"),
            name=self.folder.name,
            id=self._ledger.run,
            resume="allow",
            dir=str(self.folder),
            mode=self.mode,  # type: ignore[arg-type]
            config={**tracked.config, "command": tracked.run.command, "versions": tracked.run.versions},
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric=self._unit)

    def log(self, point: Point, time: float) -> None:
        """Numbers by their names, along the step."""
        values = self._ledger.new(point)
        if values and self._run is not None:
            self._run.log({**values, self._unit: point.step})

    def remark(self, step: int, text: str, time: float, *, urgent: bool) -> None:
        """An alert, which W&B can send on; only for what looks wrong. The rest is in the run's log.txt."""
        if urgent and self._run is not None:
            self._run.alert(title=text.partition(":")[0], text=f"{self._unit} {step}: {text}")

    def flush(self) -> None:
        """Remember what was logged; W&B writes it down by itself."""
        self._ledger.save()

    def end(self, finished: bool) -> None:
        """End W&B's run, with the figures of a finished one as its summary."""
        self._ledger.save()
        if self._run is not None:
            if finished:
                self._run.summary.update(figures(self.folder))
            self._run.finish(exit_code=0 if finished else 1)


def mode() -> str:
    """online, offline or disabled: what WANDB_MODE says, else online for whoever is logged in, and offline for the others."""
    if "WANDB_MODE" in os.environ:
        return os.environ["WANDB_MODE"]
    settings = wandb.setup().settings
    if settings.api_key:
        return "online"
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(settings.base_url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        known = None
    return "offline" if known is None else "online"


def make(folder: Path) -> WeightsAndBiases:
    """The tracker for the run in a folder."""
    return WeightsAndBiases(folder)
