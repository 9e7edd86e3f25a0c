"""Settings of training. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from esper.leyline.config import Count, NonNegative, Range, check_ranges
from esper.leyline.errors import ConfigError
from esper.leyline.reports import GateConfig, Isolation, LifecycleConfig
from esper.tolaria.training.governor import GovernorConfig

Precision = Literal["fp32", "bf16"]
EngineName = Literal["auto", "serial", "fleet"]
"""What trains hosts; see `GrowthConfig.engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How hosts are trained; the same for all hosts of a run."""

    isolation: Isolation = "boost"
    """How seeds in TRAINING are kept from touching the host: boost, ste, shadow or none."""
    clip: NonNegative = 1.0
    """Largest gradient norm, for the host and for each seed apart."""
    precision: Precision = "fp32"
    """bf16 computes under autocast; weights stay float32."""
    channels_last: bool = False
    """Lay images out with channels last, which some devices prefer."""
    compile: str = ""
    """Backend for torch.compile, e.g. inductor; empty to run as written."""
    eval_batch: Count = 2048
    """Samples in one validation pass, all stacked configurations together; caps the memory it takes."""
    recalibrate: Annotated[int, Range(0, 1_000_000)] = 256
    """Training samples that the statistics of batch norms are made anew from before every measurement; 0 measures with the running ones,
    which lag behind a host that changes."""
    gates: GateConfig = field(default_factory=GateConfig)
    lifecycle: LifecycleConfig = field(default_factory=LifecycleConfig)
    governor: GovernorConfig = field(default_factory=GovernorConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.recalibrate == 1:
            raise ConfigError("'recalibrate' is 1; expected 0, for never, or at least 2 samples, which have a variance")
