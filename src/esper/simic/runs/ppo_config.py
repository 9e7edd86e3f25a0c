"""The settings of learning a policy. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from esper.leyline.config import Count, NonNegativeInt, Range, Size, check_ranges
from esper.leyline.errors import ConfigError
from esper.leyline.reports import GateConfig
from esper.simic.growth.config import CARRIED_OUT, GrowthConfig, processes
from esper.simic.learning.ppo_config import EntropyMultipliers, PPOConfig, PriorStrength
from esper.tamiyo.controllers.prior import Prior
from esper.tolaria.training.config import TrainingConfig


def permissive() -> TrainingConfig:
    """Policies learn under gates that ask for structure and health alone."""
    return TrainingConfig(gates=GateConfig.permissive())


def _few_rounds() -> PPOConfig:
    """Learning that pays within some twenty updates: larger steps, and less of a hold on the op head, than PPOConfig's own defaults.

    And a start that is readier to take a seed on to the end: where half-grown seeds are the rule, what is learned first is to leave
    growing alone, and a few rounds may never find out more. It explores what decides a score, which is op, slot and blueprint: the other
    heads start near their usual values and earn nothing for being undecided.
    """
    return PPOConfig(
        learning_rate=3e-3,
        warmup_updates=2,
        epochs=6,
        target_kl=0.05,
        # With 16 episodes a round, what comes late in them is mostly noise; see benchmarks/gradient.py.
        gae_lambda=0.85,
        entropy_start=0.01,
        entropy_end=0.001,
        prior_strength=PriorStrength(op=0.05),
        entropy_multipliers=EntropyMultipliers(style=0.0, tempo=0.0, alpha_target=0.0, alpha_speed=0.0, alpha_curve=0.0),
        prior=Prior(wait=0.8, wait_when_ready=0.2, retarget=0.02, full_influence=0.98, usual=0.98),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PPORunConfig(GrowthConfig):
    """Everything that decides how a policy learns by playing. Written to config.toml, from which the same run starts again."""

    changeable: ClassVar[tuple[str, ...]] = ("rounds", "examined", "deterministic", "ppo", *CARRIED_OUT)
    """But for ppo.prior."""
    kind: Literal["learn"] = "learn"
    task: tuple[str, ...] = ("digits",)
    """What to practise on; several tasks take turns, so that every round has as many hosts of each, or one more."""
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
    ppo: PPOConfig = field(default_factory=_few_rounds)

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
        return processes(self.workers, self.hosts, gpu=gpu)

    def lasting(self) -> PPORunConfig:
        """This config with whatever may change put back to its default: the same for as long as a run goes on."""
        # Not super(), which the class that slots=True makes anew would not know.
        return replace(GrowthConfig.lasting(self), ppo=replace(PPORunConfig().ppo, prior=self.ppo.prior))
