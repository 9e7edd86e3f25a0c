"""Successive halving: which trials play how many hosts, and what that costs, planned before anything is played.

Every trial plays the same first few hosts. The better third goes on to three times as many, and so on until one is left. Hosts that a
trial has played are never played again. What came out best is then played on hosts that no trial saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from esper.leyline.errors import ConfigError

THIRD = 3
"""One in so many trials goes on, to so many times as many hosts."""
FEWEST_TRIALS = 2
"""What a search starts from, and something else."""


@dataclass(frozen=True, slots=True)
class Rung:
    """So many trials that have played so many hosts when it is over."""

    trials: int
    hosts: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The rungs of a search, and what it costs in host epochs."""

    rungs: tuple[Rung, ...]
    fresh: range
    """Numbers of the hosts that are left for the comparison at the end."""
    searching: int
    comparing: int
    """Host epochs of the rungs, and of the comparison of two arms."""

    @property
    def trials(self) -> int:
        """Trials in all, the settings that the search starts from included."""
        return self.rungs[0].trials

    @property
    def cost(self) -> int:
        """Host epochs in all."""
        return self.searching + self.comparing


def plan(trials: int, hosts: int, fresh: int, epochs: Callable[[int], int]) -> Plan:
    """The plan for so many trials. epochs: the budget of the host with a number, counted from 0."""
    rungs: list[Rung] = []
    searching = played = 0
    while trials > 1:
        searching += trials * sum(epochs(number) for number in range(played, hosts))
        rungs.append(Rung(trials, hosts))
        trials, played, hosts = max(1, trials // THIRD), hosts, hosts * THIRD
    left = range(played, played + fresh)
    return Plan(tuple(rungs), left, searching, 2 * sum(map(epochs, left)))


def largest_plan(budget: int, hosts: int, fresh: int, epochs: Callable[[int], int], *, most_trials: int, most_hosts: int) -> Plan:
    """The plan with the most trials that a budget of host epochs, and so many different trials and hosts, are enough for.

    Raises ConfigError, with the smallest budget that is, when it is not enough for any.
    """

    def affordable(trials: int) -> Plan | None:
        last = hosts
        for _ in range(_rungs(trials) - 1):
            last *= THIRD
        if trials > most_trials or last + fresh > most_hosts:
            return None
        found = plan(trials, hosts, fresh, epochs)
        return found if found.cost <= budget else None

    best = affordable(FEWEST_TRIALS)
    if best is None:
        if hosts + fresh > most_hosts:
            raise ConfigError(f"{hosts + fresh} hosts are needed and there are seeds for {most_hosts}; lower --seed, --hosts or --fresh")
        needed = plan(FEWEST_TRIALS, hosts, fresh, epochs).cost
        raise ConfigError(
            f"a budget of {budget} host epochs is too small: one trial beside the present settings on {hosts} hosts, and a comparison on "
            f"{fresh} more, take {needed}; raise --budget to that, or lower --hosts or --fresh"
        )
    # The cost rises with the trials, but for what hosts happen to draw: the steps grow until one is too large, and then shrink.
    step = 1
    while (more := affordable(best.trials + step)) is not None:
        best, step = more, 2 * step
    while step > 1:
        step //= 2
        best = affordable(best.trials + step) or best
    return best


def _rungs(trials: int) -> int:
    """How many rungs so many trials have."""
    count = 0
    while trials > 1:
        trials, count = trials // THIRD, count + 1
    return count
