"""What the heuristic remembers of one host: the seeds that are being tried, and how those before them turned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from esper.leyline.reports import EpochReport, SeedReport
from esper.leyline.stages import LIVE, Stage

MOST_SUCCESS = 2.0
"""A seed that brought more than so many times what was expected of it counts as if it had brought that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A live seed, with what was expected of it and what it has contributed so far."""

    slot: str
    blueprint: str
    expected: float
    """What it was expected to bring, in points."""
    total: float = 0.0
    """Sum of its contributions measured in HOLDING, in points."""
    count: int = 0
    """How many contributions that sum is over."""

    @property
    def mean(self) -> float:
        """Mean contribution in HOLDING, in points; 0 before one was measured."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A seed whose fate is settled."""

    blueprint: str
    epoch: int
    expected: float
    credit: float
    """Its mean contribution when it was fossilised, in points; 0 for one that was pruned."""
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicMemory:
    """Trials by slot, and outcomes in the order in which they came."""

    trials: tuple[Trial, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def trial(self, slot: str) -> Trial | None:
        """The trial of the seed at a slot."""
        return next((trial for trial in self.trials if trial.slot == slot), None)

    def started(self, slot: str, blueprint: str, expected: float) -> HeuristicMemory:
        """The memory with one more seed on trial, of which so many points are expected."""
        return replace(self, trials=(*self.trials, Trial(slot=slot, blueprint=blueprint, expected=expected)))

    def after(self, report: EpochReport) -> HeuristicMemory:
        """Brought up to date: contributions added, and trials that ended, by whatever hand, turned into outcomes."""
        trials, outcomes = [], list(self.outcomes)
        for seed in report.seeds:
            trial = self.trial(seed.slot)
            if trial is not None and seed.stage not in LIVE:
                kept = seed.stage is Stage.FOSSILIZED
                credit = trial.mean if kept else 0.0
                outcomes.append(Outcome(blueprint=trial.blueprint, epoch=report.epoch, expected=trial.expected, credit=credit, kept=kept))
            elif seed.stage in LIVE:
                trials.append(_measured(trial or Trial(slot=seed.slot, blueprint=seed.blueprint, expected=0.0), seed))
        return HeuristicMemory(trials=tuple(trials), outcomes=tuple(outcomes))

    def penalty(self, blueprint: str, epoch: int, decay: float) -> float:
        """1 for each failure of the blueprint when it happens, fading by `decay` with every epoch."""
        return sum(decay ** (epoch - each.epoch) for each in self.outcomes if each.blueprint == blueprint and not each.kept)

    def trust(self, blueprint: str, strength: float) -> float:
        """What seeds of the blueprint brought over what was expected of them. What all seeds brought stands in for experience with it.

        1 to begin with. `strength` is how many seeds that did as expected are granted in advance: the more, the slower experience tells.
        """
        general = _ratio(self.outcomes, strength, 1.0)
        return _ratio([each for each in self.outcomes if each.blueprint == blueprint], strength, general)


def _ratio(outcomes: Sequence[Outcome], strength: float, granted: float) -> float:
    """Mean of what seeds brought over what was expected, with `strength` seeds of ratio `granted` added."""
    successes = [min(max(0.0, each.credit / each.expected), MOST_SUCCESS) for each in outcomes if each.expected > 0.0]
    return (strength * granted + sum(successes)) / (strength + len(successes))


def _measured(trial: Trial, seed: SeedReport) -> Trial:
    """The trial with this epoch's contribution. A seed that leaves HOLDING starts anew: at another alpha it is worth something else."""
    if seed.stage is not Stage.HOLDING:
        return replace(trial, total=0.0, count=0)
    if seed.contribution is None or seed.contribution_age > 0 or not math.isfinite(seed.contribution):
        return trial
    return replace(trial, total=trial.total + seed.contribution, count=trial.count + 1)
