"""The settings of a search for headroom. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, check_ranges
from esper.leyline.errors import ConfigError
from esper.simic.growth.config import CARRIED_OUT, GrowthConfig, processes
from esper.simic.runs.practice_config import permissive
from esper.tolaria.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomConfig(GrowthConfig):
    """Everything that decides a search for what there is to win. Written to config.toml, from which the same search starts again."""

    changeable: ClassVar[tuple[str, ...]] = (*CARRIED_OUT, "together")
    kind: Literal["headroom"] = "headroom"
    task: tuple[str, ...] = ("digits",)
    """What to search on; several tasks take turns."""
    hosts: Annotated[int, Range(6, 100_000)] = 48
    """Hosts that every plan is tried on."""
    seed: NonNegativeInt = 0
    """Which hosts: another seed searches on others of the same family."""
    blueprints: tuple[str, ...] = ()
    """What may be grown; all blueprints that fit when empty."""
    proposals: NonNegativeInt = 6
    """Plans that a round of guided search adds, near those that did best."""
    searches: NonNegativeInt = 2
    """Rounds of guided search after the basic plans."""
    repeated: NonNegativeInt = 12
    """Hosts on which the best plans are repeated, with the same member, born and trained otherwise: the noise that no decision explains."""
    repeats: Annotated[int, Range(2, 100)] = 3
    """Times that each of them is played there in all."""
    plans: bool = True
    """Try plans. Without, whoever plays beside them is compared with hosts that do not grow."""
    beside: tuple[str, ...] = ()
    """Who else plays the same hosts, e.g. heuristic: controllers, and policies by their names or files."""
    record: bool = False
    """Keep the episodes of all plans, and of whoever plays beside them, on the hosts themselves, so that a policy can be taught to choose:
    esper train bc RUN --temperature 0.4 --expected."""
    together: Count | None = None
    """Episodes side by side between two checkpoints; by default 32, on a GPU 256."""
    workers: Annotated[int, Range(1, 1024)] | None = None
    """Processes that grow hosts; by default one for each core, on a GPU one for every 32 hosts, up to eight and half of the cores."""
    member: Literal["standard", "family"] = "family"
    """Family: hosts of all kinds, as policies meet them. Standard: one kind, on which there is nothing to adapt to."""
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
        return self.together or (256 if gpu else 32)
