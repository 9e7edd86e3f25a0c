"""What learning costs: one PPO update against one of sb3-contrib's RecurrentPPO of equal size, and the latency of a decision.

    python benchmarks/ppo.py [--repeats 5] [--json FILE]

Both have the same hosts, steps, slots and heads, an LSTM of 128 for actor and critic each, 4 epochs and 4 minibatches, one thread. Ours
has the encoder of slots on top, and works out everything it reports (exact KL after every epoch, explained variance, regression). The
updates take turns and are measured in CPU time, so that other work on the machine does not count; the ratio of medians is what does.
Without sb3-contrib (`pip install sb3-contrib`) its column is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from esper.leyline.actions import Op
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


def timed(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of CPU time of each task; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            if repeat > 0:  # the first warms up
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(hosts: int, steps: int, repeats: int) -> dict[str, Any]:
    """Seconds of an update of each."""
    learner, rollout = ours(hosts, steps)
    tasks: dict[str, Callable[[], object]] = {"esper": lambda: learner.update(rollout)}
    if importlib.util.find_spec("sb3_contrib") is not None:
        tasks["sb3-contrib"] = theirs(hosts, steps).train
    medians = timed(tasks, repeats)
    ratio = medians["sb3-contrib"] / medians["esper"] if "sb3-contrib" in medians else None
    return {"hosts": hosts, "steps": steps, "seconds": medians, "times_faster": ratio}


def latency(hosts: int, repeats: int) -> float:
    """Seconds of a decision for so many hosts at once."""
    learner, _ = ours(hosts, 1)
    policy, batch = learner.policy, observed(hosts, torch.Generator().manual_seed(1))
    state, numbers = policy.initial_state(hosts), uniforms(0, range(hosts), 0)
    return timed({"act": lambda: policy.act(batch, state, numbers)}, 20 * repeats)["act"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [compare(hosts, steps, args.repeats) for hosts, steps in SIZES]
    print(f"{'hosts x steps':14} {'esper':>10} {'sb3-contrib':>12}  times faster")
    for row in rows:
        size, seconds = f"{row['hosts']} x {row['steps']}", row["seconds"]
        other = f"{1e3 * seconds['sb3-contrib']:10.0f}ms  {row['times_faster']:.1f}" if row["times_faster"] else "not installed"
        print(f"{size:14} {1e3 * seconds['esper']:8.0f}ms {other}")
    decisions = {hosts: latency(hosts, args.repeats) for hosts in (1, 8, 64)}
    print("a decision: " + ", ".join(f"{1e3 * seconds:.1f} ms for {hosts} hosts" for hosts, seconds in decisions.items()))
    if args.json:
        args.json.write_text(json.dumps({"updates": rows, "decision_seconds": decisions}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
