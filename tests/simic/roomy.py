"""A plug-in that gives fleets room to spare wherever they are trained, in workers too, as they have on a GPU; none of it is made ahead."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import esper
from esper.tolaria.training import stackable
from esper.tolaria.training.engine import ENGINES, FleetEngine
from tests.simic.runs import CrashAfter

stackable.SHORT_EPOCH = 0
ENGINES["fleet"] = partial(FleetEngine, spare=True)  # type: ignore[assignment]


@esper.sink("roomy")
def never(folder: Path) -> CrashAfter:
    """A plug-in registers something."""
    return CrashAfter(-1)
