"""What users can add to Esper by name (tasks, reward components, sinks): one register for each kind, and how a user's mistakes are told."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from esper.leyline.errors import ConfigError, EsperError, in_a_line, unknown

T = TypeVar("T")
PACKAGE = Path(__file__).parents[1]
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One thing that was registered."""

    value: T
    where: str
    """File and line that registered it."""
    source: str
    """SHA-256 of that file as it was then; empty for Esper's own, and for what was typed at a prompt."""

    @property
    def file(self) -> str:
        """The file that registered it."""
        return self.where.rpartition(":")[0]


class Register(dict[str, Entry[T]]):
    """Everything of one kind by its name, in the order of registration."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def add(self, name: str, value: T) -> T:
        """Make a thing known, as registered by whoever called the caller of this. A name that is taken is refused."""
        caller = traceback.extract_stack(limit=3)[0]
        if not NAME.fullmatch(name):
            raise ConfigError(f"{self.kind} {name!r}: expected a name in lower case with hyphens or underscores, such as 'cifar10-deep'")
        if name in self:
            raise ConfigError(f"{self.kind} {name!r}: there is one of that name, registered in {self[name].where}")
        path = Path(caller.filename)
        source = sha256(path.read_bytes()).hexdigest() if path.is_file() and PACKAGE not in path.parents else ""
        self[name] = Entry(value, f"{caller.filename}:{caller.lineno}", source)
        return value

    def named(self, name: str) -> Callable[[T], T]:
        """A decorator that makes a thing known under a name."""
        return lambda value: self.add(name, value)

    def find(self, name: str) -> Entry[T]:
        """The entry of that name, or an error with the nearest one."""
        if name not in self:
            raise unknown(self.kind, name, self)
        return self[name]


def origin(where: str) -> str:
    """Where an entry comes from, for a list of them: esper, or the file and line of a plug-in."""
    return "esper" if PACKAGE in Path(where).parents else where


def failure(error: BaseException, file: str) -> str:
    """An exception in a user's file as one line: the file (if it is known), the line in it that failed, and what happened there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    what = str(error) if isinstance(error, EsperError) else in_a_line(error)
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, what = [error.lineno], f"{type(error).__name__}: {error.msg}"
    return ": ".join(filter(None, [f"{file}, line {lines[-1]}" if lines else file, what]))


@contextmanager
def telling(what: str, file: str) -> Iterator[None]:
    """Whatever a user's own function raises in here becomes one sentence; an EsperError is one already."""
    try:
        yield
    except EsperError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} failed: {failure(error, file)}") from error
