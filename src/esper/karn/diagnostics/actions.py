"""What is decided: how often each op, early and late, and how sure a policy is of each head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.karn.episodes import Episode
from esper.leyline.actions import HEADS_FOR_OP, Head, Op, value_text

PHASES = ("early", "middle", "late")
"""Thirds of a host's budget."""
ALL = "all"
"""Beside the phases: the whole episode."""


def phase_of(epoch: int, budget: int) -> str:
    """The third of the budget that an epoch, counted from 1, lies in."""
    return PHASES[min(len(PHASES) - 1, len(PHASES) * (epoch - 1) // max(1, budget))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What was decided where there was a choice."""

    decisions: int
    choices: int
    """Decisions at which something besides WAIT was legal."""
    counts: dict[str, int]
    """Of each op, at all decisions."""
    shares: dict[str, dict[str, float]]
    """By phase, and over all: of each op among the decisions that left a choice. Empty for a phase that left none."""
    waiting: float | None
    """Share of the episodes with a choice in which nothing but WAIT was decided; None where there was no choice at all."""
    values: dict[str, dict[str, int]]
    """By head other than op: how often each value was chosen, where the head mattered."""


def action_distribution(episodes: Sequence[Episode]) -> Actions:
    """How often what is decided."""
    counts: Counter[str] = Counter()
    chosen: dict[str, Counter[str]] = {phase: Counter() for phase in (ALL, *PHASES)}
    values: dict[str, Counter[str]] = {head.value: Counter() for head in Head if head is not Head.OP}
    waiting = []
    for episode in episodes:
        choices = [step for step in episode.steps if step.choice]
        if choices:
            waiting.append(not any(step.acted for step in choices))
        for step in episode.steps:
            counts[step.decision.op.name] += 1
            if step.choice:
                for phase in (ALL, phase_of(step.epoch, episode.budget)):
                    chosen[phase][step.decision.op.name] += 1
            for head in HEADS_FOR_OP[step.decision.op][1:]:
                values[head.value][value_text(getattr(step.decision, head.value))] += 1
    return Actions(
        decisions=counts.total(),
        choices=chosen[ALL].total(),
        counts={op.name: counts[op.name] for op in Op},
        shares={phase: {op.name: ops[op.name] / ops.total() for op in Op} if ops else {} for phase, ops in chosen.items()},
        waiting=float(np.mean(waiting)) if waiting else None,
        values={head: dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))) for head, found in values.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Figures of so many steps."""

    n: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadEntropy:
    """How open a head's choice is, given the heads before it: 0 settled, 1 as good as drawn by lot among what is legal."""

    phases: dict[str, Spread]
    """By phase, and over all; only over steps at which the head mattered and had a choice, and no entry where there was none."""
    doubt: float
    """Mean over episodes of its largest value in each: near 0, the head is never in doubt."""
    commonest: str
    """What is chosen most often there."""
    share: float
    """And in which share of those steps."""


def head_entropies(episodes: Sequence[Episode]) -> dict[str, HeadEntropy]:
    """Normalised conditional entropy of each head, of policies; nothing for controllers, which have none."""
    found = {}
    for place, head in enumerate(Head):
        by_phase: dict[str, list[float]] = {phase: [] for phase in (ALL, *PHASES)}
        largest, chosen = [], Counter[str]()
        for episode in episodes:
            if episode.mind is None:
                continue
            free = episode.mind.legal[:, place] > 1
            for step, entropy in zip(np.flatnonzero(free), episode.mind.entropy[free, place], strict=True):
                for phase in (ALL, phase_of(episode.steps[step].epoch, episode.budget)):
                    by_phase[phase].append(float(entropy))
                chosen[value_text(getattr(episode.steps[step].decision, head.value))] += 1
            if free.any():
                largest.append(float(episode.mind.entropy[free, place].max()))
        if largest:
            phases = {phase: spread(values) for phase, values in by_phase.items() if values}
            commonest, count = chosen.most_common(1)[0]
            share = count / chosen.total()
            found[head.value] = HeadEntropy(phases=phases, doubt=float(np.mean(largest)), commonest=commonest, share=share)
    return found


def spread(values: Sequence[float]) -> Spread:
    """Mean, least and largest."""
    return Spread(n=len(values), mean=float(np.mean(values)), low=float(min(values)), high=float(max(values)))
