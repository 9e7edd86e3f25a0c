"""Episodes made by hand, for diagnostics whose answer is known, and real policies that are healthy or ill by construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from esper.karn.episodes import Episode, Mind, Step
from esper.karn.evaluate_config import EvaluateConfig
from esper.karn.evaluation import Recorded
from esper.kasmina.blueprints import names
from esper.leyline.actions import WAIT, Head, Op
from esper.leyline.events import HostFinished, HostStarted, StageChanged
from esper.leyline.reports import Topology
from esper.leyline.stages import Stage
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.lives import Lives, happened, measured
from esper.simic.growth.play import Play
from esper.simic.learning.rollout import discounted
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tolaria.data.streams import stream_seed
from tests.simic.runs import HASTY, MEMBER

FREE = (True, True, False, False, False, False)
"""WAIT and GERMINATE are legal."""
BOUND = (True, False, False, False, False, False)
"""WAIT alone is."""


def step(epoch: int = 1, **fields: Any) -> Step:
    """A step at which WAIT was decided and GERMINATE would have been legal, but for the fields given."""
    plain: dict[str, Any] = {"legal": FREE, "decision": WAIT, "reward": 0.0, "trend": None, "val_accuracy": 50.0, "bare_accuracy": None}
    return Step(**{**plain, "epoch": epoch, "seeds": (), "gradients": None, "operations": 0, **fields})


def episode(*steps: Step, host: int = 0, draw: int = 0, mind: Mind | None = None, **result: Any) -> Episode:
    """An episode of these steps; result: fields of how it ended."""
    started = HostStarted(task="digits", seed=host, member={}, epochs=len(steps), parameters=100, slots=("r0c0", "r0c1"))
    ended: dict[str, Any] = {"val_accuracy": 60.0, "val_loss": 1.0, "test_accuracy": None, "test_loss": None, "rent": 5.0}
    ended |= {"host_parameters": 100, "parameters": 100, "control_accuracy": None, "control_loss": None, "flops": {}, "germinated": 0}
    ended |= {"fossilized": 0, "pruned": 0, "rollbacks": 0, "reward": 0.0, "components": {}, "decisions": {}, "refused": 0, "slots": {}}
    ended["seeds"] = lives(steps)
    return Episode(host=host, draw=draw, started=started, steps=steps, result=HostFinished(**{**ended, **result}), mind=mind)


def lives(steps: Sequence[Step]) -> Lives:
    """The seeds of these steps, as a host run puts them together."""
    found: Lives = ()
    for each in steps:
        found = happened(measured(found, each.epoch, each.seeds), each.epoch, each.events, each.decision)
    return found


def mind(entropy: Sequence[float], *, op: Sequence[Sequence[float]] | None = None, **arrays: Sequence[float]) -> Mind:
    """What a policy thought: the op head's entropy at each step, where it had two values to choose from."""
    steps = len(entropy)
    entropies, legal = np.zeros((steps, len(Head))), np.zeros((steps, len(Head)), dtype=np.int64)
    entropies[:, 0], legal[:, 0] = entropy, 2
    zeros = {name: np.zeros(steps) for name in ("value", "returns", "targets")}
    given = {name: np.asarray(values, dtype=np.float64) for name, values in arrays.items()}
    probabilities = np.zeros((steps, len(Op))) if op is None else np.asarray(op, dtype=np.float64)
    return Mind(op_probability=probabilities, entropy=entropies, legal=legal, **{**zeros, **given})


def stage(before: Stage, after: Stage, slot: str = "r0c0", blueprint: str = "norm") -> StageChanged:
    """A change of stage as it is recorded."""
    return StageChanged(slot=slot, before=before, after=after, cause="test", blueprint=blueprint, parameters=10)


# Real policies on real hosts


def tiny(**settings: Any) -> EvaluateConfig:
    """Hosts that take a tenth of a second, on which seeds come through their lives."""
    usual: dict[str, Any] = {"hosts": 6, "epochs": 14, "member": "standard", "fix": MEMBER, "training": HASTY, "workers": 1}
    return EvaluateConfig(**{**usual, **settings})


def biased(prior: Prior | None = None, *, choices: dict[Head, int] | None = None, **ops: float) -> Policy:
    """An untrained policy with biases on ops, by name, and heads that always take one value."""
    blueprints = tuple(dict.fromkeys(name for topology in Topology for name in names(topology)))
    policy = Policy(PolicyConfig(blueprints=blueprints, hidden=32, slot_width=8, prior=prior), torch.Generator().manual_seed(2))
    with torch.no_grad():
        for name, bias in ops.items():
            policy.heads.op.bias[Op[name]] += bias
        for head, value in (choices or {}).items():
            policy.heads.choices[head.value].bias[value] += 30.0
    return policy.eval()


def sentinel(config: EvaluateConfig) -> Policy:
    """A healthy policy: it waits nine times out of ten while nothing is ready, takes seeds on when they are, and its critic knows what is
    coming, since it is fitted to what will be earned when it is evaluated like this."""
    policy = biased(Prior(wait=0.9, wait_when_ready=0.05))
    with torch.no_grad():  # blending that comes to its end within the budget, as a rule
        policy.heads.choices["tempo"].bias[0] += 2.0
        policy.heads.choices["alpha_target"].bias[-1] += 2.0
    starts = [Start("digits", config.seed + place) for place in range(config.hosts)]
    x, y = [], []
    for draw in range(config.draws):
        decider = Recorded(policy, stream_seed("evaluate", config.seed, draw) % (1 << 31))
        Play(Growth(config), decider, starts).through()
        assert decider.buffer is not None
        rollout = decider.buffer.rollout()
        with torch.no_grad():
            features, _ = policy.critic.replay(rollout.observations, checkpoint_lstm=False, autocast=False)
        x.append(features[rollout.weight > 0].double())
        y.append(discounted(rollout.reward, 0.995)[rollout.weight > 0].double())
    inputs = torch.cat([torch.cat(x), torch.ones(sum(map(len, x)), 1)], dim=1)
    fitted = torch.linalg.lstsq(inputs, torch.cat(y).unsqueeze(-1)).solution
    with torch.no_grad():
        policy.value_head.output.weight.copy_(fitted[:-1].T)
        policy.value_head.output.bias.copy_(fitted[-1])
    return policy


class Exploding(nn.Module):
    """A seed that learns nothing, and whose output is out of all bounds once it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale if self.training else x * 1e30
