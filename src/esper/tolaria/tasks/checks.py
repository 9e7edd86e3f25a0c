"""What the functions of a task must return. Each check raises one sentence that names the function, what came and what was expected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esper.leyline.errors import ConfigError, DataError
from esper.tolaria.data.splits import Data, Split


def is_a(found: Any, kind: type, function: str) -> None:
    """An object of that class."""
    if not isinstance(found, kind):
        raise DataError(f"{function} returned {_kind(found)}; expected an object of {kind.__name__}")


def data(found: Any, classes: int, device: torch.device, function: str) -> None:
    """What `load` gives: Data on the device, with as many classes as the task says, and sound splits of samples of one shape."""
    is_a(found, Data, function)
    if found.classes != classes:
        raise DataError(f"{function} returned data of {found.classes} classes; the task says {classes}")
    split(found.train, classes, f"{function} (train)")
    split(found.val, classes, f"{function} (val)")
    for each in (found.train.x, found.train.y, found.val.x, found.val.y):
        if each.device.type != device.type:
            raise DataError(f"{function} returned data on {each.device}; expected it on {device}")
    if not _alike(found.train.x, found.val.x):
        train, val = _kind(found.train.x), _kind(found.val.x)
        raise DataError(f"{function} returned train inputs of {train} and val inputs of {val}; expected one type and shape")


def split(found: Any, classes: int, function: str) -> None:
    """Inputs that are finite, and int64 targets below `classes`."""
    is_a(found, Split, function)
    if not len(found):
        raise DataError(f"{function} returned no samples; expected some")
    # The extremes of anything with a NaN in it are NaN, and finding them takes no memory.
    if found.x.is_floating_point() and not bool(torch.stack(found.x.aminmax()).isfinite().all()):
        raise DataError(f"{function} returned inputs that are NaN or infinite; expected finite numbers")
    if found.y.dtype != torch.int64:
        raise DataError(f"{function} returned targets of {found.y.dtype}; expected torch.int64")
    low, high = (int(bound) for bound in found.y.aminmax())
    if low < 0 or high >= classes:
        raise DataError(f"{function} returned targets from {low} to {high}; expected 0 to {classes - 1}")


def host(made: Any, function: str) -> tuple[nn.Module, dict[str, str]]:
    """A module and its slots."""
    match made:
        case (nn.Module() as module, dict() as slots) if slots and all(isinstance(part, str) for pair in slots.items() for part in pair):
            return module, slots
    raise ConfigError(f"{function} returned {_kind(made)}; expected a module and a dict of its slots, module path by slot id")


def example(found: Any, function: str) -> None:
    """At least two inputs."""
    if not isinstance(found, Tensor) or not found.dim() or len(found) < 2:
        raise ConfigError(f"{function} returned {_kind(found)}; expected a tensor of two inputs")


def like_example(x: Tensor, wanted: Tensor, function: str) -> None:
    """Inputs like the example, but for their number."""
    if not _alike(x, wanted):
        raise ConfigError(f"{function} returned {_kind(wanted)}; the inputs that the host trains on are {_kind(x)}")


def same_host(first: nn.Module, second: nn.Module, function: str) -> None:
    """Two hosts of one member and seed are the same to the last weight."""
    one, other = first.state_dict(), second.state_dict()
    for name in {**one, **other}:
        if name not in one or name not in other or not torch.equal(one[name], other[name]):
            expected = "expected chance to come from torch's global generator alone"
            raise ConfigError(f"{function} made two different hosts of one member and seed: {name!r} differs; {expected}")


def augmented(found: Any, x: Tensor, function: str) -> None:
    """An augmented batch."""
    if not isinstance(found, Tensor) or (found.dtype, found.shape, found.device) != (x.dtype, x.shape, x.device):
        raise ConfigError(f"{function} returned {_kind(found)}; expected {_kind(x)}, like the batch it was given")


def logits(found: Any, y: Tensor, classes: int, function: str) -> None:
    """One logit for each class and target."""
    if not isinstance(found, Tensor) or found.shape != (*y.shape, classes):
        expected = " x ".join(map(str, (*y.shape, classes)))
        raise ConfigError(f"{function} returned {_kind(found)}; expected logits of {expected}")


def loss(found: Any, function: str) -> None:
    """A single finite value with a gradient."""
    if not isinstance(found, Tensor) or found.dim() or not found.requires_grad:
        raise ConfigError(f"{function} returned {_kind(found)}; expected a single value with a gradient")
    if not bool(found.isfinite()):
        raise ConfigError(f"{function} is {found.item()} for two samples and a new host; expected a finite number")


def correct(found: Any, y: Tensor, function: str) -> None:
    """A whole number for each sample, from 0 to its targets."""
    if not isinstance(found, Tensor) or found.shape != y.shape[:1] or found.is_floating_point():
        raise ConfigError(f"{function} returned {_kind(found)}; expected a whole number for each of {len(y)} samples")
    most = y[0].numel()
    if int(found.min()) < 0 or int(found.max()) > most:
        raise ConfigError(f"{function} returned {found.tolist()} for samples of {most} targets each; expected 0 to {most}")


def _alike(x: Tensor, other: Tensor) -> bool:
    """Whether two batches have samples of one type and shape."""
    return x.dtype == other.dtype and x.shape[1:] == other.shape[1:]


def _kind(value: Any) -> str:
    """A value in words: the type and shape of a tensor, the type of anything else."""
    if isinstance(value, Tensor):
        size = " x ".join(map(str, value.shape)) or "a single value"
        return f"{value.dtype} of {size}" + (" without a gradient" if not value.dim() and not value.requires_grad else "")
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value)}"
    return "None" if value is None else f"a {type(value).__name__}"
