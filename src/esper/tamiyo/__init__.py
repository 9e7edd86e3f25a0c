"""The mind: signals, masks, the heuristic and the other controllers that decide what grows."""

from esper.tamiyo.controllers.baselines import Fixed, FixedConfig, Random, RandomConfig, Wait, WaitConfig
from esper.tamiyo.controllers.controller import CONTROLLERS, Controller, ControllerKind, State, make, random_stream, register
from esper.tamiyo.controllers.heuristic import Heuristic, HeuristicConfig
from esper.tamiyo.observe.masks import HEAD_VALUES, Blueprints, Masks, Rules, blueprint_names, check_choice, choose, measured_worth
from esper.tamiyo.observe.signals import Costs, Observation, SignalTracker
from esper.tamiyo.policy.prior import Prior

__all__ = [
    "CONTROLLERS",
    "HEAD_VALUES",
    "Blueprints",
    "Controller",
    "ControllerKind",
    "Costs",
    "Fixed",
    "FixedConfig",
    "Heuristic",
    "HeuristicConfig",
    "Masks",
    "Observation",
    "Prior",
    "Random",
    "RandomConfig",
    "Rules",
    "SignalTracker",
    "State",
    "Wait",
    "WaitConfig",
    "blueprint_names",
    "check_choice",
    "choose",
    "make",
    "measured_worth",
    "random_stream",
    "register",
]
