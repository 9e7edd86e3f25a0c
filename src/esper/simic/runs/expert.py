"""The run of forked search: a policy plays by its likeliest decisions, forks show what others lead to, and it learns from those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from esper.leyline.events import HostFinished
from esper.leyline.score import score
from esper.nissa import Hub
from esper.simic.growth.environment import Start
from esper.simic.learning.expert import ExpertLearner
from esper.simic.learning.forks import Fork, ForkDecider, planned
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.rollout import Rollout
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.practice import Practice
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import stream_seed
from esper.tolaria.tasks import get as get_task


class ExpertRun(Practice):
    """A policy that learns from forks, and the hosts it practises on. The arguments are those of Practice."""

    config: ExpertRunConfig
    learner: ExpertLearner

    def __init__(self, config: ExpertRunConfig, hub: Hub, command: str = "", folder: Path | None = None) -> None:
        super().__init__(config, config.prior, hub, command, folder)

    def _learner(self, policy: Policy) -> ExpertLearner:
        """Expert iteration over all rounds."""
        return ExpertLearner(policy, self.config.expert, self.config.rounds, self.config.seed)

    def about(self) -> dict[str, float | int | str]:
        """How many forks a round has, at most."""
        return {"forks": self.config.side_by_side - self.config.hosts}

    def forks(self, number: int) -> list[Fork]:
        """The forks of a round, counted from 0: a function of the config and that number."""
        config, hosts = self.config, self._drawn(number)
        steps = [config.member_for(get_task(start.task).family, start.seed).epochs for start in hosts]
        random = np.random.default_rng(stream_seed("forks", config.seed, number))
        return planned(steps, config.moments, config.alternatives, random)

    def starts(self, number: int) -> list[Start]:
        """The hosts that are drawn, and behind them their forks: the same hosts once more. Nobody asks for a fork's rewards, so it has no
        control, which each of the workers that have forks of one host would train by itself."""
        hosts = self._drawn(number)
        return [*hosts, *(replace(hosts[fork.host], control=False) for fork in self.forks(number))]

    def decider(self, number: int) -> ForkDecider:
        """The policy by its likeliest decisions, and once in each fork something else."""
        self.policy.eval()
        seed = stream_seed("round", self.config.seed, number) % (1 << 31)
        return ForkDecider(self.policy, seed, self.forks(number), self.buffer, repeated=self.acting)

    def learn(self, decider: PolicyDecider, rollout: Rollout, played: Sequence[HostFinished]) -> dict[str, float]:
        """Learn to prefer what the forks showed to be better."""
        assert isinstance(decider, ForkDecider)
        scores = [score(each.val_accuracy, each.parameters, each.host_parameters, each.rent) for each in played]
        search = decider.search(rollout, scores)
        own = scores[: self.config.hosts]
        earned = (rollout.reward * rollout.weight).sum(dim=1)
        figures = {
            "rollout/score": sum(own) / len(own),
            "rollout/ep_rew_mean": float(earned.mean()),
            "rollout/ep_len_mean": float(rollout.lengths().mean()),
            "search/moments": float(len(search.where)),
            "search/forks": float(search.present.sum()) - len(search.where),
        }
        return figures | self.learner.update(search)

    def trained(self) -> dict[str, Any]:
        """How the policy came about, for its file."""
        return {**super().trained(), "moments": self.config.moments, "alternatives": self.config.alternatives}
