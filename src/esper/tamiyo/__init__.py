"""The mind: what is seen of a host, what may be decided, and who decides: controllers by rule, and the policy that learns."""

from esper.tamiyo.controllers.baselines import FixedConfig, RandomConfig
from esper.tamiyo.controllers.controller import CONTROLLERS, Controller, State, make, register
from esper.tamiyo.controllers.heuristic import HeuristicConfig
from esper.tamiyo.observe.masks import HEAD_VALUES, Masks, Rules, blueprint_names
from esper.tamiyo.observe.signals import Observation, SignalTracker

__all__ = [
    "CONTROLLERS",
    "HEAD_VALUES",
    "Controller",
    "FixedConfig",
    "HeuristicConfig",
    "Masks",
    "Observation",
    "RandomConfig",
    "Rules",
    "SignalTracker",
    "State",
    "blueprint_names",
    "make",
    "register",
]
