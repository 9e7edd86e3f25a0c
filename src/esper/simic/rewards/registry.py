"""Reward components of a user's own: functions that are registered by name and weighed in `RewardConfig.extra`."""

from __future__ import annotations

import math
from collections.abc import Callable

from esper.leyline.errors import ConfigError
from esper.leyline.plugins import Register, telling
from esper.simic.rewards.config import COMPONENTS, RewardInput

RewardComponent = Callable[[RewardInput], float]
REWARD_COMPONENTS: Register[RewardComponent] = Register("reward component")


def reward_component(name: str) -> Callable[[RewardComponent], RewardComponent]:
    """Register the decorated function under a name. `reward.extra` has the weight that it is added to the total with."""
    if name in COMPONENTS["shaped"]:
        raise ConfigError(f"reward component {name!r}: that is one of Esper's own; expected another name")
    return REWARD_COMPONENTS.named(name)


def component_value(name: str, given: RewardInput) -> float:
    """What a registered component says of one decision: a finite number, or an error that names it."""
    entry = REWARD_COMPONENTS.find(name)
    with telling(f"reward component {name!r}", entry.file):
        value = entry.value(given)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f"reward component {name!r} in {entry.where} gave {value!r} for the decision after epoch {given.before.epoch}; "
            "expected a finite number"
        )
    return float(value)
