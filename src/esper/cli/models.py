"""A user's model and an example input for it, as they are named on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.attach.variation import Example
from esper.leyline.errors import ConfigError, nearest, unknown
from esper.leyline.plugins import failure

INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<below>\d+))?")
EXPECTED = "expected [NAME=]SHAPE[:BELOW], such as 8x3x32x32, or input_ids=8x128:1000 for whole numbers below 1000"


def read_inputs(specs: list[str]) -> Example | None:
    """The example that the specs describe, the same one every time: a tuple, a dict if they have names, None if there are none."""
    generator = torch.Generator().manual_seed(0)
    found = [_input(spec, generator) for spec in specs]
    if not found:
        return None
    names = [name for name, _ in found if name is not None]
    if not names:
        return tuple(tensor for _, tensor in found)
    if len(names) != len(found):
        raise ConfigError(f"--input: some have a name ({', '.join(names)}) and some have none; expected all to be named, or none")
    if len(set(names)) != len(names):
        raise ConfigError(f"--input: a name is there twice among {', '.join(names)}")
    return {str(name): tensor for name, tensor in found}


def _input(spec: str, generator: torch.Generator) -> tuple[str | None, Tensor]:
    match = INPUT.fullmatch(spec)
    if match is None:
        raise ConfigError(f"--input {spec!r} is not understood; {EXPECTED}")
    shape = [int(size) for size in match["shape"].split("x")]
    if not all(shape) or match["below"] == "0":
        raise ConfigError(f"--input {spec!r} has a 0 in it, so it would be empty; {EXPECTED}")
    if match["below"] is None:
        return match["name"], torch.randn(shape, generator=generator)
    return match["name"], torch.randint(int(match["below"]), shape, generator=generator)


def load_model(named: str) -> tuple[nn.Module, Example | None]:
    """The model that MODULE:FACTORY gives, and its example if it gives one too."""
    where, colon, name = named.rpartition(":")
    if not colon or not where or not name:
        raise ConfigError(f"{named!r} names no model; expected MODULE:FACTORY, such as model.py:make_net or mypackage.models:Encoder")
    module = _load_file(Path(where)) if where.endswith(".py") or "/" in where else _load_module(where)
    known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    if not hasattr(module, name):
        raise unknown(f"name in {where}", name, known)
    found = getattr(module, name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ConfigError(f"{named} is of type {type(found).__name__}; expected a function that gives the model, or the model itself")
        try:
            found = found()
        except Exception as error:
            raise ConfigError(f"{named} failed when it was called without arguments: {failure(error, module.__file__ or where)}") from error
    model, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{named} gives {_kind(found)}; expected an nn.Module, or a tuple of one and an example input")
    return model, example


def _kind(found: Any) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else f"an object of type {type(found).__name__}"


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module; what lies beside it can be imported by it."""
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"there is no file {path}; {nearest(path.name, beside)}")
    name = re.sub(r"\W", "_", path.stem)
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file; expected one whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # dataclasses look their module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the model's file cannot be loaded: {failure(error, str(path))}") from error
    return module


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
    hint = nearest(name, known)
    return hint if hint.startswith("did you mean") else "expected a module in the present folder or of an installed package, or a .py file"
