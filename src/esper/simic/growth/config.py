"""The settings of hosts and runs. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from esper.leyline.config import Count, NonNegativeInt, Range, check_ranges
from esper.leyline.errors import ConfigError
from esper.nissa.config import TelemetryConfig
from esper.simic.rewards import RewardConfig
from esper.tamiyo import FixedConfig, HeuristicConfig, RandomConfig
from esper.tolaria.training.config import EngineName, TrainingConfig

if TYPE_CHECKING:
    from esper.tolaria.tasks import Family, Member


GPU_PROCESSES, GPU_HOSTS = 8, 32
"""Processes that share a GPU by default, at most, and hosts that each of them has, at least."""

MACHINE = ("engine", "device", "devices", "threads", "telemetry")
"""Settings of where hosts are trained and what is recorded of it, which any run may go on with others of."""
CARRIED_OUT = ("workers", "checkpoint_every", *MACHINE)
"""Settings of how a run that plays many hosts is carried out, which it may go on with others of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthConfig:
    """Which hosts are grown, and under which rules; whoever decides."""

    changeable: ClassVar[tuple[str, ...]] = MACHINE
    """Settings that may be others when an interrupted run goes on; the rest is part of what it has done so far."""

    member: Literal["standard", "family"] = "standard"
    """Standard: every host as the task's table describes. Family: each host's seed draws width, data, noise and budget."""
    fix: dict[str, str] = field(default_factory=dict)
    """Fields of the member that are the same for every host, e.g. kernel=3 widths=[4,8]; docs/tasks.md lists them."""
    epochs: Count | None = None
    """Epochs of each host; by default the task's own budget."""
    slots: tuple[str, ...] = ()
    """Ids of the slots that may be used; all when empty."""
    max_seeds: Annotated[int, Range(1)] | None = None
    """Most seeds, live or fossil, that a host may hold at once."""
    control: bool = True
    """Also train each host without growth, as a twin with the same seed, to compare with."""
    plugins: tuple[Path, ...] = ()
    """Python files with tasks, blueprints, controllers, reward components or sinks of your own; see docs/bring-your-own.md."""
    data: Path | None = None
    """Folder with the task's data; by default the cache."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    devices: tuple[str, ...] = ()
    """Several GPUs that hosts are shared out over, e.g. cuda:0,cuda:1, in place of --device; a policy learns on the first."""
    engine: EngineName = "auto"
    """What trains the hosts: serial, one after another; fleet, hosts of one architecture as one program, which is faster where there are
    many of them; auto, fleet on a GPU and serial on a CPU. Results do not depend on it, but for rounding."""
    threads: Annotated[int, Range(1, 1024)] | None = None
    """CPU threads for torch; by default what suits the task, one for small hosts."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    checkpoint_every: Count = 5
    """Epochs, or rounds, between checkpoints."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def every_device(self) -> tuple[str, ...]:
        """Names of all devices that hosts train on."""
        return self.devices or (self.device,)

    def processes(self, *, gpu: bool) -> int:
        """In how many processes hosts grow: here in one."""
        return 1

    def lasting(self) -> Self:
        """This config with whatever may change put back to its default: the same for as long as a run goes on."""
        fresh = type(self)()
        return replace(self, **{name: getattr(fresh, name) for name in self.changeable})

    def member_for(self, family: Family, seed: int) -> Member:
        """The member of a task's family that a host seed stands for."""
        return self.member_of(self.fixed_family(family), seed)

    def fixed_family(self, family: Family) -> Family:
        """A task's family with what is the same for every host."""
        fixed: dict[str, Any] = {name: _parsed(text) for name, text in self.fix.items()}
        if self.epochs is not None:
            fixed["epochs"] = self.epochs
        return family.with_fixed(**fixed)

    def member_of(self, fixed: Family, seed: int) -> Member:
        """The member that a host seed stands for, of what `fixed_family` gave: for many hosts it need be asked once."""
        return fixed.standard if self.member == "standard" else fixed.draw(seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedConfig(GrowthConfig):
    """Hosts, and the controller that decides for them."""

    controller: str = "heuristic"
    """Who decides: wait, random, fixed, heuristic, the name of a policy that ships, or a policy's file, such as
    runs/NAME/policy.safetensors."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of a controller that a plug-in brings, e.g. tempo=5; those of Esper's own controllers have tables of their names."""
    heuristic: HeuristicConfig = field(default_factory=HeuristicConfig)
    fixed: FixedConfig = field(default_factory=FixedConfig)
    random: RandomConfig = field(default_factory=RandomConfig)

    def controller_config(self) -> Any:
        """The settings of the controller, for `controller_for`: its own table, or what is set of a plug-in's."""
        own = {"heuristic": self.heuristic, "fixed": self.fixed, "random": self.random}
        if self.controller not in own:
            return {name: _parsed(text) for name, text in self.settings.items()} or None
        if self.settings:
            name = next(iter(self.settings))
            raise ConfigError(f"'settings' are those of a plug-in's controller; expected {name!r} as --{self.controller}.{name}")
        return own[self.controller]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRunConfig(DecidedConfig):
    """Everything that decides a run under a controller. Written to config.toml, from which the same run starts again."""

    kind: Literal["run"] = "run"
    task: str = "digits"
    """What to train on; `esper tasks` lists them."""
    hosts: Count = 4
    """Hosts grown side by side; host i has seed `seed + i`."""
    seed: NonNegativeInt = 0
    """The first host's seed: its initial weights, data order, augmentation and seeds."""
    test: bool = True
    """Score the harvested networks on the test split at the end. Without, the split stays untouched and val figures are all there is."""

    def __post_init__(self) -> None:
        check_ranges(self)


def processes(workers: int | None, hosts: int, *, gpu: bool) -> int:
    """In how many processes hosts grow, so many side by side. On a GPU each takes half a GiB of its memory, and pays once there are many
    hosts for it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = min(GPU_PROCESSES, cores // 2, hosts // GPU_HOSTS) if gpu else cores
    return max(1, min(workers or usual, hosts))


def _parsed(text: str) -> Any:
    """A member's value as it is typed on a command line: a number, true, a list like [4, 8], or else text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also a number of thousands of digits, and lists nested too deeply
        return text
