"""Drawing what to try: at random, or by Optuna's TPE from how the trials before did. What is drawn depends on the arguments alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from esper.leyline.errors import ConfigError
from esper.leyline.space import Choices, Space
from esper.tolaria.data.streams import stream_seed

FIELDS_AT_ONCE = 4
"""Settings that a random trial draws anew, on average: with thirty changed at once next to every trial is worse than the defaults, and
nothing can be told of any of them."""
ATTEMPTS = 200
"""Draws without anything new after which a space counts as used up."""


def share(*key: str | int) -> float:
    """A random number in [0, 1) that depends on the key alone."""
    return (stream_seed(*key) >> 10) / 2**53


def random_points(space: Space, seed: int, at_once: int | None = None) -> Iterator[dict[str, Any]]:
    """Different points of a space, one after another, until it is used up.

    at_once: about so many settings are in each, the others stay as they are; None for all of them.
    """
    seen: list[dict[str, Any]] = []
    number = fruitless = 0
    chance = 1.0 if at_once is None else at_once / len(space)
    while fruitless < ATTEMPTS:
        keys = [key for key in space if share("search", seed, number, "whether", key) < chance]
        keys = keys or [min(space, key=lambda key: share("search", seed, number, "whether", key))]
        point = {key: space[key].at(share("search", seed, number, "what", key)) for key in keys}
        number, fruitless = number + 1, fruitless + 1
        if point not in seen:
            fruitless = 0
            seen.append(point)
            yield point


def optuna_point(space: Space, seed: int, number: int, told: Sequence[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """What Optuna proposes as the trial with this number, by how others did: their values, and their scores, of which more is better.

    The sampler is made anew for each trial, so that nothing but the scores is to be kept of a search that goes on later.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {key: _distribution(optuna, entry) for key, entry in space.items()}
    sampler = optuna.samplers.TPESampler(seed=stream_seed("optuna", seed, number) % (1 << 32))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, score in told:
        with suppress(ValueError):  # the settings that a search starts from may lie outside of the space
            numbers = {key: entry.values.index(values[key]) for key, entry in space.items() if isinstance(entry, Choices)}
            study.add_trial(optuna.trial.create_trial(params={**values, **numbers}, distributions=kinds, value=score))
    drawn = study.ask(kinds).params
    point: dict[str, Any] = {}
    for key, entry in space.items():
        point[key] = entry.values[drawn[key]] if isinstance(entry, Choices) else entry.fitting(drawn[key])
    return point


def import_optuna() -> Any:
    """The package, or a sentence about how to get it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("--method optuna needs the package optuna, which is not here: pip install 'esper-lite[tune]'") from None
    return optuna


def _distribution(optuna: Any, entry: Any) -> Any:
    """The same range or list as Optuna has it; the values of a list by their numbers, as Optuna knows no lists as values."""
    if isinstance(entry, Choices):
        return optuna.distributions.CategoricalDistribution(range(len(entry.values)))
    if entry.whole:
        return optuna.distributions.IntDistribution(int(entry.low), int(entry.high), log=entry.log)
    return optuna.distributions.FloatDistribution(entry.low, entry.high, log=entry.log)
