"""The command that goes on with a run, by its kind. Whoever only looks at runs needs it too, so no torch is loaded here."""

from __future__ import annotations

import shlex
from pathlib import Path

PRACTICE = ("learn", "expert")
"""Kinds of config whose runs teach a policy by playing: by PPO, and by forked search."""
COMMANDS = ("compare", "headroom", "tune", "sweep")
"""Kinds of config that are named like the command that starts such runs and goes on with them; that of the others is `train`."""


def command_for(kind: str) -> str:
    """The command that a run of this kind is started with, and gone on with."""
    return kind if kind in COMMANDS else "train"


def resume_command(kind: str, run: Path) -> str:
    """What to type to go on with a run."""
    return shlex.join(["esper", command_for(kind), "--resume", str(run)])
