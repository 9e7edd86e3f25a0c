"""Hosts so small that an environment's episode takes a tenth of a second, and ways through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.reports import GateConfig
from esper.simic.environment import GrowthEnv
from esper.tamiyo import Masks
from esper.tolaria.tasks import TASKS, Family, get, register

OPEN = GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0)
"""Gates that ask for next to nothing, so that a seed comes through its life in a few epochs."""
TINY: dict[str, Any] = {
    "epochs": 6,
    "fix": {"widths": [2, 2, 2], "train_size": 100, "batch": 50},
    "control": False,
    "gates": OPEN,
    "seeds": range(8),
}


def make(name: str = "esper/Growth-v0", **settings: Any) -> gymnasium.Env[Any, Any]:
    """The environment of that id with a tiny host, and some settings of its own."""
    return gymnasium.make(f"esper.simic.environment:{name}", **{**TINY, **settings})


def inner(env: gymnasium.Env[Any, Any]) -> GrowthEnv:
    """The environment without its wrappers."""
    assert isinstance(env.unwrapped, GrowthEnv)
    return env.unwrapped


def masks_of(env: gymnasium.Env[Any, Any]) -> Masks:
    """What tamiyo says may be decided now."""
    return inner(env)._seen().masks


def heads(masks: Masks, decision: Decision) -> np.ndarray[Any, Any]:
    """A decision as an action of esper/Growth-v0."""
    return np.array(masks.indices(decision))


def onward(masks: Masks) -> Decision:
    """The next step in the life of a seed in the first slot: germinate, advance, and then wait."""
    slot = masks.slot_names[0]
    if masks.slots(Op.GERMINATE)[0]:
        return Decision(op=Op.GERMINATE, slot=slot, blueprint="norm", tempo=3)
    return Decision(op=Op.ADVANCE, slot=slot) if masks.slots(Op.ADVANCE)[0] else WAIT


@contextmanager
def uneven_task() -> Iterator[str]:
    """A task of hosts that differ in their number of slots and in their budgets."""
    digits = get("digits")
    standard = replace(digits.family.standard, widths=(2, 2), train_size=100, batch=50)
    family = Family(standard=standard, ranges={"widths": ((2, 2), (2, 2, 2)), "epochs": (2, 3, 5)})
    register(replace(digits, name="uneven", family=family))
    try:
        yield "uneven"
    finally:
        del TASKS["uneven"]
