"""Rewards that cannot be farmed: what a decision earns, in named, bounded parts. docs/rewards.md explains them."""

from esper.simic.rewards.config import COMPONENTS, FinalScore, Mode, RewardConfig, RewardInput, RewardStep, Twin
from esper.simic.rewards.registry import REWARD_COMPONENTS, reward_component
from esper.simic.rewards.tracker import RewardTracker

__all__ = [
    "COMPONENTS",
    "REWARD_COMPONENTS",
    "FinalScore",
    "Mode",
    "RewardConfig",
    "RewardInput",
    "RewardStep",
    "RewardTracker",
    "Twin",
    "reward_component",
]
