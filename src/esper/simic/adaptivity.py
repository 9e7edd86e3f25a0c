"""What it is worth to decide by the host: plans chosen for each host by what can be known of it, against the best single plan for all.

Whatever is chosen by figures looks better in those figures than it is, so everything here is cross-fitted: a choice is made on some
hosts and counted on others. The best plan of each host, in hindsight, is mostly luck; it is given as `hindsight` for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.simic.statistics import LEAST_HOSTS, Interval, interval

Array = NDArray[np.float64]

FOLDS, PARTITIONS = 8, 6
"""Parts that hosts are split into, each judged by a choice made on the others; and how often anew, to average over luck."""
STRENGTHS = (0.03, 0.3, 3.0, math.inf, None)
"""Ridge penalties to choose from, in units of a feature's variance. With an infinite one the rent alone decides, with None nothing does:
the best single plan is taken for all."""
RIVALS = 5
"""Plans next to the best one."""
SIGNIFICANCE, POWERED = 1.96, 0.84
"""Quantiles of the normal distribution for a 95 % interval, and for a power of 80 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What plans came to on hosts. Whoever chooses one knows the rent, and that neither accuracy nor size depends on it."""

    accuracy: Array
    """[hosts, plans]: of the harvested network, in points."""
    size: Array
    """[hosts, plans]: what its growth costs at a rent of one point."""
    rent: Array
    """[hosts]: of each host."""

    @property
    def scores(self) -> Array:
        """[hosts, plans]: accuracy minus rent."""
        return self.accuracy - self.rent[:, None] * self.size

    def of(self, hosts: NDArray[np.int64]) -> Outcomes:
        """Those of some hosts."""
        return Outcomes(accuracy=self.accuracy[hosts], size=self.size[hosts], rent=self.rent[hosts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptivity:
    """The outcome, in points of score; the means are over hosts."""

    best: int
    """The best single plan, by its mean over all hosts."""
    single: Interval
    """What the best single plan scores, chosen on other hosts than it is counted on."""
    before: Interval
    """How much more is scored by a plan chosen by what is known of a host before it trains."""
    during: Interval
    """The same by what its first epochs show as well."""
    hindsight: float
    """The same if the best plan of each host were known: luck included."""
    spread: float
    """Standard deviation over hosts of the difference between the plan chosen during training and the best single one."""
    rivals: float
    """The same between the best single plan and the next ones: how far apart two ways to decide are on a host."""
    chosen: tuple[int, ...]
    """For each host the plan that is chosen for it most often, during training."""


def hosts_needed(spread: float, points: float) -> int | None:
    """Hosts with which a comparison finds a difference of so many points in four of five cases, if it spreads so over hosts."""
    return max(LEAST_HOSTS, math.ceil(((SIGNIFICANCE + POWERED) * spread / points) ** 2)) if points > 0 else None


def adaptivity(outcomes: Outcomes, before: Array, during: Array, seed: int = 0) -> Adaptivity:
    """From what plans came to on hosts, and what else is known of the hosts, [hosts, features], before and while they train."""
    scores = outcomes.scores
    hosts, plans = scores.shape
    values = {name: np.zeros(hosts) for name in ("single", "before", "during")}
    picks = np.zeros((hosts, plans))
    known = {"before": before, "during": np.concatenate((before, during), axis=1)}
    for partition in range(PARTITIONS):
        for test, train in _folds(hosts, min(FOLDS, hosts), seed * PARTITIONS + partition):
            values["single"][test] += scores[test, scores[train].mean(0).argmax()] / PARTITIONS
            for name, features in known.items():
                plan = chosen(outcomes.of(train), features[train], features[test], outcomes.rent[test], seed)
                values[name][test] += scores[test, plan] / PARTITIONS
                if name == "during":
                    picks[test, plan] += 1
    gains = {name: values[name] - values["single"] for name in known}
    best = int(scores.mean(0).argmax())
    return Adaptivity(
        best=best,
        single=interval(values["single"]),
        before=interval(gains["before"]),
        during=interval(gains["during"]),
        hindsight=float(scores.max(1).mean() - values["single"].mean()),
        spread=float(gains["during"].std(ddof=1)),
        rivals=_rivals(scores, best),
        chosen=tuple(int(plan) for plan in picks.argmax(1)),
    )


def _rivals(scores: Array, best: int) -> float:
    """The median, over the next best plans, of how much their difference from the best one spreads over hosts."""
    order = [plan for plan in np.argsort(-scores.mean(0), kind="stable") if plan != best][:RIVALS]
    return float(np.median([(scores[:, plan] - scores[:, best]).std(ddof=1) for plan in order])) if order else 0.0


def chosen(outcomes: Outcomes, known: Array, asked: Array, rent: Array, seed: int = 0) -> NDArray[np.int64]:
    """The plan for each host that is asked about, of which features and rent are known, by what came of plans on others."""
    return np.asarray(expected(outcomes, known, asked, rent, seed).argmax(1), dtype=np.int64)


def expected(outcomes: Outcomes, known: Array, asked: Array, rent: Array, seed: int = 0) -> Array:
    """[hosts asked about, plans]: what each plan is expected to score on each of them beside the others, by what came of plans on hosts.

    How far features are trusted is itself cross-fitted.
    """
    scores, earned = outcomes.scores, dict.fromkeys(STRENGTHS, 0.0)
    for test, train in _folds(len(scores), min(5, len(scores)), seed):
        for strength in STRENGTHS:
            plans = _expected(outcomes.of(train), known[train], known[test], outcomes.rent[test], strength).argmax(1)
            earned[strength] += float(scores[test, plans].sum())
    # Of two that are as good the one that trusts features less.
    best = max(STRENGTHS, key=lambda strength: (round(earned[strength], 9), STRENGTHS.index(strength)))
    return _expected(outcomes, known, asked, rent, best)


def _expected(outcomes: Outcomes, known: Array, asked: Array, rent: Array, strength: float | None) -> Array:
    """What is predicted of each plan's accuracy, minus the host's rent for what is predicted of its size."""
    if strength is None:
        return np.tile(outcomes.scores.mean(0), (len(asked), 1))
    accuracy, size = (_predicted(each, known, asked, strength) for each in (outcomes.accuracy, outcomes.size))
    return np.asarray(accuracy - rent[:, None] * size)


def _predicted(values: Array, known: Array, asked: Array, strength: float) -> Array:
    """[hosts asked about, plans]: kernel ridge regression of what each plan has beside the others."""
    beside = values - values.mean(1, keepdims=True)  # how hard a host is says nothing about which plan suits it
    if math.isinf(strength):
        return np.tile(beside.mean(0), (len(asked), 1))
    centre, scale = known.mean(0), known.std(0)
    first, second = ((each - centre) / np.where(scale > 0, scale, 1.0) for each in (known, asked))
    similar = _kernel(first, first)
    weights = np.linalg.solve(similar + strength * len(values) ** 0.5 * np.eye(len(values)), beside - beside.mean(0))
    return np.asarray(beside.mean(0) + _kernel(second, first) @ weights)


def _kernel(first: Array, second: Array) -> Array:
    """How alike hosts are: features and their products, so that a narrow host with much data is a kind of its own."""
    return (1.0 + first @ second.T / max(1, first.shape[1])) ** 2 - 1.0


def _folds(hosts: int, parts: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each part of the hosts, in a random order, its numbers and those of all others."""
    order = np.random.default_rng([seed, hosts]).permutation(hosts)
    split = np.array_split(order, parts)
    return [(part, np.concatenate([other for other in split if other is not part])) for part in split]


def encoded(values: Sequence[Sequence[object]]) -> Array:
    """[hosts, features] of columns of plain values: few different ones become one feature each, many numbers one feature in order.

    Columns in which all hosts are alike tell nothing and are left out.
    """
    columns: list[Array] = []
    for column in zip(*values, strict=True):
        different = sorted(set(column), key=repr)
        if len(different) > 6 and all(isinstance(each, int | float) for each in different):
            columns.append(np.asarray(column, dtype=np.float64))
        elif len(different) > 1:
            columns += [np.asarray([each == value for each in column], dtype=np.float64) for value in different]
    return np.stack(columns, axis=1) if columns else np.zeros((len(values), 0))
