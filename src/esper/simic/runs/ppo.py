"""The run of PPO: a policy draws its decisions in rounds of episodes, and learns from each round by what they earned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from esper.leyline.events import HostFinished
from esper.nissa import Hub
from esper.simic.growth.environment import Start
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.ppo import Learner
from esper.simic.learning.rollout import Rollout
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.practice import Practice
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import stream_seed


class PPORun(Practice):
    """A policy that learns by PPO, and the hosts it practises on. The arguments are those of Practice."""

    config: PPORunConfig
    learner: Learner

    def __init__(self, config: PPORunConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        super().__init__(config, config.ppo.prior, hub, command, folder, exploring=True)

    def _learner(self, policy: Policy) -> Learner:
        """PPO, near the policy that it starts from if that has been taught before."""
        config = self.config
        reference = None if config.from_policy is None else copy.deepcopy(policy).requires_grad_(False)
        return Learner(policy, config.ppo.over(config.rounds), config.seed, reference=reference)

    def starts(self, number: int) -> list[Start]:
        """The hosts that are drawn, and nobody else."""
        return self._drawn(number)

    def decider(self, number: int) -> PolicyDecider:
        """The policy, which draws its decisions."""
        seed = stream_seed("round", self.config.seed, number) % (1 << 31)
        return PolicyDecider(self.policy, seed, explore=self.explore, buffer=self.buffer, repeated=self.acting)

    def learn(self, decider: PolicyDecider, rollout: Rollout, played: Sequence[HostFinished]) -> dict[str, float]:
        """One update of PPO."""
        return self.learner.update(rollout.to(self.policy.device))
