"""The environment for everybody: growing a host, as Gymnasium has it. Importing this registers it; docs/environment.md explains it."""

# Before the rest: where gymnasium is missing, this import says so in one sentence.
from esper.simic import registration
from esper.simic.environment.actions import ActionError
from esper.simic.environment.single import GrowthEnv
from esper.simic.environment.vector import GrowthVector

__all__ = ["ActionError", "GrowthEnv", "GrowthVector", "registration"]
