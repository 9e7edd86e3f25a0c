"""The lives of seeds, put together from what was recorded: where and when each began, what became of it, what it brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from esper.karn.diagnostics.actions import PHASES, Spread, phase_of, spread
from esper.karn.episodes import Episode
from esper.leyline.actions import Op
from esper.leyline.events import StageChanged
from esper.leyline.stages import BLENDED, Stage

Outcome = Literal["fossilized", "pruned", "unfinished"]
OUTCOMES: tuple[Outcome, ...] = ("fossilized", "pruned", "unfinished")
"""What becomes of a seed: part of the network for good, removed, or still alive at the end of the budget and dropped then."""

BINS = 10
"""Parts of the budget that germinations are counted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One seed."""

    slot: str
    blueprint: str
    style: str
    born: int
    """The epoch after which it was germinated."""
    share: float
    """The same as a share of the budget."""
    epochs: int
    """From germination to its outcome."""
    outcome: Outcome = "unfinished"
    contribution: float | None = None
    """The last that was measured while it was blended in, in points of val accuracy; None if it never was."""


def lives_of(episode: Episode) -> list[Life]:
    """Every seed of an episode, in the order of their births."""
    alive: dict[str, Life] = {}
    lives: list[Life] = []
    for step in episode.steps:
        for seed in step.seeds:
            if seed.slot in alive and seed.stage in BLENDED and seed.contribution is not None:
                alive[seed.slot] = replace(alive[seed.slot], contribution=seed.contribution)
        for event in step.events:
            if not isinstance(event, StageChanged):
                continue
            if event.after is Stage.GERMINATED:
                style = step.decision.style.name if step.decision.op is Op.GERMINATE else ""
                share = step.epoch / episode.budget
                alive[event.slot] = Life(slot=event.slot, blueprint=event.blueprint, style=style, born=step.epoch, share=share, epochs=0)
            elif event.slot in alive and event.after in (Stage.FOSSILIZED, Stage.PRUNED):
                life = alive.pop(event.slot)
                outcome: Outcome = "fossilized" if event.after is Stage.FOSSILIZED else "pruned"
                lives.append(replace(life, epochs=step.epoch - life.born, outcome=outcome))
    lives += [replace(life, epochs=episode.budget - life.born) for life in alive.values()]
    return sorted(lives, key=lambda life: (life.born, life.slot))


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
    every = [lives_of(episode) for episode in episodes]
    # The first tenth ends with the epoch at which a tenth of the budget is spent.
    tenths = Counter(-(-BINS * life.born // episode.budget) - 1 for episode, lives in zip(episodes, every, strict=True) for life in lives)
    acts: Counter[tuple[str, Op]] = Counter()
    for episode in episodes:
        acts.update((phase_of(step.epoch, episode.budget), step.decision.op) for step in episode.steps)
    lifetimes = {outcome: [life.epochs for lives in every for life in lives if life.outcome == outcome] for outcome in OUTCOMES}
    firsts = [lives[0].share for lives in every if lives]
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


def success(lives: Sequence[Life]) -> Success:
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
    lives = [life for episode in episodes for life in lives_of(episode)]
    found = {"all": {"all": success(lives)}}
    for key in ("blueprint", "slot", "style"):
        values = sorted({getattr(life, key) for life in lives})
        found[key] = {value: success([life for life in lives if getattr(life, key) == value]) for value in values}
    return found
