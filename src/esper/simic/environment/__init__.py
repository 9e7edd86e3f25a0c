"""The environment for everybody: growing a host, as Gymnasium has it. Importing this registers it; docs/environment.md explains it."""

# Before the rest: where gymnasium is missing, this import says so in one sentence.
from esper.simic import registration
from esper.simic.environment.actions import ActionError, Composites, Heads
from esper.simic.environment.hosts import growth_config
from esper.simic.environment.single import GrowthEnv
from esper.simic.environment.vector import GrowthVector
from esper.simic.environment.view import View

register_environments = registration.register_environments

__all__ = [
    "ActionError",
    "Composites",
    "GrowthEnv",
    "GrowthVector",
    "Heads",
    "View",
    "growth_config",
    "register_environments",
]
