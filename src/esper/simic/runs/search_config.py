"""The settings of searching a controller's settings. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, check_ranges
from esper.leyline.errors import ConfigError
from esper.simic.growth.config import CARRIED_OUT, DecidedConfig, processes
from esper.simic.runs.practice_config import permissive
from esper.tolaria.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(DecidedConfig):
    """Everything that decides a search. Written to config.toml, from which the same search starts again.

    Settings of the controller are what the search starts from: trials change those that are searched, and the best is compared with them.
    """

    changeable: ClassVar[tuple[str, ...]] = CARRIED_OUT
    kind: Literal["tune"] = "tune"
    task: tuple[str, ...] = ("digits",)
    """What to train on; several tasks take turns."""
    budget: Annotated[int, Range(1, 1_000_000_000)] = 20_000
    """Host epochs to spend in all, the comparison at the end included."""
    hosts: Count = 8
    """Hosts that every trial starts on; the better third goes on to three times as many, and so on."""
    fresh: Annotated[int, Range(2, 1_000_000)] = 40
    """Hosts that no trial saw, on which the best is compared with what the search started from."""
    method: Literal["random", "optuna"] = "random"
    """How trials are drawn: at random, or by Optuna's TPE, which learns from the trials before; it needs pip install 'esper-lite[tune]'."""
    over: dict[str, str] = field(default_factory=dict)
    """What is searched, in place of the usual space: KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C."""
    seed: NonNegativeInt = 0
    """Of what is drawn; and the first host's seed, which the others follow."""
    together: Count | None = None
    """Episodes side by side between two checkpoints, of several trials if need be; by default 16, on a GPU 256."""
    workers: Annotated[int, Range(1, 1024)] | None = None
    """Processes that grow hosts; by default one for each core, on a GPU one for every 32 hosts, up to eight and half of the cores."""
    member: Literal["standard", "family"] = "family"
    """Family: each host's seed draws its width, kernel, data, noise and budget. Standard: hosts differ in their weights and data order."""
    control: Literal[False] = False
    checkpoint_every: Count = 1
    """Rounds between checkpoints."""
    training: TrainingConfig = field(default_factory=permissive)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.task:
            raise ConfigError("'task' is empty; expected the name of a task, or several")

    def processes(self, *, gpu: bool) -> int:
        """In how many processes hosts grow."""
        return processes(self.workers, self.side_by_side(gpu=gpu), gpu=gpu)

    def side_by_side(self, *, gpu: bool) -> int:
        """Episodes in a round."""
        return self.together or (256 if gpu else 16)
