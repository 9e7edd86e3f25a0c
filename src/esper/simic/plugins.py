"""Plug-ins: modules that register tasks, blueprints, controllers, reward components or sinks when they are imported.

A plug-in is a file that a config names, or a module that an installed package names under the entry-point group `esper.plugins`. It
is ordinary code with all of its author's rights: load only what you trust.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from esper.kasmina.blueprints import BLUEPRINTS
from esper.leyline.errors import CheckpointError, ConfigError
from esper.leyline.plugins import failure
from esper.nissa import SINKS
from esper.simic.rewards import REWARD_COMPONENTS
from esper.tamiyo import CONTROLLERS
from esper.tolaria.tasks import TASKS

GROUP = "esper.plugins"
REGISTERS: tuple[dict[Any, Any], ...] = (TASKS, BLUEPRINTS, CONTROLLERS, REWARD_COMPONENTS, SINKS)

_installed: set[EntryPoint] = set()
_files: dict[Path, str] = {}
"""The SHA-256 of each file that was loaded in this process."""


def load_plugins(files: Iterable[str | Path] = ()) -> None:
    """Load the plug-ins of installed packages and these files, each once in a process; one that fails registers nothing."""
    for point in entry_points(group=GROUP):
        if point not in _installed:
            _load_installed(point)
    for file in files:
        _load_file(Path(file).resolve())


def plugin_hashes(files: Iterable[Path], saved: list[str] | None = None) -> list[str]:
    """The SHA-256 of each file as it was loaded. Raises CheckpointError where a run that goes on had saved others."""
    hashes = [_files[Path(file).resolve()] for file in files]
    if saved is not None and saved != hashes:
        raise CheckpointError("a plug-in was edited since the checkpoint was written; put it back, or begin a new run")
    return hashes


def _load_installed(point: EntryPoint) -> None:
    package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    with _all_or_nothing():
        try:
            point.load()
        except (Exception, SystemExit) as error:
            raise ConfigError(f"the plug-in {point.name!r} of {package} cannot be loaded: {failure(error, point.value)}") from error
    _installed.add(point)


def _load_file(path: Path) -> None:
    if path.suffix != ".py":
        raise ConfigError(f"{path}: not a Python file; expected a plug-in, with a name that ends in .py")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"no plug-in at {path}: {error.strerror}") from error
    digest = sha256(source).hexdigest()
    if path in _files:
        if _files[path] != digest:
            raise ConfigError(f"{path} was edited since this process loaded it, and cannot be loaded again; start anew")
        return
    # A name that no other file has; dataclasses look their module up by it.
    name = f"esper_plugin_{re.sub(r'[^0-9a-zA-Z]', '_', path.stem)}_{sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        with _all_or_nothing() as before:
            try:
                exec(compile(source, path, "exec"), module.__dict__)
            except (Exception, SystemExit) as error:
                raise ConfigError(failure(error, str(path))) from error
            if _entries() <= before:
                raise ConfigError(
                    f"{path}: registers nothing; expected esper.task, blueprint, controller, reward_component or sink to be called"
                )
    except BaseException:
        del sys.modules[name]
        raise
    _files[path] = digest


@contextmanager
def _all_or_nothing() -> Iterator[set[int]]:
    """Put every register back to what it was if this fails. Yields the identities of what is registered before."""
    before = [dict(register) for register in REGISTERS]
    try:
        yield _entries()
    except BaseException:
        for register, entries in zip(REGISTERS, before, strict=True):
            register.clear()
            register.update(entries)
        raise


def _entries() -> set[int]:
    return {id(entry) for register in REGISTERS for entry in register.values()}
