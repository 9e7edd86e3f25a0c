"""The rule with other settings, each of which suits some hosts better: recorded beside it, a policy can learn which suits whom.

esper headroom --plugins examples/rules.py --beside heuristic bold shy patient light heavy mixing frugal lavish --searches 0 --record
"""

from __future__ import annotations

from functools import partial
from typing import Any

import esper
from esper.tamiyo import HeuristicConfig
from esper.tamiyo.controllers.heuristic import Heuristic

BOLD: dict[str, Any] = {
    "gain_share": 0.4,
    "optimism": 3.0,
    "early_margin": -1.0,
    "plateau_margin": -1.0,
    "overfit_gap": 60.0,
    "overfit_trend": 1.0,
}
SHY: dict[str, Any] = {"gain_share": 0.1, "early_margin": 0.5}
PATIENT: dict[str, Any] = {"dependence": 0.25, "training_patience": 10, "holding_patience": 8, "holding_limit": 14}
LIGHT = {"depthwise": 1.0, "bottleneck": 0.8, "attention": 0.7, "conv_light": 0.6, "mlp_small": 0.6, "mlp": 0.4, "conv_heavy": 0.3}
HEAVY = {"conv_heavy": 1.0, "mlp": 1.0, "conv_light": 0.6, "mlp_small": 0.6, "attention": 0.6}

RULES = {
    "bold": HeuristicConfig(**BOLD, keep_noise=0.0),
    "shy": HeuristicConfig(**SHY, keep_noise=2.0),
    "patient": HeuristicConfig(**PATIENT),
    "light": HeuristicConfig(preferences=LIGHT),
    "heavy": HeuristicConfig(preferences=HEAVY, default_preference=0.2),
    "mixing": HeuristicConfig(preferences={"attention": 1.0, "depthwise": 0.8}, default_preference=0.3),
    "frugal": HeuristicConfig(**SHY, preferences=LIGHT, default_preference=0.3),
    "lavish": HeuristicConfig(**BOLD, **PATIENT, preferences=HEAVY, default_preference=0.2),
}
"""Grows more and keeps more; grows less; waits longer for what seeds become; prefers small seeds, large ones, those that move information
between places; less, and that small; more, and that large."""


def rule(name: str, config: HeuristicConfig) -> Heuristic:
    """The rule by another name, with the settings of that name unless it is given some."""
    return Heuristic(RULES[name] if config == HeuristicConfig() else config, name)


for name in RULES:
    esper.controller(name, HeuristicConfig, partial(rule, name), purpose="the rule with other settings")
