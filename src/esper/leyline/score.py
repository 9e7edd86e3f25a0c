"""What a grown network is worth: its accuracy in points minus rent, the price of its parameters.

Rewards, the heuristic and every comparison of controllers count with these two functions and no others.
"""

from __future__ import annotations

import math

RENT_DOUBLINGS = 4
"""Rent is quoted for a network that grew sixteenfold, which is four doublings."""

MOST_PARAMETERS = 2**62
"""Counts beyond this are taken for it, so that every logarithm is finite."""


def rent_points(parameters: float, host_parameters: float, rent: float, cap: float) -> float:
    """rent * log2(parameters / host_parameters) / 4 points, from 0 to cap, for a host that grew to so many parameters."""
    growth = min(parameters, MOST_PARAMETERS) / max(1, host_parameters)
    return min(rent * math.log2(max(1.0, growth)) / RENT_DOUBLINGS, cap)


def score(accuracy: float, parameters: float, host_parameters: float, rent: float, cap: float) -> float:
    """Accuracy in points minus the rent of a host that grew to so many parameters."""
    return accuracy - rent_points(parameters, host_parameters, rent, cap)
