"""What came out: accuracy with and without what was grown, the score, rewards by action, and how much of it was chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from esper.karn.episodes import Episode
from esper.leyline.actions import Op
from esper.leyline.events import RolledBack
from esper.leyline.stages import OCCUPIED
from esper.simic.statistics import Interval, interval

Score = Callable[[Episode], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Means over hosts, in points where they are accuracies; all on val, never on test."""

    score: Interval
    """Accuracy of the harvested network minus rent."""
    accuracy: Interval
    """Of the harvested network: host and fossils."""
    twin: float | None
    """Of the same hosts without growth; None where none were trained."""
    with_seeds: float | None
    without_seeds: float | None
    """At the last epoch, of hosts with seeds blended in: as they are, and with every seed switched off."""
    growth: float
    """Parameters of the harvested network, as multiples of the bare host's."""
    operations: float | None
    """Of training, counterfactuals included, as multiples of what the same hosts spend without growth; None where they are not counted."""
    reward: float
    """In an episode."""
    rollbacks: int
    rolled_back: float
    """Share of the episodes that the governor rolled back while seeds were in the network."""


def outcomes(episodes: Sequence[Episode], score: Score) -> Outcomes:
    """How the hosts ended. score: of an episode, in points."""
    results = [episode.result for episode in episodes]
    twins = [result.control_accuracy for result in results if result.control_accuracy is not None]
    last = [(step.val_accuracy, step.bare_accuracy) for step in (episode.steps[-1] for episode in episodes)]
    bare = [(whole, without) for whole, without in last if without is not None]
    return Outcomes(
        score=_over_hosts(episodes, score),
        accuracy=_over_hosts(episodes, lambda episode: episode.result.val_accuracy),
        twin=_mean(twins),
        with_seeds=_mean([whole for whole, _ in bare]),
        without_seeds=_mean([without for _, without in bare]),
        growth=float(np.mean([result.parameters / result.host_parameters for result in results])),
        operations=_operations(episodes),
        reward=float(np.mean([result.reward for result in results])),
        rollbacks=sum(result.rollbacks for result in results),
        rolled_back=float(np.mean([_rolled_back(episode) for episode in episodes])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """What decisions of one op earned at once."""

    n: int
    mean: float
    std: float


def reward_by_action(episodes: Sequence[Episode]) -> dict[str, Earned]:
    """The reward of the step itself, by op; what comes later is credited to later steps."""
    earned: dict[Op, list[float]] = {op: [] for op in Op}
    for step in (step for episode in episodes for step in episode.steps):
        earned[step.decision.op].append(step.reward)
    return {op.name: Earned(n=len(each), mean=float(np.mean(each)), std=float(np.std(each))) for op, each in earned.items() if each}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """How much chance in the decisions changes, over plays of the same hosts."""

    draws: int
    disagreement: float
    """How probable it is that two plays of a host decide on different ops at the same epoch, where both had a choice."""
    score_std: float
    """Standard deviation of the score between plays of one host, in points."""
    score_share: float | None
    """Share of the whole variance of the score that lies between plays of one host, not between hosts; None where all scores are equal."""
    seeds_std: float
    """Standard deviation of the number of seeds germinated, between plays of one host."""


def chance(episodes: Sequence[Episode], score: Score) -> Chance | None:
    """The variance of what a policy does; None when every host was played once."""
    by_host: dict[int, list[Episode]] = {}
    for episode in episodes:
        by_host.setdefault(episode.host, []).append(episode)
    draws = max(map(len, by_host.values()))
    if draws < 2:
        return None
    differ = [
        first.decision.op is not second.decision.op
        for plays in by_host.values()
        for one, other in combinations(plays, 2)
        for first, second in zip(one.steps, other.steps, strict=False)
        if first.choice and second.choice
    ]
    scores = [[score(episode) for episode in plays] for plays in by_host.values()]
    within, whole = float(np.mean([np.var(plays) for plays in scores])), float(np.var(np.concatenate(scores)))
    return Chance(
        draws=draws,
        disagreement=float(np.mean(differ)) if differ else 0.0,
        score_std=_within(scores),
        score_share=within / whole if whole > 0.0 else None,
        seeds_std=_within([[float(episode.result.germinated) for episode in plays] for plays in by_host.values()]),
    )


def _within(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation in a group, from the mean of all groups' variances."""
    return float(np.sqrt(np.mean([np.var(group, ddof=1) for group in groups])))


def _over_hosts(episodes: Sequence[Episode], figure: Callable[[Episode], float]) -> Interval:
    """Plays of one host are no independent hosts: each host counts by its mean."""
    by_host: dict[int, list[float]] = {}
    for episode in episodes:
        by_host.setdefault(episode.host, []).append(figure(episode))
    return interval([float(np.mean(values)) for values in by_host.values()])


def _operations(episodes: Sequence[Episode]) -> float | None:
    """In the first epoch nothing has grown, and without growth every epoch is like it."""
    bare = sum(episode.steps[0].operations * episode.budget for episode in episodes)
    return sum(episode.result.operations for episode in episodes) / bare if bare else None


def _rolled_back(episode: Episode) -> bool:
    return any(
        isinstance(event, RolledBack) and (event.pruned or any(seed.stage in OCCUPIED for seed in step.seeds))
        for step in episode.steps
        for event in step.events
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
