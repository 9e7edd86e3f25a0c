"""Rewards that cannot be farmed: what a decision earns, in named, bounded parts. docs/rewards.md explains them."""

from esper.simic.rewards.config import COMPONENTS, FinalScore, Mode, RewardConfig, RewardStep, Twin
from esper.simic.rewards.tracker import RewardTracker

__all__ = ["COMPONENTS", "FinalScore", "Mode", "RewardConfig", "RewardStep", "RewardTracker", "Twin"]
