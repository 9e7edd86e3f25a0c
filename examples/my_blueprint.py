"""A blueprint: a convolution that sees farther than the built-in ones.

esper train heuristic --plugins examples/my_blueprint.py
"""

from __future__ import annotations

from torch import nn

import esper
from esper.kasmina.blueprints import GroupNorm
from esper.leyline.reports import Topology


@esper.blueprint("far_conv", Topology.MAP2D, purpose="a 5x5 convolution for coarse patterns")
def far_conv(shape: esper.SlotShape) -> nn.Module:
    """The branch f of a seed x + gamma * f(x); it keeps the shape of its input."""
    return nn.Sequential(GroupNorm(shape.width), nn.ReLU(), nn.Conv2d(shape.width, shape.width, 5, padding=2))
