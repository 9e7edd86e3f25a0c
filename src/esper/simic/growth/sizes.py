"""The largest hosts that a config can draw, which room is made for: the same whichever host seeds are drawn."""

from __future__ import annotations

from itertools import product

from esper.simic.growth.config import GrowthConfig
from esper.tolaria.tasks import Family, Task

STRUCTURE = ("widths", "kernel", "depth", "slots", "width", "heads", "layers", "block")
"""Fields of a Member that say how its host is built; the others say how it is trained."""


def longest_budget(config: GrowthConfig, task: Task) -> int:
    """The most epochs that a host of the task can have."""
    family = config.fixed_family(task.family)
    own = family.standard.epochs
    return max(family.ranges.get("epochs", (own,))) if config.member == "family" else own


def most_slots(config: GrowthConfig, task: Task) -> int:
    """The most slots that a host of the task can have, over every way in which its family builds hosts."""
    member = config.member_for(task.family, 0)
    varied = {
        name: values
        for name, values in task.family.ranges.items()
        if config.member == "family" and name in STRUCTURE and name not in config.fix
    }
    most, family = 0, Family(standard=member)
    for values in product(*varied.values()):
        built = family.with_fixed(**dict(zip(varied, values, strict=True))).standard
        most = max(most, len(task.build_host(built, task.classes, 0)[1]))
    return most
