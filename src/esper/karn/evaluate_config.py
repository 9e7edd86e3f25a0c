"""The settings of an evaluation. Free of torch, so that the command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, Share, check_ranges
from esper.leyline.errors import ConfigError
from esper.simic.growth.config import GrowthConfig
from esper.simic.runs.practice_config import permissive
from esper.tolaria.training.config import TrainingConfig

FIRST_SEED = 200_000
"""Hosts from here on, among those for development, are not the ones that a PPO run examines its policy on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig(GrowthConfig):
    """Which hosts a policy is looked at on, and what counts as a red flag."""

    task: tuple[str, ...] = ("digits",)
    """What hosts are trained on; several tasks take turns."""
    hosts: Count = 20
    """Hosts that every policy plays, the same for each."""
    seed: NonNegativeInt = FIRST_SEED
    """The first host's seed, of those for development; chance in decisions follows from it too."""
    stochastic: bool = False
    """Draw decisions from the policy instead of taking the likeliest, and show how much chance decides."""
    draws: Annotated[int, Range(2, 1000)] = 3
    """With --stochastic: how often the same hosts are played."""
    checkpoints: bool = False
    """Of run folders of PPO: look at each checkpoint that is kept there, and at the entropy of every round."""
    gamma: Share | None = None
    """Discount of the returns that values are held against; by default that which the policy was trained with, or 0.995."""
    collapse_threshold: Share = 0.9
    """Red flag: one op has more than this share of the decisions that left a choice; for WAIT, of the episodes nothing else is in."""
    entropy_bounds: tuple[float, float] = (0.05, 0.95)
    """Red flag: normalised entropy of a head below the first, or that of the op above the second."""
    survival_threshold: Share = 0.1
    """Red flag: a smaller share of seeds than this is fossilised."""
    value_correlation: Annotated[float, Range(-1.0, 1.0)] = 0.5
    """Red flag: the critic's values correlate less than this with the returns that followed."""
    rollback_threshold: Share = 0.1
    """Red flag: the governor had to roll back, with seeds in the network, more than this share of the hosts."""
    workers: Annotated[int, Range(1, 1024)] | None = None
    """Processes that grow hosts; by default one for each core, on a GPU one for every 32 hosts, up to eight and half of the cores."""
    member: Literal["standard", "family"] = "family"
    """Family: each host's seed draws its width, kernel, data, noise and budget. Standard: hosts differ in weights and data order alone."""
    training: TrainingConfig = field(default_factory=permissive)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.task:
            raise ConfigError("'task' is empty; expected the name of a task, or several")
        low, high = self.entropy_bounds
        if not 0.0 <= low < high <= 1.0:
            raise ConfigError(f"'entropy_bounds' is {low:g} and {high:g}; expected two numbers from 0 to 1, the smaller first")
