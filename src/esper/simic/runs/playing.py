"""What runs share that play many hosts: where these grow, and what a checkpoint of such a run must fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from esper.leyline.config import to_toml
from esper.leyline.errors import CheckpointError
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Environment
from esper.simic.growth.workers import environment
from esper.simic.plugins import load_plugins, plugin_hashes
from esper.simic.runs.work import machine
from esper.tolaria.training.device import device_named
from esper.tolaria.training.engine import choose


class Playing:
    """The hosts of a run: on which devices, in which environment, and what that remembers. Plug-ins are loaded with it.

    test: whether hosts are scored on the untouched split when they end.
    """

    def __init__(self, config: GrowthConfig, *, test: bool = False) -> None:
        self._config, self._test = config, test
        load_plugins(config.plugins)
        self.devices = [device_named(name) for name in config.every_device]  # a mistake is told before any worker starts
        self.gpu = self.devices[0].type == "cuda"
        self.choice = choose(config.engine, config.training, self.devices[0])
        self.engines: list[dict[str, Any]] = []
        """The states of the engines when the last round had been played."""
        self._environment: Environment | None = None

    @property
    def workers(self) -> int:
        """Processes that grow hosts."""
        return self._config.processes(gpu=self.gpu)

    @property
    def environment(self) -> Environment:
        """The hosts' environment, made when it is first needed: in this process, or in workers."""
        if self._environment is None:
            self._environment = environment(self._config, self.workers if self.workers > 1 else 0, test=self._test)
            self._environment.load_engines(self.engines)
        return self._environment

    def machine(self) -> dict[str, str]:
        """Where and how hosts are trained, as a run tells it at its start."""
        return machine(self.choice, self.devices)

    def close(self) -> None:
        """End the workers."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    # Saving

    def state(self) -> dict[str, Any]:
        """What any checkpoint of such a run has; a checkpoint is taken when every host has ended, so no host is part of it."""
        config = self._config
        return {"config": to_toml(config.lasting()), "plugins": plugin_hashes(config.plugins), "engines": self.engines}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. Raises CheckpointError for one of another config."""
        config = self._config
        if state["config"] != to_toml(config.lasting()):
            raise CheckpointError("the checkpoint was written under another config than the run's config.toml")
        plugin_hashes(config.plugins, state["plugins"])
        self.engines = state["engines"]
