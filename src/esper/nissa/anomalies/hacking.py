"""Suspected reward hacking: what is earned and what it is earned for go apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from esper.leyline.events import Anomaly, Envelope, PolicyUpdated
from esper.nissa.anomalies.alarms import Detector, figure, thirds, trend
from esper.nissa.anomalies.config import AnomalyConfig

REWARD, LEAD, ACCURACY, PREFIX = "rollout/ep_rew_mean", "rollout/against_control", "rollout/accuracy", "reward/"
TERMINAL = f"{PREFIX}terminal"
"""The component that is the final score against the control's, size included."""
HONEST = (TERMINAL, f"{PREFIX}progress")
"""Components that are the accuracy itself; they may have all of the reward."""
MOST_COMPONENTS = 32
"""Components that are watched; those that come first by name."""


class RewardHacking(Detector):
    """A policy that earns more for less."""

    name = "reward_hacking"
    what = (
        "Suspected reward hacking: over a window of rounds the mean reward rises while accuracy, against the control where there is one, "
        "falls; or accuracy falls while one component of the reward rises and has nearly all of it. Networks that become smaller and are "
        "worth more after rent, by the terminal component, are no suspects."
    )
    thresholds = ("hacking_trend", "hacking_fall", "hacking_dominance", "hacking_window", "patience")
    events = (PolicyUpdated,)

    def __init__(self, config: AnomalyConfig) -> None:
        super().__init__(config)
        self.rounds: list[dict[str, float]] = []
        """The figures of the last rounds that have a reward."""

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Take a round, and judge the window that ends with it."""
        assert isinstance(envelope.event, PolicyUpdated)
        metrics, config = envelope.event.metrics, self.config
        components = sorted(name for name in metrics if name.startswith(PREFIX))[:MOST_COMPONENTS]
        found = {name: figure(metrics, name) for name in (REWARD, LEAD, ACCURACY, *components)}
        if found[REWARD] is None:
            return
        figures = {name: value for name, value in found.items() if value is not None}
        self.rounds = [*self.rounds, figures][-config.hacking_window :]
        if len(self.rounds) < config.hacking_window or config.hacking_trend == 0.0:
            return
        suspicion = self._suspicion()
        if self.alarms.begins("reward", suspicion is not None) and suspicion is not None:
            yield suspicion

    def _suspicion(self) -> Anomaly | None:
        """What the window looks like, if it looks like hacking."""
        config = self.config
        outcome = self._series(LEAD) or self._series(ACCURACY)
        if not outcome or trend(outcome) > -config.hacking_trend:
            return None
        (high, low), terminal = thirds(outcome), self._series(TERMINAL)
        if not high - low >= config.hacking_fall or (terminal and thirds(terminal)[1] > thirds(terminal)[0]):
            return None
        what = "lead over the control" if self._series(LEAD) else "accuracy"
        fell = f"while the {what} fell from {high:.1f} to {low:.1f} points in {config.hacking_window} rounds: the reward may be hacked"
        reward = self._series(REWARD)
        if trend(reward) >= config.hacking_trend:
            before, after = thirds(reward)
            return self.anomaly(f"the mean reward rose from {before:.2g} to {after:.2g} {fell}", high - low, config.hacking_fall)
        if (component := self._dominant()) is not None:
            name, share = component
            return self.anomaly(f"{name} rose and has {share:.0%} of the reward, {fell}", share, config.hacking_dominance)
        return None

    def _dominant(self) -> tuple[str, float] | None:
        """The component that rises and has nearly all of what is earned and paid in the last third of the window, and its share."""
        last = {name: self._series(name) for name in self.rounds[-1] if name.startswith(PREFIX)}
        sizes = {name: abs(thirds(series)[1]) for name, series in last.items() if series}
        total = sum(sizes.values())
        for name, size in sizes.items():
            share = size / total if total > 0.0 else 0.0
            rises = thirds(last[name])[1] > 0.0 and trend(last[name]) >= self.config.hacking_trend
            if name not in HONEST and share > self.config.hacking_dominance and rises:
                return name.removeprefix(PREFIX), share
        return None

    def _series(self, name: str) -> list[float]:
        """A figure over the window; empty unless every round has it."""
        series = [figures[name] for figures in self.rounds if name in figures]
        return series if len(series) == len(self.rounds) else []

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it."""
        return {**super().state(), "rounds": [dict(figures) for figures in self.rounds]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state(state)
        self.rounds = [dict(figures) for figures in state["rounds"]]
