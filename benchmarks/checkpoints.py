"""Saving a run and going on from it, by the number of its hosts, against torch.save and torch.load of the same state.

    python benchmarks/checkpoints.py [--quick] [--device cuda]

Both make the state from the hosts and bring it back into them. A checkpoint of ours has hashes, holds no pickle and is on the disk when
`save` returns; the time that a process waits for the disk is not in these figures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.runs.controller import ControllerRun
from esper.tolaria.storage.checkpoint import CheckpointStore

HOSTS = (4, 16)
EPOCHS, ROUNDS = 5, 9
"""Epochs before the run is saved, so that there are histories, and seeds in some hosts; rounds of measuring."""


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by number of hosts: saving, loading, size."""
    for hosts in HOSTS[:1] if settings.quick else HOSTS:
        config = ControllerRunConfig(hosts=hosts, control=False, device=settings.device, fix={"widths": "[8, 16, 32]", "kernel": "3"})
        run = ControllerRun(config, Hub())
        for epoch in range(EPOCHS):
            settings.progress(f"{hosts} hosts, epoch {epoch + 1}")
            run.run_round()
        with tempfile.TemporaryDirectory() as folder:
            yield from _rows(settings, run, Path(folder), f"{hosts} hosts")
        run.close()


def _rows(settings: Settings, run: ControllerRun, folder: Path, suffix: str) -> Iterator[Row]:
    store, steps, pickled = CheckpointStore(folder / "checkpoints"), count(1), folder / "state.pt"

    def load() -> None:
        checkpoint = store.latest()
        assert checkpoint is not None
        run.load_state(checkpoint.state)

    saving = {
        f"torch.save, {suffix}": lambda: torch.save(run.state(), pickled),
        f"checkpoint saved, {suffix}": lambda: store.save(next(steps), run.state()),
    }
    loading = {
        f"torch.load, {suffix}": lambda: run.load_state(torch.load(pickled, weights_only=False)),
        f"checkpoint loaded, {suffix}": load,
    }
    for tasks in (saving, loading):
        yield from compared(in_turns(settings, tasks, ROUNDS), next(iter(tasks)))
    newest = max((folder / "checkpoints").iterdir())
    ours, theirs = sum(path.stat().st_size for path in newest.iterdir()) / 1e6, pickled.stat().st_size / 1e6
    yield Row(what=f"file of torch.save, {suffix}", value=theirs, unit="MB")
    yield Row(what=f"checkpoint, {suffix}", value=ours, unit="MB", against=f"file of torch.save, {suffix}", ratio=ours / theirs)


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
