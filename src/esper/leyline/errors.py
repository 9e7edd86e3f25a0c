"""Everything a user can do wrong, one class for each kind of mistake, all under EsperError.

A message says what was wrong, where, what was expected and what is near it. The command line prints it as one
sentence; in Python it is an ordinary exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EsperError(Exception):
    """Base of every error that Esper raises for something its user can put right."""


class UnknownNameError(EsperError):
    """A name (slot, blueprint, task, controller, ...) that does not exist."""


class ConfigError(EsperError, ValueError):
    """A config file, key or value that cannot be used."""


class SlotError(EsperError):
    """A place in a model where no slot can be attached."""


class BlueprintError(EsperError):
    """A blueprint that is defined wrongly, or that does not fit the slot."""


class TransitionError(EsperError):
    """A command that the seed's present stage does not allow."""


class GateError(EsperError):
    """A command that the table allows and a gate refused."""


class OptimizerError(EsperError):
    """An optimiser that cannot follow the growth."""


class StateError(EsperError):
    """A state dict that is damaged or belongs to another model."""


class HarvestError(EsperError):
    """A grown model that cannot be written as a plain module."""


class DataError(EsperError):
    """Data that is missing, damaged or of the wrong shape."""


class CheckpointError(EsperError):
    """A checkpoint that is damaged, foreign, or missing."""


class RunError(EsperError):
    """A run folder that cannot be used: taken, incomplete, or not a run."""


class Interrupted(EsperError):
    """A run that was asked to stop, and stopped after a checkpoint."""


class EventError(EsperError):
    """A recorded event that cannot be read."""


class QueryError(EsperError):
    """A query over recorded runs that cannot be answered."""


class DeviceError(EsperError):
    """A device or precision that this machine does not have."""


class RankError(EsperError):
    """Processes that train one model together and are no longer at the same point, or with the same model; or a way to train together
    under which nothing can grow."""


class LearningError(EsperError):
    """Learning that went out of bounds: a loss, a gradient or what a policy says is not finite any more."""


class PolicyError(EsperError):
    """A policy file that is damaged, or made for another schema."""


def in_a_line(error: BaseException) -> str:
    """What an exception of others says, as one line: torch lists all that it would have taken, and Python's own may say nothing."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the closest known one, or the whole list when nothing is close."""
    options = sorted(known)
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    return "known: " + (", ".join(options) if options else "none")


def unknown(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that does not exist: `unknown("blueprint", "conv_lite", names)`. A number is shown as one: 1, not '1'."""
    return UnknownNameError(f"unknown {kind} {name!r}; {nearest(str(name), known)}")
