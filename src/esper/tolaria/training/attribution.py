"""What each seed is worth: counterfactual configurations, and the values that follow from their accuracies.

A configuration is the set of slots that are switched on. The baseline is always the network as it is: a seed's contribution is its
accuracy minus the accuracy without that seed, in points. Magnitudes: within a few points; a single image of a 360-image split is 0.28.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Configuration = frozenset[str]
Attribution = Literal["loo", "full"]
"""`loo`: each seed off, all off, pairs for up to three seeds. `full`: also Shapley values, exact up to four seeds, sampled beyond."""

EXACT_UP_TO = 4
SAMPLED_ORDERS = 16
"""Orders drawn for sampled Shapley values; each is used forwards and backwards."""


def configurations(
    blended: Sequence[str], fossils: Sequence[str], trials: Sequence[str], attribution: Attribution, seed: int
) -> list[Configuration]:
    """The configurations to evaluate, the network as it is first, each once.

    blended: slots whose seed has influence now, fossils among them. trials: slots in TRAINING, each shown at its target alpha.
    """
    base = frozenset(blended)
    wanted = [base, frozenset(fossils)]
    if blended:
        wanted += [base - {slot} for slot in blended] + [frozenset()]
    if len(blended) <= 3 or attribution == "full":
        wanted += [base - set(pair) for pair in itertools.combinations(blended, 2)]
    wanted += [base | {slot} for slot in trials]
    if attribution == "full":
        if len(blended) <= EXACT_UP_TO:
            wanted += [frozenset(c) for n in range(len(blended) + 1) for c in itertools.combinations(blended, n)]
        else:
            wanted += [frozenset(order[:n]) for order in shapley_orders(blended, seed) for n in range(len(order) + 1)]
    return list(dict.fromkeys(wanted))


def shapley_orders(players: Sequence[str], seed: int) -> list[tuple[str, ...]]:
    """Random orders in which the players join, each followed by its reverse (antithetic), from a stream of its own."""
    stream = random.Random(f"shapley/{seed}")
    orders: list[tuple[str, ...]] = []
    for _ in range(SAMPLED_ORDERS):
        order = tuple(stream.sample(list(players), len(players)))
        orders += [order, order[::-1]]
    return orders


def shapley(players: Sequence[str], value: Callable[[Configuration], float], seed: int) -> dict[str, float]:
    """Shapley value of each player: exact for up to four, the mean over `shapley_orders` beyond. Sums to v(all) - v(none)."""
    if len(players) > EXACT_UP_TO:
        return _sampled(players, value, shapley_orders(players, seed))
    n = len(players)
    result = {}
    for player in players:
        others = [p for p in players if p != player]
        total = 0.0
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for coalition in itertools.combinations(others, size):
                total += weight * (value(frozenset((*coalition, player))) - value(frozenset(coalition)))
        result[player] = total
    return result


def _sampled(players: Sequence[str], value: Callable[[Configuration], float], orders: Sequence[tuple[str, ...]]) -> dict[str, float]:
    totals = dict.fromkeys(players, 0.0)
    for order in orders:
        for n, player in enumerate(order):
            totals[player] += value(frozenset(order[: n + 1])) - value(frozenset(order[:n]))
    return {player: total / len(orders) for player, total in totals.items()}


def interactions(blended: Sequence[str], accuracy: Mapping[Configuration, float]) -> dict[tuple[str, str], float]:
    """Synergy of each pair whose configurations were evaluated: v(all) - v(without a) - v(without b) + v(without both)."""
    base = frozenset(blended)
    return {
        (a, b): accuracy[base] - accuracy[base - {a}] - accuracy[base - {b}] + accuracy[base - {a, b}]
        for a, b in itertools.combinations(blended, 2)
        if base - {a, b} in accuracy
    }
