"""What each seed is worth: counterfactual configurations, and the values that follow from their accuracies.

A configuration is the set of slots that are switched on. The baseline is always the network as it is: a seed's contribution is its
accuracy minus the accuracy without that seed, in points. Magnitudes: within a few points; a single image of a 360-image split is 0.28.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from esper.kasmina.counterfactuals import Configuration

PAIRS_UP_TO = 3
"""Seeds up to which each pair of them is measured too."""


def configurations(blended: Sequence[str], fossils: Sequence[str], trials: Sequence[str]) -> list[Configuration]:
    """The configurations to evaluate, the network as it is first, each once.

    blended: slots whose seed has influence now, fossils among them. trials: slots in TRAINING, each shown at its target alpha.
    """
    base = frozenset(blended)
    wanted = [base, frozenset(fossils)]
    if blended:
        wanted += [base - {slot} for slot in blended] + [frozenset()]
    if len(blended) <= PAIRS_UP_TO:
        wanted += [base - set(pair) for pair in itertools.combinations(blended, 2)]
    wanted += [base | {slot} for slot in trials]
    return list(dict.fromkeys(wanted))


def interactions(blended: Sequence[str], accuracy: Mapping[Configuration, float]) -> dict[tuple[str, str], float]:
    """Synergy of each pair whose configurations were evaluated: v(all) - v(without a) - v(without b) + v(without both)."""
    base = frozenset(blended)
    return {
        (a, b): accuracy[base] - accuracy[base - {a}] - accuracy[base - {b}] + accuracy[base - {a, b}]
        for a, b in itertools.combinations(blended, 2)
        if base - {a, b} in accuracy
    }
