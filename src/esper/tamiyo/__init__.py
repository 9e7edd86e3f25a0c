"""The mind: signals, masks, the heuristic and the other controllers that decide what grows."""

from esper.tamiyo.baselines import Fixed, FixedConfig, Random, RandomConfig, Wait, WaitConfig
from esper.tamiyo.controller import CONTROLLERS, Controller, ControllerKind, State, make, random_stream, register
from esper.tamiyo.heuristic import Heuristic, HeuristicConfig
from esper.tamiyo.masks import PARAMETERS, Blueprints, Masks, Rules, blueprint_names, check_choice, choose, measured_worth
from esper.tamiyo.prior import Prior
from esper.tamiyo.signals import Costs, Observation, SignalTracker

__all__ = [
    "CONTROLLERS",
    "PARAMETERS",
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
