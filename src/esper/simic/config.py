"""The settings of a run. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from esper.leyline.config import Range, check_ranges
from esper.tamiyo import FixedConfig, HeuristicConfig, RandomConfig
from esper.tolaria.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides a run. Written to config.toml, from which the same run starts again."""

    task: str = "digits"
    """What to train on; `esper tasks` lists them."""
    controller: str = "heuristic"
    """Who decides: wait, random, fixed or heuristic."""
    hosts: Annotated[int, Range(1)] = 4
    """Hosts grown side by side; host i has seed `seed + i`."""
    seed: Annotated[int, Range(0)] = 0
    epochs: Annotated[int, Range(1)] | None = None
    """Epochs of each host; by default the task's own budget."""
    member: Literal["standard", "family"] = "standard"
    """Standard: every host as the task's table describes. Family: each host's seed draws width, data, noise and budget."""
    fixed_member: dict[str, str] = field(default_factory=dict)
    """Fields of the member to fix, e.g. kernel = "3"."""
    slots: tuple[str, ...] = ()
    """Ids of the slots that may be used; all when empty."""
    max_seeds: Annotated[int, Range(1)] | None = None
    """Most seeds, live or fossil, that a host may hold at once."""
    control: bool = True
    """Also train each host without growth, as a twin with the same seed, to compare with."""
    data: Path | None = None
    """Folder with the task's data; by default the cache."""
    device: str = "cpu"
    threads: Annotated[int, Range(1)] = 1
    """CPU threads for torch; one is fastest for small hosts."""
    checkpoint_every: Annotated[int, Range(1)] = 5
    """Epochs between checkpoints."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    heuristic: HeuristicConfig = field(default_factory=HeuristicConfig)
    fixed: FixedConfig = field(default_factory=FixedConfig)
    random: RandomConfig = field(default_factory=RandomConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
