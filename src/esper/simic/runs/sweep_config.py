"""The settings of a sweep. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from esper.leyline.config import Count, check_ranges
from esper.leyline.errors import ConfigError
from esper.nissa.config import TelemetryConfig
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.ppo_config import PPORunConfig

Swept = ControllerRunConfig | PPORunConfig | ExpertRunConfig
"""What a sweep is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """One method of `esper train`, run once for each of several values of its settings. Written to config.toml."""

    kind: Literal["sweep"] = "sweep"
    over: dict[str, str] = field(default_factory=dict)
    """What varies, by dotted keys: KEY=A,B,C, or with --points also KEY=LOW..HIGH and KEY=LOW..HIGH:log."""
    points: Count | None = None
    """Draw so many points at random; by default every combination of the values is one."""
    run: ControllerRunConfig | None = None
    learn: PPORunConfig | None = None
    expert: ExpertRunConfig | None = None
    """What does not vary: the config of a run under a controller, or of a policy that learns, by PPO or by forked search. One of them."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if [self.run, self.learn, self.expert].count(None) != 2:
            raise ConfigError("a sweep needs one table of 'run', 'learn' and 'expert': the method that it sweeps")

    @property
    def method_config(self) -> Swept:
        """What does not vary."""
        found = self.run or self.learn or self.expert
        assert found is not None
        return found

    @property
    def method(self) -> str:
        """The method of `esper train`."""
        config = self.method_config
        return "heuristic" if isinstance(config, ControllerRunConfig) else config.method

    @property
    def seed(self) -> int:
        """Of the runs, and of points that are drawn at random."""
        return self.method_config.seed

    @property
    def plugins(self) -> tuple[Path, ...]:
        """Those of the runs."""
        return self.method_config.plugins

    @property
    def telemetry(self) -> TelemetryConfig:
        """That of the runs."""
        return self.method_config.telemetry

    @property
    def checkpoint_every(self) -> int:
        """After every point; the runs have checkpoints of their own."""
        return 1
