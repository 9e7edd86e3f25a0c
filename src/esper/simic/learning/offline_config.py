"""The settings of learning from recorded runs. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from esper.leyline.config import Count, NonNegative, NonNegativeInt, Range, Share, Size, check_ranges
from esper.leyline.errors import ConfigError
from esper.nissa.config import TelemetryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig:
    """What every way of learning from recorded runs has in common."""

    runs: tuple[Path, ...] = ()
    """Run folders to learn from; the same as naming them without a flag."""
    seed: NonNegativeInt = 0
    """Of the first weights, of which hosts are held out, and of the order of the episodes."""
    batch: Size = 8
    """Whole episodes in one step of the optimiser."""
    held_out: Annotated[float, Range(0.01, 0.9)] = 0.2
    """Share of the recorded hosts that nothing is learned from, to measure agreement and to end by; at least one."""
    patience: Count = 30
    """Epochs without a better result on the held-out hosts after which it ends."""
    gamma: Share = 0.995
    """Discount of the reward, per step."""
    learning_rate: NonNegative = 1e-3
    weight_decay: NonNegative = 0.01
    """Of the critic alone."""
    max_gradient_norm: Annotated[float, Range(1e-6)] = 1.0
    """Largest norm of each network's gradient; larger ones are clipped to it."""
    hidden: Size = 128
    """Memory of the policy's LSTM."""
    slot_width: Size = 64
    """Features of a slot in the policy."""
    threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads for torch."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    checkpoint_every: Count = 20
    """Epochs between checkpoints."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig(StudyConfig):
    """Everything that decides how recorded decisions are imitated. Written to config.toml, from which the same run starts again."""

    kind: Literal["bc"] = "bc"
    epochs: Count = 200
    """Most epochs over the recorded episodes."""
    balance: Share = 0.0
    """How much rare ops count: 0 each step the same, so that the policy acts as often as was recorded; 1 each op the same in all, however
    rare, so that it acts wherever it is in doubt."""
    untold: Share = 0.1
    """Chance that an episode is seen without its train figures, without losses, or without standard errors, each by itself: loops that do
    not tell them are decided for as well."""
    temperature: Annotated[float, Range(0.01)] | None = None
    """Where hosts were recorded several times, under different controllers, learn most from what ended best on each: points of score by
    which one episode has to be ahead of another to count e times as much. Without it all count the same."""
    expected: bool = False
    """Weigh by what a regression over all hosts of a task expects each controller to score, by what is seen of a host before anything
    grows, instead of by what came out on each host, which is luck as well. Each host must have been recorded under every controller, or
    under one alone, which it then counts with."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.expected and self.temperature is None:
            raise ConfigError("'expected' says by what the episodes of a host are weighed, and 'temperature' how much; give both")


@dataclass(frozen=True, slots=True, kw_only=True)
class IQLConfig(StudyConfig):
    """Everything that decides how implicit Q-learning goes. Written to config.toml, from which the same run starts again."""

    kind: Literal["iql"] = "iql"
    epochs: Count = 200
    """Most epochs over the recorded episodes."""
    warmup: NonNegativeInt = 20
    """First epochs, in which values learn the recorded returns themselves; from there on they look for better ones."""
    expectile: Annotated[float, Range(0.5, 0.999)] = 0.7
    """Which of the recorded actions a state is valued by: 0.5 their mean, towards 1 the best of them."""
    beta: NonNegative = 3.0
    """How much better actions are preferred, per standard deviation of the return; 0 imitates them all."""
    weight_limit: Annotated[float, Range(1.0)] = 100.0
    """Most that one action can count."""
    polyak: Annotated[float, Range(1e-6, 1.0)] = 0.005
    """Share of the present Q networks that goes into the slow ones with each step."""

    def __post_init__(self) -> None:
        check_ranges(self)
