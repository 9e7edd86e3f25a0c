"""The examples run as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def run(example: str, *options: str) -> str:
    """What an example prints, as somebody sees it who runs it from the project's folder."""
    command = [sys.executable, f"examples/{example}", *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "an example says nothing about its own troubles"
    return done.stdout


def test_a_resnet_is_grown_and_compared_with_itself():
    told = run("grow_resnet.py", "--epochs", "9")
    assert "places where it could grow: layer1, layer2, layer3" in told
    assert "GERMINATE layer1 conv_" in told
    assert told.count("\nepoch ") == 9
    assert "without growth: " in told
    assert "         grown: " in told
    assert "kept what grew at: " in told
