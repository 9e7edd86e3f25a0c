"""What a benchmark is made of: settings that it is given, tasks that are timed in turns, and rows of ratios that come out.

A benchmark is a Python file with a function `measure(settings)` that yields rows; the file's name is its name, and the first line of its
docstring says what it shows. `esper benchmark` finds those in the folder benchmarks/; each also runs by itself.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from esper.leyline.config import Range

ROUNDS, QUICK_ROUNDS = 15, 3
SHORTEST = 0.005
"""Seconds of a turn. What takes less is done several times in each, as a clock has its own cost."""
LONG = 5.0
"""Seconds after which a task is not run a second time to warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: a value, and where there is something to compare it with, their ratio."""

    what: str
    value: Annotated[float, Range(0)]
    unit: str
    """More is better of whatever ends in "/s", and worse of everything else."""
    against: str | None = None
    """What the ratio is to: its value in the same unit is the denominator."""
    ratio: Annotated[float, Range(0)] | None = None
    spread: Annotated[float, Range(0)] | None = None
    """The distance between the quartiles of the rounds' ratios (without a ratio: values), as a share of the median. None where there were
    no rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a benchmark is asked for."""

    quick: bool = False
    """Fewer rounds and fewer rows. What a row means stays the same."""
    device: str = "cpu"
    progress: Callable[[str], None] = lambda doing: None
    """Told what is measured now."""


def in_turns(
    settings: Settings, tasks: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, clock: Callable[[], float] | None = None
) -> dict[str, list[float]]:
    """Seconds that each task took in each of the rounds.

    They take turns, in an order that changes from round to round, so that a busy machine slows all alike.
    rounds: after some to warm up; a quick run has three at most. clock: by default `clock_for` the settings.
    """
    clock = clock or clock_for(settings.device)
    rounds = min(rounds, QUICK_ROUNDS) if settings.quick else rounds
    times = {}
    for name, task in tasks.items():
        settings.progress(name)
        times[name] = _warm_up(task, clock)
    names = list(tasks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number // 2 % len(names)
        order = names[first:] + names[:first]
        for name in reversed(order) if number % 2 else order:
            settings.progress(f"{name}, {number + 1} of {rounds}")
            gc.collect()  # so that nobody pays for the garbage of the one before
            began = clock()
            for _ in range(times[name]):
                tasks[name]()
            seconds[name].append((clock() - began) / times[name])
    return seconds


def _warm_up(task: Callable[[], object], clock: Callable[[], float]) -> int:
    """Run a task until caches are filled and everything is compiled; how often it has to run in a turn."""
    taken = 0.0
    for _ in range(2):
        began = clock()
        task()
        taken = clock() - began
        if taken > LONG:
            break
    return max(1, math.ceil(SHORTEST / max(taken, 1e-7)))


def clock_for(device: str) -> Callable[[], float]:
    """Seconds of this process's own processor time, which other work on the machine hardly touches; on a GPU, of the clock on the wall,
    once the device has done everything it was given."""
    if device == "cpu":
        return time.process_time
    import torch  # here because the command that reads this module for its help needs none

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def compared(
    seconds: Mapping[str, list[float]], against: str, *, unit: str = "ms", value_of: Callable[[float], float] = lambda taken: 1e3 * taken
) -> Iterable[Row]:
    """A row for each task: the medians, and the ratios to the task `against`, round by round.

    value_of: a value in the unit from the seconds that a task takes.
    """
    values = {name: [value_of(each) for each in taken] for name, taken in seconds.items()}
    for name, each in values.items():
        if name == against:
            yield Row(what=name, value=statistics.median(each), unit=unit, spread=_spread(each))
            continue
        ratios = [value / other for value, other in zip(each, values[against], strict=True)]
        yield Row(
            what=name,
            value=statistics.median(each),
            unit=unit,
            against=against,
            ratio=statistics.median(ratios),
            spread=_spread(ratios),
        )


def _spread(values: list[float]) -> float:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
