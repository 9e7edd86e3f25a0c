"""Early stopping of what is learned from recorded runs: a policy is saved as it was when it did best on held-out hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from esper.tamiyo.policy.policy import Policy

PARTS = {"actor": ("actor.", "heads."), "critic": ("critic.", "value_head.")}
"""What belongs to each, by the beginnings of its parameters' names. They share nothing, so that each may be of another epoch."""


class EarlyStopping:
    """Keeps actor and critic, each as it was when its loss on the held-out hosts was lowest."""

    def __init__(self, policy: Policy, patience: int) -> None:
        self.policy, self.patience = policy, patience
        self.waited = 0
        """Epochs since one of the two was better than before."""
        self.best = dict.fromkeys(PARTS, math.inf)
        self.kept = {name: value.clone() for name, value in policy.state_dict().items()}

    @property
    def finished(self) -> bool:
        """Whether neither actor nor critic got better for long enough."""
        return self.waited >= self.patience

    def look(self, *, actor: float, critic: float) -> None:
        """The losses on the held-out hosts after an epoch."""
        better = {part: loss for part, loss in (("actor", actor), ("critic", critic)) if loss < self.best[part]}
        self.best |= better
        own = tuple(prefix for part in better for prefix in PARTS[part])
        self.kept |= {name: each.clone() for name, each in self.policy.state_dict().items() if name.startswith(own)}
        self.waited = 0 if better else self.waited + 1

    def restore(self) -> None:
        """Leave the policy as it was when it did best."""
        self.policy.load_state_dict(self.kept)

    def state(self) -> dict[str, Any]:
        """Everything, as a checkpoint can hold it."""
        return {"waited": self.waited, "best": dict(self.best), "kept": dict(self.kept)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
        self.waited, self.best, self.kept = state["waited"], dict(state["best"]), dict(state["kept"])
