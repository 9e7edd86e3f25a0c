"""A user's model and an example input for it, as they are named on the command line."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.attach.variation import Example
from esper.leyline.errors import ConfigError, EsperError, UnknownNameError, nearest
from esper.leyline.plugins import failure

INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<shape>[0-9]+(?:x[0-9]+)*)(?::(?P<below>[0-9]+))?")
EXPECTED = "expected [NAME=]SHAPE[:BELOW], such as 8x3x32x32, or input_ids=8x128:1000 for whole numbers below 1000"
MOST_LISTED = 12
"""Of more names that a module has, only one that is near is told."""
NEAR = 0.75
"""How alike the name of an installed package has to be; there are many, and what is meant may just not be installed."""


@dataclass(frozen=True, slots=True)
class Input:
    """One --input."""

    spec: str
    name: str | None
    shape: tuple[int, ...]
    below: int | None
    """Whole numbers below this; None for normal ones."""

    def make(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        """Numbers of that shape: normal ones of the model's precision, and all where it lies."""
        weight = next((each for each in model.parameters() if each.is_floating_point()), torch.empty(0))
        try:
            if self.below is not None:
                return torch.randint(self.below, self.shape, generator=generator).to(weight.device)
            return torch.randn(self.shape, generator=generator).to(weight.device, weight.dtype)
        except (RuntimeError, OverflowError, TypeError, ValueError) as error:  # torch has one for each way of being too much
            raise ConfigError(f"--input {self.spec!r} is more than this machine can hold; expected a small batch") from error


def read_inputs(specs: list[str]) -> list[Input]:
    """What each --input asks for."""
    found = [_read(spec) for spec in specs]
    names = [each.name for each in found if each.name is not None]
    if names and len(names) != len(found):
        raise ConfigError(f"--input: some have a name ({', '.join(names)}) and some have none; expected all to be named, or none")
    if len(set(names)) != len(names):
        raise ConfigError(f"--input: a name is there twice among {', '.join(names)}")
    return found


def _read(spec: str) -> Input:
    match = INPUT.fullmatch(spec)
    if match is None:
        raise ConfigError(f"--input {spec!r} is not understood; {EXPECTED}")
    below = None if match["below"] is None else int(match["below"])
    shape = tuple(int(size) for size in match["shape"].split("x"))
    if not all(shape) or below == 0:
        raise ConfigError(f"--input {spec!r} has a 0 in it, so it would be empty; {EXPECTED}")
    return Input(spec, match["name"], shape, below)


def make_example(inputs: list[Input], model: nn.Module) -> Example:
    """The example that the inputs describe, the same one every time: a tuple, or a dict if they have names."""
    generator = torch.Generator().manual_seed(0)
    made = [each.make(model, generator) for each in inputs]
    named = {each.name: tensor for each, tensor in zip(inputs, made, strict=True) if each.name is not None}
    return named or tuple(made)


def load_model(named: str) -> tuple[nn.Module, Example | None]:
    """The model that MODULE:FACTORY gives, and its example if it gives one too."""
    where, _, name = named.rpartition(":")
    if not where or not name or ":" in where:
        raise ConfigError(f"{named!r} names no model; expected MODULE:FACTORY, such as model.py:make_net or mypackage.models:Encoder")
    is_file = where.lower().endswith(".py") or "/" in where or Path(where).is_file()
    module = _load_file(Path(where)) if is_file else _load_module(where)
    found = _find(name, module, where)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ConfigError(f"{named} is of type {type(found).__name__}; expected a function that gives the model, or the model itself")
        needed = _needed(found)
        if needed:
            raise ConfigError(f"{named} needs arguments ({', '.join(needed)}); expected a function that gives the model without any")
        try:
            found = found()
        except (Exception, SystemExit) as error:
            told = failure(error, module.__file__ or where)
            raise ConfigError(f"{named} failed when it was called without arguments: {told}") from error
    model, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{named} gives {_kind(found)}; expected an nn.Module, or a tuple of one and an example input")
    return model, example


def _find(name: str, module: ModuleType, where: str) -> Any:
    """What a module has under a name, which may lead through a class: `Net.small`."""
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _unknown(part, found, where) from error
        except Exception as error:  # of a package that loads a part of itself when it is asked for
            raise ConfigError(f"{where}:{name} cannot be loaded: {failure(error, '')}") from error
    return found


def _unknown(name: str, holder: Any, where: str) -> EsperError:
    """The error for a name that is not there, with what is."""
    held = vars(holder) if hasattr(holder, "__dict__") else {}
    # What dir() names and is not there yet is loaded when it is asked for.
    known = [each for each in dir(holder) if not each.startswith("_") and (each not in held or callable(held[each]))]
    inside = [each.name for each in pkgutil.iter_modules(getattr(holder, "__path__", []))]
    if not known and inside:
        modules = ", ".join(inside)
        return ConfigError(f"{where} has no {name!r} and only modules: {modules}; expected one of them, as {where}.{inside[0]}:{name}")
    if not known and hasattr(holder, "__path__"):
        return ConfigError(f"{where} is a folder without a Python file; expected a module, such as model.py")
    hint = nearest(name, known)
    if len(known) > MOST_LISTED and not hint.startswith("did you mean"):
        hint = "expected a function or class that gives the model, or the model itself"
    return UnknownNameError(f"unknown name in {where} {name!r}; {hint}")


def _needed(factory: Callable[..., Any]) -> list[str]:
    """The arguments that it cannot be called without."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    return [each.name for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _kind(found: Any) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else f"an object of type {type(found).__name__}"


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module; what lies beside it can be imported by it, and inside a package it is a part of that."""
    if not path.is_file():
        raise ConfigError(_no_file(path))
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    *packages, own = path.relative_to(root).with_suffix("").parts
    name = re.sub(r"\W", "_", own)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file; expected one whose name ends in .py")
    sys.path.insert(0, str(root))
    try:
        if packages:
            return importlib.import_module(".".join(packages if own == "__init__" else [*packages, own]))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up by its name
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the model's file cannot be loaded: {failure(error, str(path))}") from error


def _no_file(path: Path) -> str:
    """What is there instead."""
    if path.is_dir():
        return f"{path} is a folder; expected a .py file"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    beside = [each.name for each in path.parent.glob("*.py") if each.is_file()]
    return f"there is no file {path}; {nearest(path.name, beside) if beside else 'no .py file lies in its folder'}"


def _load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, from the present folder first, as `python -m` does."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(f"the module {name} cannot be loaded: {failure(error, '')}") from error
        parent, _, missing = error.name.rpartition(".")
        places = sys.modules[parent].__path__ if parent in sys.modules and hasattr(sys.modules[parent], "__path__") else None
        known = [each.name for each in pkgutil.iter_modules(places)]
        raise ConfigError(f"there is no module {error.name}; {_near(missing, known)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the module {name} cannot be loaded: {failure(error, '')}") from error


def _near(name: str, known: list[str]) -> str:
    """The nearest name; of all that is installed, nobody wants the list."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=NEAR)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    return "expected a module in the present folder or of an installed package, or a .py file"
