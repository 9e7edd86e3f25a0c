"""A reward component: every parameter that is added costs something at once.

esper train ppo --plugins examples/my_reward.py --reward.extra thrift=0.1
"""

from __future__ import annotations

import esper


@esper.reward_component("thrift")
def thrift(step: esper.RewardInput) -> float:
    """Minus the parameters that the network gained with this decision, as a share of what it began with."""
    return (step.before.parameters - step.report.parameters) / step.report.start_parameters
