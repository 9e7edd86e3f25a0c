"""Esper grows neural networks while they train.

    model = esper.Growable(net, slots=["layer2", "layer3"], example=x)

`import esper` is cheap: torch is loaded when one of these names is first touched.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.karn.loading import load_run as load_run
    from esper.kasmina import AveragedModel as AveragedModel
    from esper.kasmina import Growable as Growable
    from esper.kasmina import SlotShape as SlotShape
    from esper.kasmina import blueprint as blueprint
    from esper.kasmina import check_growable as check_growable
    from esper.kasmina import find_slots as find_slots
    from esper.kasmina import load_grown as load_grown
    from esper.kasmina import save_grown as save_grown
    from esper.kasmina.stacking.rules import stacking_rule as stacking_rule
    from esper.leyline.errors import EsperError as EsperError
    from esper.leyline.reports import GateConfig as GateConfig
    from esper.leyline.reports import LifecycleConfig as LifecycleConfig
    from esper.leyline.stages import Stage as Stage
    from esper.nissa import sink as sink
    from esper.simic.evaluation import Evaluation as Evaluation
    from esper.simic.gardener import Gardener as Gardener
    from esper.simic.registration import register_environments as register_environments
    from esper.simic.rewards import RewardInput as RewardInput
    from esper.simic.rewards import reward_component as reward_component
    from esper.tamiyo import register as _controller
    from esper.tolaria.tasks import register as _task

    controller, task = _controller, _task

__version__ = "0.1.0"

_HOMES = {
    "AveragedModel": "esper.kasmina",
    "Growable": "esper.kasmina",
    "SlotShape": "esper.kasmina",
    "blueprint": "esper.kasmina",
    "check_growable": "esper.kasmina",
    "find_slots": "esper.kasmina",
    "load_grown": "esper.kasmina",
    "save_grown": "esper.kasmina",
    "load_run": "esper.karn.loading",
    "stacking_rule": "esper.kasmina.stacking.rules",
    "EsperError": "esper.leyline.errors",
    "GateConfig": "esper.leyline.reports",
    "LifecycleConfig": "esper.leyline.reports",
    "Stage": "esper.leyline.stages",
    "sink": "esper.nissa",
    "Evaluation": "esper.simic.evaluation",
    "Gardener": "esper.simic.gardener",
    "register_environments": "esper.simic.registration",
    "RewardInput": "esper.simic.rewards",
    "reward_component": "esper.simic.rewards",
    "controller": "esper.tamiyo:register",
    "task": "esper.tolaria.tasks:register",
}
"""Where each public name lives, `module` or `module:name there`; loaded on first use."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        # With these two Python adds the nearest name.
        raise AttributeError(f"module 'esper' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    home, _, other = _HOMES[name].partition(":")
    return getattr(importlib.import_module(home), other or name)


def __dir__() -> list[str]:
    return sorted(__all__)


logging.getLogger("esper").addHandler(logging.NullHandler())  # the application decides what becomes of messages

if "gymnasium" in sys.modules:
    # Gymnasium imports esper for "esper:esper/Growth-v0". Only names are registered; no torch is loaded.
    importlib.import_module("esper.simic.registration")
