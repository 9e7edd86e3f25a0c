"""What a task is, and the register of all tasks.

A task gives hosts to grow, data to train them on and a way to score them. The built-in ones are in `builtin.py`; a user's own is
registered in the same way, in a file of its own that `load_task_file` reads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from esper.leyline.errors import ConfigError, EsperError, unknown
from esper.tolaria.data.sources import Source
from esper.tolaria.data.splits import Data, Split
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.tasks.family import Family, Member

Kind = Literal["classification", "language"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(ABC):
    """Hosts, data and score of one problem. `VisionTask` and `LanguageTask` are the two kinds there are to build on."""

    name: str
    summary: str
    """One line that says what the task is for."""
    kind: Kind
    classes: int
    """Classes of an image, or tokens of the vocabulary."""
    family: Family
    published: Source | None = None
    """The published data set that it needs; None if its data is always there, or is the user's own."""
    threads: int = 1
    """Threads that suit torch on a CPU for hosts of this size; 0 is all of them."""

    @abstractmethod
    def load(self, source: Path | None, device: torch.device) -> Data:
        """The task's data on the device, from the folder or file `source`, or from where such data is kept. Nothing is cached."""

    @abstractmethod
    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """A new host on the CPU, drawn from torch's global generator, and its slots: module path by slot id."""

    @abstractmethod
    def example(self, member: Member) -> Tensor:
        """Two inputs of the right shape and type, on the CPU."""

    @abstractmethod
    def training_set(self, data: Data, member: Member, seed: int) -> Split:
        """What a member's host trains on: the whole training split, without a copy, unless the member says otherwise."""

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy in nats, a single value with a gradient."""

    def build_host(self, member: Member, classes: int, seed: int) -> tuple[nn.Module, dict[str, str], Tensor]:
        """The host of that seed on the CPU, its slots (module path by slot id) and an example input. Touches no other random stream."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed("host", seed))
            host, slots = self.make_host(member, classes)
        return host, slots, self.example(member)

    def augment(self, x: Tensor, member: Member, seed: int, epoch: int, index: Tensor) -> Tensor:
        """The batch as the host sees it in this epoch; `index` (int64) has the position of each row in the training set."""
        return x

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """How many of each sample's targets are predicted: int64 (B,)."""
        return (logits.argmax(-1) == y).flatten(1).sum(1) if y.dim() > 1 else (logits.argmax(-1) == y).long()

    def is_there(self, source: Path | None = None) -> bool:
        """Whether the data is there, without reading it."""
        return self.published is None or self.published.find(source) is not None


@dataclass(frozen=True, slots=True)
class _Entry:
    task: Task
    where: str
    """The file that registered it."""


TASKS: dict[str, _Entry] = {}
"""Every task by name, in the order of registration."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
T = TypeVar("T", bound=Task)


def register(task: T) -> T:
    """Add a task to the register and return it. A name that is taken is refused."""
    where = traceback.extract_stack(limit=2)[0].filename
    if not _NAME.fullmatch(task.name):
        raise ConfigError(f"task name {task.name!r} in {where}: expected lower case and hyphens, such as 'cifar10-deep'")
    if not task.summary.strip() or "\n" in task.summary:
        raise ConfigError(f"task {task.name!r} in {where}: summary must be one line that says what it is for; found {task.summary!r}")
    if task.name in TASKS:
        raise ConfigError(f"task {task.name!r} in {where}: there is one of that name, registered in {TASKS[task.name].where}")
    TASKS[task.name] = _Entry(task, where)
    return task


def unregister(name: str) -> None:
    """Take a task out of the register."""
    del TASKS[get(name).name]


def get(name: str) -> Task:
    """The task of that name, or an error with the nearest one."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name].task


def names() -> tuple[str, ...]:
    """Every name, in the order of registration."""
    return tuple(TASKS)


def load_task_file(path: str | Path) -> tuple[str, ...]:
    """Run a user's Python file that registers tasks, and return their names. Loading a file again replaces its tasks.

    The file is ordinary code with all of its author's rights: load only files that you trust.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise ConfigError(f"no task file at {path}")
    before = dict(TASKS)
    for name in [name for name, entry in TASKS.items() if entry.where == str(path)]:
        del TASKS[name]
    try:
        _run(path)
        found = tuple(name for name, entry in TASKS.items() if before.get(name) is not entry)
        if not found:
            raise ConfigError(f"{path}: registers no task; expected a call of register(...)")
    except BaseException:
        TASKS.clear()
        TASKS.update(before)
        raise
    return found


def _run(path: Path) -> None:
    """Execute the file as a module whose name no other file has."""
    name = f"esper_task_{re.sub(r'[^0-9a-zA-Z]', '_', path.stem)}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file; expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up there.
    try:
        spec.loader.exec_module(module)
    except EsperError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        line = next((frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == str(path)), None)
        line = error.lineno if isinstance(error, SyntaxError) else line
        raise ConfigError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
