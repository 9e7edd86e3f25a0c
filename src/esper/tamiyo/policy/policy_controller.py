"""A trained policy as a controller like any other: it looks at one host after each epoch, decides, and remembers in plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esper.leyline.actions import Decision
from esper.leyline.errors import StateError
from esper.tamiyo.controllers.controller import State
from esper.tamiyo.observe.signals import Observation
from esper.tamiyo.policy.batch import ObservationBatch, decision_of
from esper.tamiyo.policy.heads import uniforms
from esper.tamiyo.policy.network import LSTMState
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import load_policy


@dataclass(frozen=True, slots=True)
class PolicyController:
    """Decides as a policy does. The policy is not changed, and may serve any number of hosts, whatever their slots."""

    policy: Policy
    deterministic: bool = True
    """Take the likeliest value of each head; otherwise draw, by seed, host and epoch."""
    name: str = "policy"

    @classmethod
    def from_file(cls, path: str | Path, *, deterministic: bool = True, device: torch.device | str = "cpu") -> PolicyController:
        """With the policy in a file; raises PolicyError if it cannot be used."""
        return cls(load_policy(path, device=device), deterministic)

    def start(self, host: int, slots: tuple[str, ...], seed: int) -> State:
        """Nothing is remembered yet but where chance comes from."""
        nothing = [0.0] * self.policy.config.hidden
        return {"seed": seed, "host": host, "memory": [nothing, nothing]}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """What the policy does, and how sure it is of it."""
        config, device = self.policy.config, self.policy.device
        batch = ObservationBatch.from_observations([observation], config.blueprints, device)
        chance = None if self.deterministic else uniforms(state["seed"], [state["host"]], observation.report.epoch)
        actions, distribution, (h, c) = self.policy.choose(batch, self._memory(state), chance)
        decision = decision_of(observation.masks, actions[0].tolist(), config.blueprints)
        sure = float(distribution.score(actions).log_prob.exp()[0])
        memory = [each[0].tolist() for each in (h, c)]
        return replace(decision, reason=f"probability {sure:.2g}"), {**state, "memory": memory}

    def _memory(self, state: State) -> LSTMState:
        # A float32 survives the way through Python's floats, and through JSON, bit by bit.
        h, c = (torch.tensor([values], dtype=torch.float32, device=self.policy.device) for values in state["memory"])
        if h.shape != (1, self.policy.config.hidden) or c.shape != h.shape:
            raise StateError(f"the saved memory has {h.shape[-1]} values; this policy remembers {self.policy.config.hidden}")
        return h, c
