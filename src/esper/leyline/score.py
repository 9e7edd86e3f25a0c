"""What a grown network is worth: its accuracy in points minus rent, the price of its parameters.

Rewards, the heuristic and every comparison of controllers count with these two functions and no others.
"""

from __future__ import annotations

import math

RENT_DOUBLINGS = 4
"""Rent is quoted for a network that grew sixteenfold, which is four doublings."""
MOST_DOUBLINGS = 8
"""Growth beyond this, 256-fold, costs no more: no network pays more than twice its rent."""
USUAL_RENT = 5.0
"""Points that a network costs which grew sixteenfold, where nobody says otherwise."""
MOST_RENT = 100.0
"""The highest rent: whoever grows sixteenfold must bring all the points there are."""

MOST_PARAMETERS = 2**62
"""Counts beyond this are taken for it, so that every logarithm is finite."""


def rent_points(parameters: float, host_parameters: float, rent: float) -> float:
    """rent * log2(parameters / host_parameters) / 4 points, from 0 to twice the rent, for a host that grew to so many parameters."""
    growth = min(parameters, MOST_PARAMETERS) / max(1, host_parameters)
    return rent * min(math.log2(max(1.0, growth)), MOST_DOUBLINGS) / RENT_DOUBLINGS


def score(accuracy: float, parameters: float, host_parameters: float, rent: float) -> float:
    """Accuracy in points minus the rent of a host that grew to so many parameters."""
    return accuracy - rent_points(parameters, host_parameters, rent)
