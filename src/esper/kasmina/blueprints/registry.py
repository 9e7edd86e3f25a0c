"""The register of blueprints: which modules can grow in a slot of a given shape, and how they are built and counted.

A user's own blueprint is registered like the built-in ones:

    @blueprint("wide_conv", Topology.MAP2D, purpose="a 5x5 convolution for coarse patterns")
    def wide_conv(shape: SlotShape) -> nn.Module:
        return nn.Sequential(GroupNorm(shape.width), nn.ReLU(), nn.Conv2d(shape.width, shape.width, 5, padding=2))
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from esper.kasmina.blueprints.seed import Seed
from esper.leyline.errors import BlueprintError, SlotError, unknown
from esper.leyline.reports import Topology

TRAILING_DIMENSIONS: dict[Topology, int] = {Topology.MAP2D: 2, Topology.MAP1D: 1, Topology.TOKENS: 0, Topology.VECTOR: 0}
"""How many dimensions lie behind the channels: (B, C, H, W) has two, (B, T, d) none."""


@dataclass(frozen=True, slots=True)
class SlotShape:
    """What a blueprint must know of the slot it grows in."""

    topology: Topology
    width: int
    """Channels C or features d."""
    causal: bool = True
    """Token attention may not look ahead. True is the safe side: a language model that looks ahead learns to cheat."""

    def __post_init__(self) -> None:
        # A LayerNorm over a single feature is always zero, so nothing behind it could ever learn.
        least = 1 if self.trailing else 2
        if self.width < least:
            raise SlotError(f"a slot of {self.topology} features needs a width of at least {least}; found {self.width}")

    @property
    def trailing(self) -> int:
        """Dimensions behind the channels: 2 for maps (B, C, H, W), 1 for (B, C, T), 0 for tokens and vectors."""
        return TRAILING_DIMENSIONS[self.topology]


Builder = Callable[[SlotShape], nn.Module]
"""Makes the branch f of a seed x + gamma * f(x): on the CPU, in float32, with weights drawn from torch's global generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One entry of the register."""

    name: str
    topology: Topology
    purpose: str
    """One line that says what it is for."""
    builder: Builder
    where: str
    """File and line that registered it."""


SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

BLUEPRINTS: dict[tuple[Topology, str], Blueprint] = {}
"""Every blueprint by topology and name, in the order of registration."""


def blueprint(name: str, topology: Topology | Iterable[Topology], *, purpose: str) -> Callable[[Builder], Builder]:
    """Register the decorated builder under `name` for one or several topologies.

    The builder gets a `SlotShape` and returns the branch f; the seed is always `x + gamma * f(x)`, with gamma added for it.
    A branch that learns keeps the shape of its input, zero-initialises nothing in front of a norm, and ends in a linear
    operation, not in a ReLU. In front of feature maps use `esper.kasmina.blueprints.GroupNorm` rather than torch's.
    """
    wanted = [named_topology(kind) for kind in ([topology] if isinstance(topology, str) else topology)]
    if not wanted:
        raise BlueprintError("a blueprint needs at least one topology; known: " + ", ".join(Topology))
    caller = traceback.extract_stack(limit=2)[0]
    where = f"{caller.filename}:{caller.lineno}"
    if not SNAKE_CASE.fullmatch(name):
        raise BlueprintError(f"blueprint name {name!r} at {where}: expected snake_case, such as 'conv_light'")
    if not purpose.strip() or "\n" in purpose.strip():
        raise BlueprintError(f"blueprint {name!r} at {where}: purpose must be one line that says what it is for; found {purpose!r}")

    def register(builder: Builder) -> Builder:
        for kind in wanted:
            if (kind, name) in BLUEPRINTS:
                first = BLUEPRINTS[kind, name].where
                raise BlueprintError(f"blueprint {name!r} at {where}: {kind} has one of that name, registered at {first}")
        for kind in wanted:
            BLUEPRINTS[kind, name] = Blueprint(name=name, topology=kind, purpose=purpose.strip(), builder=builder, where=where)
        return builder

    return register


def unregister(name: str, topology: Topology) -> None:
    """Take a blueprint out of the register, for instance before its cell in a notebook is run again."""
    del BLUEPRINTS[topology, get(topology, name).name]


def get(topology: Topology, name: str) -> Blueprint:
    """The blueprint of that name for that topology; an error with the nearest name, or the topologies it is for, if there is none."""
    if (topology, name) in BLUEPRINTS:
        return BLUEPRINTS[topology, name]
    elsewhere = [kind for kind, other in BLUEPRINTS if other == name]
    if elsewhere:
        here = ", ".join(names(topology))
        raise BlueprintError(f"blueprint {name!r} is for {', '.join(elsewhere)}; the slot is {topology}, which has: {here}")
    raise unknown("blueprint", name, names(topology))


def names(topology: Topology) -> tuple[str, ...]:
    """The names for a topology in the order of registration, which is the order in a policy's blueprint head."""
    return tuple(name for kind, name in BLUEPRINTS if kind == topology)


def build(name: str, shape: SlotShape, *, checkpoint: bool = False) -> Seed:
    """A new seed for a slot of that shape, on torch's default device; `checkpoint` saves memory at the price of time (see `Seed`)."""
    entry = get(shape.topology, name)
    branch = entry.builder(shape)
    if not isinstance(branch, nn.Module):
        raise BlueprintError(f"blueprint {name!r} at {entry.where}: its builder must return an nn.Module; found {type(branch).__name__}")
    return Seed(branch, shape, checkpoint=checkpoint)


def parameter_count(name: str, shape: SlotShape) -> int:
    """Parameters of the seed, gamma included, counted without allocating any and without drawing a random number."""
    return _counted(get(shape.topology, name), shape)


@cache
def _counted(blueprint: Blueprint, shape: SlotShape) -> int:
    # Remembered: every episode of every host asks for the price of everything that could grow in it.
    with torch.device("meta"):
        return sum(p.numel() for p in build(blueprint.name, shape).parameters())


def named_topology(kind: Topology | str) -> Topology:
    """A topology, given as such or by its name; raises UnknownNameError for anything else."""
    if kind not in list(Topology):
        raise unknown("topology", kind, [known.value for known in Topology])
    return Topology(kind)
