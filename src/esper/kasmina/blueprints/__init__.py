"""Blueprints: what can grow in a slot, by the shape of the features there. Importing this package registers the built-in ones."""

from esper.kasmina.blueprints.feature_maps import GroupNorm
from esper.kasmina.blueprints.registry import BLUEPRINTS, SlotShape, blueprint, build, names, parameter_count, unregister
from esper.kasmina.blueprints.seed import Seed
from esper.kasmina.blueprints.tokens import SelfAttention

__all__ = [
    "BLUEPRINTS",
    "GroupNorm",
    "Seed",
    "SelfAttention",
    "SlotShape",
    "blueprint",
    "build",
    "names",
    "parameter_count",
    "unregister",
]
