"""Chooses the display that fits a run, once the run says what it is."""

from __future__ import annotations

from typing import Any

from esper.cli.display import Display, Silent, make_display
from esper.cli.learning_display import make_learning_display
from esper.cli.study_display import make_study_display
from esper.simic.learning.offline_config import StudyConfig
from esper.simic.runs.ppo_config import PPORunConfig


class Watching:
    """A watcher that passes everything on to the display of whatever runs."""

    def __init__(self, quiet: bool, rewards: bool) -> None:
        self.quiet, self.rewards = quiet, rewards
        self.display: Display = Silent()

    def start(self, work: Any) -> None:
        """Hosts under a controller, or a policy that learns, by playing or from recorded runs?"""
        # Lines of rewards and a table that is redrawn in place do not go together.
        if isinstance(work.config, StudyConfig):
            self.display = make_study_display(self.quiet)
        elif isinstance(work.config, PPORunConfig):
            self.display = make_learning_display(self.quiet, live=not self.rewards)
        else:
            self.display = make_display(self.quiet, live=not self.rewards)
        self.display.start(work)

    def progress(self, done: int) -> None:
        self.display.progress(done)

    def epoch(self, work: Any) -> None:
        self.display.epoch(work)
        if self.rewards:
            for text in reward_lines(work):
                print(text, flush=True)

    def stop(self) -> None:
        self.display.stop()


def reward_lines(work: Any) -> list[str]:
    """What was earned in the last round: by each host's last decision, or on average over the episodes of a policy's round."""
    if isinstance(work.config, PPORunConfig):
        figures = work.history[-1] if work.history else {}
        parts = {name.removeprefix("reward/"): value for name, value in figures.items() if name.startswith("reward/")}
        return [f"  an episode earned {figures['rollout/ep_rew_mean']:+.3f}: {_parts(parts)}"] if parts else []
    return [
        f"  host {plot.index}, decision after epoch {epoch}: {reward.total:+.4f} = {_parts(reward.components)}"
        for plot, epoch, reward in work.earned
        if not plot.control
    ]


def _parts(components: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:+.4f}" for name, value in components.items())
