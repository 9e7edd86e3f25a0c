"""The lives of seeds: when they began, what became of them, what they brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.karn.diagnostics.actions import PHASES, Spread, phase_of, spread
from esper.karn.episodes import Episode
from esper.leyline.actions import Op
from esper.leyline.events import SeedLife

OUTCOMES = ("fossilized", "pruned", "unfinished")
"""What becomes of a seed; see SeedLife."""

BINS = 10
"""Parts of the budget that germinations are counted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When seeds are germinated, how long they live, and when anything is done at all."""

    first: Spread | None
    """Share of the budget that is spent when a host's first seed is germinated, over the hosts that have one."""
    germinations: tuple[float, ...]
    """Seeds germinated in each tenth of the budget, in an episode on average."""
    lifetimes: dict[str, Spread]
    """Epochs from germination to the end, by outcome."""
    acts: dict[str, dict[str, float]]
    """By phase: acts of each op other than WAIT in an episode, on average."""


def timing(episodes: Sequence[Episode]) -> Timing:
    """The patterns in time."""
    # The first tenth ends with the epoch at which a tenth of the budget is spent.
    tenths = Counter(-(-BINS * life.born // episode.budget) - 1 for episode in episodes for life in episode.result.seeds)
    acts: Counter[tuple[str, Op]] = Counter()
    for episode in episodes:
        acts.update((phase_of(step.epoch, episode.budget), step.decision.op) for step in episode.steps)
    lives = [life for episode in episodes for life in episode.result.seeds]
    lifetimes = {outcome: [life.ended - life.born for life in lives if life.outcome == outcome] for outcome in OUTCOMES}
    firsts = [episode.result.seeds[0].born / episode.budget for episode in episodes if episode.result.seeds]
    return Timing(
        first=spread(firsts) if firsts else None,
        germinations=tuple(tenths[number] / len(episodes) for number in range(BINS)),
        lifetimes={outcome: spread(epochs) for outcome, epochs in lifetimes.items() if epochs},
        acts={phase: {op.name: acts[phase, op] / len(episodes) for op in Op if op is not Op.WAIT} for phase in PHASES},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """What became of some seeds."""

    created: int
    fossilized: int
    pruned: int
    unfinished: int
    survival: float | None
    """Share that was fossilised; None of no seeds."""
    contribution: float | None
    """Mean of what those that were ever blended in brought, in points of val accuracy; None where none was."""


def success(lives: Sequence[SeedLife]) -> Success:
    """Count outcomes."""
    count = {outcome: sum(life.outcome == outcome for life in lives) for outcome in OUTCOMES}
    brought = [life.contribution for life in lives if life.contribution is not None]
    return Success(
        created=len(lives),
        survival=count["fossilized"] / len(lives) if lives else None,
        contribution=float(np.mean(brought)) if brought else None,
        **count,
    )


def seed_success(episodes: Sequence[Episode]) -> dict[str, dict[str, Success]]:
    """Outcomes of all seeds, and by blueprint, slot and style."""
    lives = [life for episode in episodes for life in episode.result.seeds]
    found = {"all": {"all": success(lives)}}
    for key in ("blueprint", "slot", "style"):
        values = sorted({getattr(life, key) for life in lives})
        found[key] = {value: success([life for life in lives if getattr(life, key) == value]) for value in values}
    return found
