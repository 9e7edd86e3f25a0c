"""One PPO update against one of sb3-contrib's RecurrentPPO of equal size.

    python benchmarks/ppo.py [--quick]

Both have the same hosts, steps, slots and heads, an LSTM of 128 for actor and critic each, 4 epochs and 4 minibatches, one thread. Ours
has the encoder of slots on top, and works out everything it reports (exact KL before every minibatch, explained variance, regression).
Always on the CPU, where policies learn.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from esper.cli.main import main
from esper.cli.measuring import Row, Settings, compared, in_turns
from esper.leyline.actions import Op
from esper.leyline.errors import ConfigError
from esper.leyline.observation import OBSERVATION
from esper.simic.learning.ppo import Learner, PPOConfig
from esper.simic.learning.rollout import Rollout, RolloutBuffer
from esper.tamiyo.observe.masks import HEAD_VALUES
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import Exploration, uniforms
from esper.tamiyo.policy.policy import Policy, PolicyConfig

SLOTS, BLUEPRINTS = 3, 8
SIZES = ((8, 150), (16, 25))
"""Hosts and steps of the rounds that are measured."""
MINIBATCHES, HIDDEN = 4, 128
ROUNDS = 5


def measure(settings: Settings) -> Iterator[Row]:
    """Rows by size of a round."""
    if importlib.util.find_spec("sb3_contrib") is None:
        raise ConfigError("the comparison needs sb3-contrib; install it with: pip install sb3-contrib")
    for hosts, steps in SIZES:
        (learner, rollout), size = ours(hosts, steps), f"{hosts} hosts x {steps} steps"
        reference = f"sb3-contrib, {size}"
        tasks = {reference: theirs(hosts, steps).train, f"esper, {size}": partial(learner.update, rollout)}
        yield from compared(in_turns(settings, tasks, ROUNDS), reference)


def observed(hosts: int, generator: torch.Generator) -> ObservationBatch:
    """Hosts that see noise, with everything legal."""
    batch = ObservationBatch.padding((hosts,), SLOTS, BLUEPRINTS)
    for tensor in (batch.host, batch.slots):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    for mask in (batch.exists, batch.op_mask, batch.slot_mask, batch.blueprint_mask):
        mask.fill_(True)
    batch.slot_mask[:, Op.WAIT] = False
    return batch


def ours(hosts: int, steps: int) -> tuple[Learner, Rollout]:
    """A learner and a round for it."""
    policy = Policy(PolicyConfig(blueprints=tuple(f"blueprint_{i}" for i in range(BLUEPRINTS)), hidden=HIDDEN))
    generator, explore = torch.Generator().manual_seed(0), Exploration.for_budget(steps)
    buffer = RolloutBuffer(hosts, steps, SLOTS, BLUEPRINTS, exploration=explore)
    state = policy.initial_state(hosts)
    for step in range(steps):
        batch = observed(hosts, generator)
        acted = policy.act(batch, state, uniforms(0, range(hosts), step), explore)
        state = acted.state
        buffer.decided(range(hosts), step, batch, acted)
        reward = torch.randn(hosts, generator=generator)
        buffer.outcome(range(hosts), step, reward, terminated=torch.full((hosts,), step == steps - 1))
    return Learner(policy, PPOConfig(minibatches=MINIBATCHES, target_kl=1e9)), buffer.rollout()


def theirs(hosts: int, steps: int) -> Any:
    """RecurrentPPO of the same size, with a round collected."""
    import gymnasium
    import numpy as np
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    values = [len(Op), SLOTS, BLUEPRINTS, *(len(HEAD_VALUES[head]) for head in HEADS[3:])]

    class Noise(gymnasium.Env[Any, Any]):
        size = OBSERVATION.host_size + SLOTS * OBSERVATION.slot_size
        observation_space = gymnasium.spaces.Box(-10.0, 10.0, (size,), dtype=np.float32)
        action_space = gymnasium.spaces.MultiDiscrete(values)

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**options)
            self.step_number = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.step_number += 1
            return self.observation_space.sample(), float(self.np_random.normal()), self.step_number == steps, False, {}

    model = RecurrentPPO(
        "MlpLstmPolicy",
        DummyVecEnv([Noise] * hosts),
        n_steps=steps,
        batch_size=hosts * steps // MINIBATCHES,
        n_epochs=PPOConfig().epochs,
        target_kl=None,
        device="cpu",
        policy_kwargs={"lstm_hidden_size": HIDDEN, "enable_critic_lstm": True, "net_arch": {"pi": [HIDDEN], "vf": [HIDDEN]}},
    )
    model.learn(hosts * steps)
    return model


if __name__ == "__main__":
    sys.exit(main(["benchmark", __file__, *sys.argv[1:]]))
