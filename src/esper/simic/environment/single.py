"""One host as a Gymnasium environment: an epoch is a step, and a budget is an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from esper.leyline.actions import Decision
from esper.simic.environment.actions import BoolArray, Choice, checked
from esper.simic.environment.hosts import SEEDS
from esper.simic.environment.setup import METADATA, Setup
from esper.simic.environment.stepping import Stepper
from esper.simic.environment.view import drawing
from esper.simic.growth.environment import Growth
from esper.tamiyo import Observation


class GrowthEnv(gymnasium.Env[Any, Any]):
    """`esper/Growth-v0`: grow one host; an action is one value for each of the eight heads of a decision.

    `esper/GrowthFlat-v0`: an action is the number of a whole decision, and the mask of legal ones is exact. heads: `core` chooses op, slot
    and blueprint and leaves style, tempo and alpha at their defaults, which other libraries can learn; `full` has every decision there is,
    a few thousand.

    task: a task's name, or several to draw from. seeds: the host seeds to draw from. structured: observe a dict instead of a vector.
    settings: fields of GrowthConfig, and shorter words for some of them; see `growth_config`.

    The episode ends, `terminated`, when the host's budget is spent, so its last observation is the one before. An action that is not legal
    is refused: the host waits, the reward has the cost of a refusal, and `info["refused"]` says why.
    """

    metadata = METADATA

    def __init__(
        self,
        task: str | Sequence[str] = "digits",
        *,
        seeds: Sequence[int] = SEEDS,
        heads: Choice | None = None,
        structured: bool = False,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        self.setup = Setup(task, seeds, heads, structured, render_mode, settings)
        self.render_mode = render_mode
        self.observation_space = self.setup.view.space
        self.action_space = self.setup.actions.space
        self._hosts = Stepper(Growth(self.setup.config))
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin with a new host, trained for its first epoch.

        seed: fixes which hosts are drawn from here on, and with them everything. options: `task` and `host_seed` choose the host instead.
        """
        super().reset(seed=seed)
        start = self.setup.hosts.draw(self.np_random, options)
        self._hosts.reset({0: start})
        seen = self.setup.view(self._seen())
        self._over = False
        return seen, self.setup.start_info(start, self._seen())

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out the action, train an epoch, and tell what came of it."""
        if self._over:
            raise ResetNeeded("no episode is under way; call reset() first")
        outcome = self._hosts.step({0: self.decision(action)})[0]
        self._over = outcome.result is not None
        return self.setup.view(outcome.observation), float(outcome.reward.total), self._over, False, self.setup.step_info(outcome)

    def decision(self, action: Any) -> Decision:
        """What an action means for the present host; `str()` of it is for people."""
        return self.setup.actions.decision(checked(self.action_space, action), self._seen().masks)

    def observation_names(self) -> list[str]:
        """What each value of the flat observation is."""
        return self.setup.view.names()

    def action_masks(self) -> BoolArray:
        """What is legal now, as sb3-contrib asks for it: one flat array of bools, the heads one after another."""
        return self.setup.actions.flat_mask(self._seen().masks)

    def render(self) -> Any:
        """With render mode "ansi": the host in a line, and each of its slots in a line."""
        return drawing(self._seen()) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Let go of the host and the data; reset() begins anew."""
        self._hosts.close()
        self._over = True

    def _seen(self) -> Observation:
        if not self._hosts.seen:
            raise ResetNeeded("there is no host yet; call reset() first")
        return self._hosts.seen[0]
