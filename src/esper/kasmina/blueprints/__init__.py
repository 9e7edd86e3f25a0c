"""Blueprints: what can grow in a slot, by the shape of the features there. Importing this package registers the built-in ones."""

from esper.kasmina.blueprints import feature_maps, tokens
from esper.kasmina.blueprints.feature_maps import GroupNorm
from esper.kasmina.blueprints.registry import (
    BLUEPRINTS,
    Blueprint,
    SlotShape,
    blueprint,
    build,
    get,
    names,
    parameter_count,
    unregister,
)
from esper.kasmina.blueprints.seed import LAYER_SCALE, Seed

__all__ = [
    "BLUEPRINTS",
    "LAYER_SCALE",
    "Blueprint",
    "GroupNorm",
    "Seed",
    "SlotShape",
    "blueprint",
    "build",
    "feature_maps",
    "get",
    "names",
    "parameter_count",
    "tokens",
    "unregister",
]
