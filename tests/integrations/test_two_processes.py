"""Growth in two processes that a framework joins: every rank ends with the same network, resumed or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]


def test_both_ranks_grow_alike_in_every_framework(tmp_path):
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
    command = [*launched, "tests/integrations/two_processes.py", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for mine, its in zip(first, second, strict=True):
        same(mine, its)
    _, lightning, lightning_again, trainer, trainer_again = first
    same(lightning_again, lightning)
    same(trainer_again, trainer)
    for history, _, together in first:
        assert together, "the model knows that it is trained by several"
        assert any("FOSSILIZE" in line for line in history)


def same(mine, its):
    """The same history, and every tensor the same."""
    assert mine[0] == its[0]
    assert list(mine[1]) == list(its[1])
    assert not (other := [name for name, value in mine[1].items() if not torch.equal(value, its[1][name])]), other
