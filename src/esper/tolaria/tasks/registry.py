"""What a task is, and the register of all tasks.

A task gives hosts to grow, data to train them on and a way to score them. The built-in ones are in `builtin.py`; a user's own is
registered in the same way, with `esper.task(...)` in a plug-in. What a user's own task returns is checked where it is first used, so that
a mistake in it is one sentence that names the function.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.slot import Place
from esper.leyline.errors import ConfigError
from esper.leyline.plugins import Register, telling
from esper.tolaria.data.sources import Source
from esper.tolaria.data.splits import Data, Split
from esper.tolaria.data.streams import draws, stream_seed
from esper.tolaria.tasks import checks
from esper.tolaria.tasks.family import Family, Member

Kind = Literal["classification", "language"]


class Prepared(NamedTuple):
    """A host before it is trained."""

    host: nn.Module
    slots: dict[str, str]
    """Module path by slot id."""
    example: Tensor
    split: Split
    """What it trains on."""
    architecture: Hashable
    """The same for hosts that compute alike, whatever their weights: what is true of one is true of all."""


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
    counted: dict[Hashable, dict[Hashable, tuple[int, int]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Operations of its networks by architecture, as far as they have been counted."""
    probed: dict[Hashable, dict[str, Place]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found at the slots of its hosts, by path: for each architecture, layout of slots and device."""
    rehearsed: set[Hashable] = field(default_factory=set, init=False, repr=False, compare=False)
    """Architectures that a host of took a first step of training, with and without augmentation."""

    @abstractmethod
    def load(self, source: Path | None, device: torch.device) -> Data:
        """The task's data on the device, from the folder or file `source`, or from where such data is kept. `open_data` checks it."""

    @abstractmethod
    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """A new host on the CPU, drawn from torch's global generator, and its slots: module path by slot id."""

    @abstractmethod
    def example(self, member: Member) -> Tensor:
        """Two inputs of the right shape and type, on the CPU."""

    @abstractmethod
    def training_set(self, data: Data, member: Member, seed: int) -> Split:
        """What a member's host trains on: the whole training split, without a copy, unless the member says otherwise."""

    def augment(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The batch as a host whose member has `augment` sees it.

        drawn: int64 (B,), for each row a random number from 0 to 2**62 - 1, to take all chance from: it depends on the host, the epoch and
        the row's place in the training set alone. The batch may hold the samples of many hosts.
        """
        return x

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of logits (..., classes) and targets (...), in nats: a single value with a gradient."""
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """How many of each sample's targets are predicted: int64 (B,)."""
        return (logits.argmax(-1) == y).flatten(1).sum(1) if y.dim() > 1 else (logits.argmax(-1) == y).long()

    def open_data(self, source: Path | None, device: torch.device) -> Data:
        """What `load` gives, checked: both splits have targets below `classes`, and no input is NaN or infinite."""
        with self._calling("load"):
            data = self.load(source, device)
        checks.data(data, self.classes, device, self._named("load"))
        return data

    def build_host(self, member: Member, classes: int, seed: int) -> tuple[nn.Module, dict[str, str], Tensor]:
        """The host of that seed on the CPU, its slots (module path by slot id) and an example input. Touches no other random stream."""
        with torch.random.fork_rng(devices=[]), self._calling("make_host"):
            torch.default_generator.manual_seed(stream_seed("host", seed))
            made = self.make_host(member, classes)
        host, slots = checks.host(made, self._named("make_host"))
        with self._calling("example"):
            example = self.example(member)
        checks.example(example, self._named("example"))
        return host, slots, example

    def prepare(self, data: Data, member: Member, seed: int) -> Prepared:
        """What `build_host` gives and what the host trains on. Of the first host of an architecture a copy takes one small step of
        training before."""
        host, slots, example = self.build_host(member, data.classes, seed)
        with self._calling("training_set"):
            split = self.training_set(data, member, seed)
        if split is not data.train:
            checks.split(split, data.classes, self._named("training_set"))
        checks.like_example(split.x, example, self._named("example"))
        architecture = (tuple(example.shape[1:]), repr(host), tuple(tuple(p.shape) for p in host.parameters()))
        if (architecture, member.augment) not in self.rehearsed:
            copy = self.build_host(member, data.classes, seed)[0]
            checks.same_host(host, copy, self._named("make_host"))
            self._rehearse(copy, split, data.classes, member, seed)
            self.rehearsed.add((architecture, member.augment))
        return Prepared(host, slots, example, split, architecture)

    def fingerprint(self, member: Member) -> str:
        """A hash of the member and of the plug-in that registered the task: another one means that a saved run cannot go on."""
        facts = [self.name, self._plugin()[1], asdict(member)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _rehearse(self, host: nn.Module, split: Split, classes: int, member: Member, seed: int) -> None:
        """Take two samples through augmentation, host, loss, gradient and score. The host is changed by it."""
        device, x, y = split.x.device, split.x[:2], split.y[:2]
        host.to(device).train()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if member.augment:
                with self._calling("augment"):
                    augmented = self.augment(x, draws(torch.arange(len(x), device=device), *augment_stream(seed, 0)))
                checks.augmented(augmented, x, self._named("augment"))
                x = augmented
            with self._calling("the host that make_host gives"):
                logits = host(x)
            checks.logits(logits, y, classes, self._named("the host that make_host gives"))
            with self._calling("loss"):
                loss = self.loss(logits, y)
            checks.loss(loss, self._named("loss"))
            with self._calling("the gradient of loss"):
                loss.backward()
            with self._calling("correct"):
                correct = self.correct(logits.detach(), y)
            checks.correct(correct, y, self._named("correct"))

    def _plugin(self) -> tuple[str, str]:
        """The plug-in's file that registered this task, and the SHA-256 of it; both empty for any other task."""
        entry = TASKS.get(self.name)
        return (entry.file, entry.source) if entry is not None and entry.source else ("", "")

    def _named(self, function: str) -> str:
        file, _ = self._plugin()
        return f"task {self.name!r}: {function}" + (f" in {file}" if file else "")

    def _calling(self, function: str) -> AbstractContextManager[None]:
        """Whatever the function raises is told with the task's name, and the line in the plug-in."""
        return telling(f"task {self.name!r}: {function}", self._plugin()[0])


def augment_stream(seed: int, epoch: int) -> tuple[str | int, ...]:
    """The key of the random numbers that a host's samples are augmented by in an epoch."""
    return ("augment", stream_seed("host", seed), epoch)


T = TypeVar("T", bound=Task)
TASKS: Register[Task] = Register("task")


def register(task: T) -> T:
    """Make a task known and return it; `esper.task(...)` is this. A name that is taken is refused."""
    if not task.summary.strip() or "\n" in task.summary:
        raise ConfigError(f"task {task.name!r}: summary must be one line that says what it is for; found {task.summary!r}")
    TASKS.add(task.name, task)
    return task


def get(name: str) -> Task:
    """The task of that name, or an error with the nearest one."""
    return TASKS.find(name).value
