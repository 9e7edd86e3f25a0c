"""A trained policy as a controller like any other: it looks at one host after each epoch, decides, and remembers in plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from esper.leyline.actions import Decision
from esper.leyline.errors import LearningError, StateError
from esper.tamiyo.controllers.controller import State
from esper.tamiyo.observe.signals import Observation
from esper.tamiyo.policy.batch import ObservationBatch, decision_of
from esper.tamiyo.policy.network import LSTMState
from esper.tamiyo.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class PolicyController:
    """Takes the mode of a policy, the likeliest value of each head. The policy may serve any number of hosts, whatever their slots."""

    policy: Policy
    name: str = "policy"

    def start(self, seed: int) -> State:
        """A memory of zeros. Nothing is random, so the seed does not matter."""
        nothing = [0.0] * self.policy.config.hidden
        return {"memory": [nothing, nothing]}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """What the policy does, with its probability as the reason."""
        blueprints = self.policy.config.blueprints
        batch = ObservationBatch.from_observations([observation], blueprints, self.policy.device)
        actions, distribution, memory = self.policy.choose(batch, self._memory(state), None)
        decision = decision_of(observation.masks, actions[0].tolist(), blueprints)
        probability = float(distribution.score(actions).log_prob.exp()[0])
        if math.isnan(probability):
            raise LearningError("the policy gives a probability that is not a number: its weights are too large; train it again")
        return replace(decision, reason=f"probability {probability:.2g}"), {"memory": [each[0].tolist() for each in memory]}

    def _memory(self, state: State) -> LSTMState:
        # A float32 survives the way through Python's floats, and through JSON, bit by bit.
        h, c = (torch.tensor([values], dtype=torch.float32, device=self.policy.device) for values in state["memory"])
        if h.shape != (1, self.policy.config.hidden) or c.shape != h.shape:
            raise StateError(f"the saved memory has {h.shape[-1]} values; this policy remembers {self.policy.config.hidden}")
        return h, c
