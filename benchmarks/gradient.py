"""How much of a policy gradient is signal: the choice of gae_lambda, measured.

    python benchmarks/gradient.py [--hosts 256] [--group 16] [--workers 2]

An untrained policy plays one episode on each of many hosts of the digits family. A critic is fitted to one half of them and used on the
other, and the other way round. Then the gradient of each group of episodes, as large as a round, is compared with those of the others:
the mean product of two gradients is the square of what they have in common, the signal; the mean square of one is signal and noise.
"aligned" is the cosine between what the gradients have in common at this lambda and at 1, where nothing is left to the critic; it
is an estimate from few groups and may come out above 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace

import torch
from torch import Tensor

from esper.nissa import Hub
from esper.simic.growth.play import Play
from esper.simic.learning.policy_decider import PolicyDecider
from esper.simic.learning.popart import follow_returns
from esper.simic.learning.ppo import normalised
from esper.simic.learning.ppo_metrics import explained_variance
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tamiyo.policy.policy import Policy

LAMBDAS = (1.0, 0.97, 0.9, 0.85, 0.8, 0.5)
PASSES = 5
"""Of the critic over its half; with more it learns the hosts by heart, and says less about others."""


def played(run: PPORun) -> Rollout:
    """One episode of every host in the pool under the untrained policy."""
    hosts = len(run.pool)
    buffer = RolloutBuffer(
        hosts, run.buffer.steps, run.buffer.observations.slot_count, len(run.policy.config.blueprints), exploration=run.explore
    )
    Play(run.playing.environment, PolicyDecider(run.policy, 5, explore=run.explore, buffer=buffer), run.pool).through()
    return buffer.rollout()


def fitted(run: PPORun, rollout: Rollout, returns: Tensor, rows: Tensor) -> Policy:
    """A policy whose critic was fitted to the returns of these episodes."""
    policy = Policy(run.policy.config, torch.Generator().manual_seed(1))
    parameters = [*policy.critic.parameters(), *policy.value_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5)
    follow_returns(policy.value_head, returns[rows], rollout.weight[rows], 1.0)
    shuffle = torch.Generator().manual_seed(2)
    for _ in range(PASSES):
        for part in rows[torch.randperm(len(rows), generator=shuffle)].split(16):
            weight = rollout.weight[part]
            error = policy.normalised_values(rollout.observations[part]) - policy.value_head.normalise(returns[part])
            optimizer.zero_grad()
            ((error.square() * weight).sum() / weight.sum()).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    return policy


@torch.no_grad()
def with_critic(run: PPORun, rollout: Rollout, gamma: float) -> Rollout:
    """The rollout with values from a critic that has not seen the episode."""
    returns = replace(rollout, value=torch.zeros_like(rollout.value)).advantages(gamma, 1.0)
    halves = torch.arange(rollout.hosts).chunk(2)
    values = torch.empty_like(returns)
    for known, unseen in (halves, halves[::-1]):
        with torch.enable_grad():
            policy = fitted(run, rollout, returns, known)
        values[unseen] = policy.value_head.denormalise(policy.normalised_values(rollout.observations[unseen]))
    print(f"explained variance of the critic on unseen hosts: {explained_variance(values, returns, rollout.weight):.3f}")
    return replace(rollout, value=values * rollout.weight)


def gradients(run: PPORun, rollout: Rollout, advantage: Tensor, groups: int) -> Tensor:
    """[groups, parameters]: the actor's gradient on each group of episodes, as the first step of an update would have it."""
    policy = run.policy
    parameters = [*policy.actor.parameters(), *policy.heads.parameters()]
    found = []
    for group in range(groups):
        rows = torch.arange(group, rollout.hosts, groups)
        weight = rollout.weight[rows]
        scaled = normalised(advantage[rows], weight, rollout.task[rows], run.config.ppo.advantage_clip)
        scores = policy.replay(rollout.observations[rows], rollout.exploration).score(rollout.actions[rows])
        loss = -(scores.log_prob * scaled * weight).sum() / weight.sum()
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        whole = [torch.zeros_like(p) if part is None else part for p, part in zip(parameters, parts, strict=True)]
        found.append(torch.cat([part.flatten() for part in whole]))
    return torch.stack(found).double()


def in_common(a: Tensor, b: Tensor) -> float:
    """The mean product of gradients of different groups: what noise has no part in."""
    groups = len(a)
    return float((a.sum(dim=0) @ b.sum(dim=0) - (a * b).sum()) / (groups * (groups - 1)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=256, help="episodes")
    parser.add_argument("--group", type=int, default=16, help="episodes in a group")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    config = PPORunConfig(pool=arguments.hosts, workers=arguments.workers)
    run = PPORun(config, Hub())
    try:
        rollout = with_critic(run, played(run), config.ppo.gamma)
    finally:
        run.close()
    groups = arguments.hosts // arguments.group
    everything = {lam: gradients(run, rollout, rollout.advantages(config.ppo.gamma, lam), groups) for lam in LAMBDAS}
    print(f"{'lambda':>6} {'signal':>7} {'aligned':>8}")
    for lam, each in everything.items():
        signal, whole = in_common(each, each), float(each.square().sum(dim=1).mean())
        product = in_common(each, everything[1.0])
        scale = math.sqrt(max(signal, 0.0) * max(in_common(everything[1.0], everything[1.0]), 0.0))
        print(f"{lam:6} {signal / whole:7.3f} {product / scale if scale > 0 else math.nan:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
