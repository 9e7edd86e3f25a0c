"""Many hosts as one Gymnasium vector environment, on one engine or in worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from esper.leyline.errors import ConfigError
from esper.simic.environment.actions import BoolArray, Choice, checked
from esper.simic.environment.hosts import SEEDS
from esper.simic.environment.setup import METADATA, Setup
from esper.simic.environment.stepping import Stepper
from esper.simic.environment.view import drawing
from esper.simic.growth.environment import Start
from esper.simic.growth.workers import environment
from esper.tamiyo import Observation

VECTOR_METADATA: dict[str, Any] = {**METADATA, "autoreset_mode": AutoresetMode.SAME_STEP}
Steps = tuple[Any, NDArray[np.float64], BoolArray, BoolArray, dict[str, Any]]


class GrowthVector(VectorEnv[Any, Any, Any]):
    """Both environments for `gymnasium.make_vec`: each step trains an epoch of every host. The numbers are those of single environments.

    num_envs: hosts side by side. workers: processes to train them in; 0 trains them in this one. The rest is as in GrowthEnv.

    A host whose episode ends gives way to the next one in the same step (autoreset mode SAME_STEP): what it saw last and what its step
    told are in `info["final_obs"]` and `info["final_info"]`, and the observation is the first one of the new host.
    """

    metadata = VECTOR_METADATA

    def __init__(
        self,
        num_envs: int = 1,
        task: str | Sequence[str] = "digits",
        *,
        seeds: Sequence[int] = SEEDS,
        heads: Choice | None = None,
        structured: bool = False,
        render_mode: str | None = None,
        workers: int = 0,
        **settings: Any,
    ) -> None:
        for name, value, least in (("num_envs", num_envs, 1), ("workers", workers, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {value!r}; expected an integer of at least {least}")
        self.setup = Setup(task, seeds, heads, structured, render_mode, settings)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = self.setup.view.space, self.setup.actions.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._hosts = Stepper(environment(self.setup.config, min(workers, num_envs)))
        self._random: list[np.random.Generator | None] = [None] * num_envs

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin with new hosts. seed: of the first; the others have the numbers after it. Or one for each. options: as in GrowthEnv."""
        one = int(seed) if isinstance(seed, int | np.integer) else None
        seeds = [one + place for place in range(self.num_envs)] if one is not None else list(seed or [None] * self.num_envs)  # type: ignore[arg-type]
        if len(seeds) != self.num_envs:
            raise ConfigError(f"{len(seeds)} seeds for {self.num_envs} environments; expected one for each")
        super().reset(seed=one)
        for place, each in enumerate(seeds):
            if each is not None:
                self._random[place] = seeding.np_random(each)[0]
        starts = {place: self._draw(place, options) for place in range(self.num_envs)}
        self._hosts.reset(starts)
        infos: dict[str, Any] = {}
        for place, start in starts.items():
            infos = self._add_info(infos, self.setup.start_info(start, self._hosts.seen[place]), place)
        return self._batch(), infos

    def step(self, actions: Any) -> Steps:
        """Carry out one action for each host, and train an epoch of all."""
        checked(self.action_space, actions)
        each = zip(iterate(self.action_space, actions), self._present(), strict=True)
        decisions = {place: self.setup.actions.decision(action, seen.masks) for place, (action, seen) in enumerate(each)}
        starts: dict[int, Start] = {}

        def following(place: int) -> Start:
            starts[place] = self._draw(place)
            return starts[place]

        outcomes = self._hosts.step(decisions, following)
        rewards, ended = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for place, outcome in sorted(outcomes.items(), key=lambda pair: pair[1].result is None):  # first those that have ended
            rewards[place], ended[place] = outcome.reward.total, outcome.result is not None
            info = self.setup.step_info(outcome)
            if outcome.result is not None:
                infos = self._add_info(infos, {"final_obs": self.setup.view(outcome.observation), "final_info": info}, place)
                info = self.setup.start_info(starts[place], self._hosts.seen[place])
            infos = self._add_info(infos, info, place)
        return self._batch(), rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def action_masks(self) -> BoolArray:
        """[num_envs, actions]: what is legal now for each host, in the form that sb3-contrib takes."""
        return np.stack([self.setup.actions.flat_mask(seen.masks) for seen in self._present()])

    def render(self) -> tuple[Any, ...] | None:
        """With render mode "ansi": each host as GrowthEnv renders it."""
        return tuple(drawing(seen) for seen in self._present()) if self.render_mode == "ansi" else None

    def close_extras(self, **options: Any) -> None:
        """Let go of hosts and data, and end the workers."""
        self._hosts.close()

    def _draw(self, place: int, options: Mapping[str, Any] | None = None) -> Start:
        stream = self._random[place]
        if stream is None:
            stream = self._random[place] = seeding.np_random(None)[0]
        return self.setup.hosts.draw(stream, options)

    def _batch(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, [self.setup.view(seen) for seen in self._present()], empty)

    def _present(self) -> list[Observation]:
        if not self._hosts.seen:
            raise ResetNeeded("there are no hosts yet; call reset() first")
        return [self._hosts.seen[place] for place in range(self.num_envs)]
