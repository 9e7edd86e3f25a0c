"""What slots.py measures, under torch.compile: a training step with dormant slots, and with a live seed, against the bare model's.

    python benchmarks/compiled.py [--quick] [--device cuda]

Compiling comes before the first turn and is not in the figures. A quick run has the CNN alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from slots import steps

from esper.cli.main import main
from esper.cli.measuring import Row, Settings
from esper.leyline.errors import DeviceError


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by host."""
    try:
        yield from steps(settings, compiled=True)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, torch._inductor.exc.InvalidCxxCompiler):
            raise
        raise DeviceError("torch.compile needs a C++ compiler, and none was found; install g++") from error


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
