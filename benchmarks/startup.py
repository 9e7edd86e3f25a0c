"""What a command takes to start, in a process of its own, against Python and torch by themselves.

    python benchmarks/startup.py [--quick]

Processor time of the process, from its beginning to its end.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns

ESPER = ["-m", "esper.cli.main"]
LIGHT = {
    "python -c pass": ["-c", "pass"],
    'python -c "import esper"': ["-c", "import esper"],
    "esper --help": [*ESPER, "--help"],
    "esper train ppo --help": [*ESPER, "train", "ppo", "--help"],
}
HEAVY = {
    'python -c "import torch"': ["-c", "import torch"],
    "esper tasks": [*ESPER, "tasks"],
    "esper blueprints": [*ESPER, "blueprints"],
}
"""Those that cannot do without torch."""


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of what needs no torch, and of what does."""
    for commands, rounds in ((LIGHT, 15), (HEAVY, 5)):
        tasks = {name: partial(_run, arguments) for name, arguments in commands.items()}
        yield from compared(in_turns(settings, tasks, rounds, clock=_children), next(iter(commands)))


def _run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
