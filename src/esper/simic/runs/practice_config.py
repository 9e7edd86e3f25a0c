"""What every way of teaching a policy by playing has in common. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, Size, check_ranges
from esper.leyline.errors import ConfigError
from esper.leyline.reports import GateConfig
from esper.simic.growth.config import CARRIED_OUT, GrowthConfig, processes
from esper.tamiyo.controllers.prior import Prior
from esper.tolaria.training.config import TrainingConfig

SURE = Prior(wait=0.8, wait_when_ready=0.2, retarget=0.02, full_influence=0.98, usual=0.98)
"""What policies start from. Readier than the prior of the random baseline to take a seed on to the end: where half-grown seeds are the
rule, what is learned first is to leave growing alone. And nearly sure in the heads that hardly matter, so that op, slot and blueprint,
which decide a score, are what is explored."""


def permissive() -> TrainingConfig:
    """Policies learn under gates that ask for structure and health alone."""
    return TrainingConfig(gates=GateConfig.permissive())


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeConfig(GrowthConfig):
    """The hosts that a policy practises on, in rounds, and those that it is examined on."""

    method: ClassVar[str]
    """What it learns by, as `esper train` calls it."""

    changeable: ClassVar[tuple[str, ...]] = ("rounds", "examined", "deterministic", *CARRIED_OUT)
    task: tuple[str, ...] = ("digits",)
    """What to practise on; several tasks take turns."""
    turns: Literal["hosts", "rounds"] = "hosts"
    """How they do: host by host, so that every round has as many hosts of each, or one more; or a whole round each, which is faster where
    an epoch of one takes much longer than of another, since in every epoch all hosts of a round wait for the slowest."""
    rounds: Count = 24
    """Rounds of one episode for every host, each followed by an update."""
    hosts: Count = 16
    """Episodes in a round."""
    seed: NonNegativeInt = 0
    """Of the policy's weights, its chances, and the hosts to practise on."""
    pool: Annotated[int, Range(0, 1_000_000)] = 64
    """Different hosts to practise on, the control of each trained only once; 0 for hosts that are new in every round."""
    workers: Annotated[int, Range(1, 1024)] | None = None
    """Processes that grow hosts; by default one for each core, on a GPU one for every 32 hosts, up to eight and half of the cores."""
    examined: Annotated[int, Range(2, 1_000_000)] = 40
    """Unseen hosts that the policy is compared on at the end."""
    deterministic: bool = True
    """In the examination, take the likeliest decision instead of drawing one."""
    from_policy: str | None = None
    """A policy to start from: the name of one that ships, or a file, e.g. of one that imitates the heuristic."""
    reset_heads: tuple[str, ...] = ()
    """Heads of that policy to make new: slot, blueprint, tempo and so on."""
    hidden: Size | None = None
    """Memory of the policy's LSTM; by default 128, or that of the policy to start from."""
    slot_width: Size | None = None
    """Features of a slot in the policy; by default 64, or those of the policy to start from."""
    checkpoint_every: Count = 1
    """Rounds between checkpoints."""
    member: Literal["standard", "family"] = "family"
    """Family: each host's seed draws its width, kernel, data, noise and budget, so that there is something to tell hosts apart by.
    Standard: hosts differ in their weights and data order alone, and one schedule suits them all."""
    training: TrainingConfig = field(default_factory=permissive)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.task:
            raise ConfigError("'task' is empty; expected the name of a task, or several")
        if 0 < self.pool < len(self.task):
            raise ConfigError(
                f"'pool' is {self.pool}; expected a host for each of {len(self.task)} tasks, or 0 for new ones in every round"
            )

    def processes(self, *, gpu: bool) -> int:
        """In how many processes hosts grow."""
        return processes(self.workers, self.side_by_side, gpu=gpu)

    @property
    def side_by_side(self) -> int:
        """Hosts that train at once in a round."""
        return self.hosts
