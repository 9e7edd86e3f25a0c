"""The settings of teaching a policy by PPO. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from esper.leyline.config import check_ranges
from esper.simic.growth.config import GrowthConfig
from esper.simic.learning.ppo_config import EntropyMultipliers, PPOConfig, PriorStrength
from esper.simic.runs.practice_config import SURE, PracticeConfig


def _few_rounds() -> PPOConfig:
    """Learning that pays within some twenty updates: larger steps, and less of a hold on the op head, than PPOConfig's own defaults.

    The heads that hardly matter earn nothing for being undecided.
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
        prior=SURE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PPORunConfig(PracticeConfig):
    """Everything that decides how a policy learns by PPO. Written to config.toml, from which the same run starts again."""

    changeable: ClassVar[tuple[str, ...]] = (*PracticeConfig.changeable, "ppo")
    """But for ppo.prior."""
    method: ClassVar[str] = "ppo"
    kind: Literal["learn"] = "learn"
    ppo: PPOConfig = field(default_factory=_few_rounds)

    def __post_init__(self) -> None:
        PracticeConfig.__post_init__(self)
        check_ranges(self)

    def lasting(self) -> PPORunConfig:
        """This config with whatever may change put back to its default: the same for as long as a run goes on."""
        # Not super(), which the class that slots=True makes anew would not know.
        return replace(GrowthConfig.lasting(self), ppo=replace(PPORunConfig().ppo, prior=self.ppo.prior))
