"""What a policy responds to: the direction of the loss, and whether a seed is there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from esper.karn.episodes import Episode, Step
from esper.leyline.actions import Op
from esper.leyline.stages import LIVE
from esper.simic.statistics import Interval, interval

CLEAR_TREND = 0.5
"""Slope of the loss per epoch, in units of its noise, from which it counts as falling or rising: over the six epochs of the window about
two standard errors of a slope that is 0."""

CONDITIONS: dict[str, Callable[[Step], bool]] = {
    "loss falling": lambda step: step.trend is not None and step.trend <= -CLEAR_TREND,
    "loss flat": lambda step: step.trend is not None and abs(step.trend) < CLEAR_TREND,
    "loss rising": lambda step: step.trend is not None and step.trend >= CLEAR_TREND,
    "no live seed": lambda step: not _live(step),
    "a live seed": lambda step: _live(step),
}
"""What is told apart; a step before there is a trend counts for none of the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How probable it is, in such a situation, that something is done."""

    steps: int
    """Decisions that left a choice."""
    act: Interval | None
    """Probability of any op other than WAIT: the mean over hosts, each by its own mean; None without such steps."""
    germinations: int
    """Of these, decisions at which GERMINATE was legal."""
    germinate: Interval | None
    """Probability of GERMINATE there."""


def responses(episodes: Sequence[Episode]) -> dict[str, Response]:
    """What is done in each situation. Of a policy, by its probabilities; of a controller, by what it did."""
    return {name: _response(episodes, holds) for name, holds in CONDITIONS.items()}


def _response(episodes: Sequence[Episode], holds: Callable[[Step], bool]) -> Response:
    acts: dict[int, list[float]] = {}
    germinate: dict[int, list[float]] = {}
    for episode in episodes:
        for place, step in enumerate(episode.steps):
            if not step.choice or not holds(step):
                continue
            op = _probabilities(episode, place)
            acts.setdefault(episode.host, []).append(1.0 - op[Op.WAIT])
            if step.legal[Op.GERMINATE]:
                germinate.setdefault(episode.host, []).append(op[Op.GERMINATE])
    return Response(steps=_count(acts), act=_over_hosts(acts), germinations=_count(germinate), germinate=_over_hosts(germinate))


def _probabilities(episode: Episode, place: int) -> list[float]:
    """Of each op at a step; those of a controller are 0 and 1."""
    if episode.mind is not None:
        return [float(each) for each in episode.mind.op_probability[place]]
    return [float(op is episode.steps[place].decision.op) for op in Op]


def _count(by_host: dict[int, list[float]]) -> int:
    return sum(map(len, by_host.values()))


def _over_hosts(by_host: dict[int, list[float]]) -> Interval | None:
    """Hosts are independent of one another, steps of one are not. No probability is below 0 or above 1."""
    if not by_host:
        return None
    found = interval([float(np.mean(values)) for values in by_host.values()])
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _live(step: Step) -> bool:
    return any(seed.stage in LIVE for seed in step.seeds)
