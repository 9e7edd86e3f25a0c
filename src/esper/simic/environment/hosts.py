"""Which hosts an environment grows: its settings, and the pool of tasks and seeds that episodes are drawn from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from esper.kasmina.blueprints import names
from esper.leyline.config import from_mapping, replace_fields
from esper.leyline.errors import ConfigError, nearest, unknown
from esper.leyline.reports import GateConfig, Topology
from esper.leyline.seeds import Purpose, require
from esper.simic.growth.config import GrowthConfig
from esper.simic.growth.environment import Start
from esper.simic.growth.sizes import most_slots
from esper.tamiyo import blueprint_names
from esper.tolaria.tasks import get as get_task
from esper.tolaria.training.config import TrainingConfig

SEEDS = range(64)
"""Host seeds of an environment that is told none. Few, because each has a control that is trained once."""
GATES: dict[str, GateConfig] = {"permissive": GateConfig.permissive(), "strict": GateConfig()}
OPTIONS = ("task", "host_seed")
"""What `reset(options=...)` can say."""


def growth_config(settings: Mapping[str, Any]) -> GrowthConfig:
    """The config in an environment's keyword arguments: fields of GrowthConfig, as they are or as plain values.

    Three can be said more shortly. reward: a mode ("shaped", "simplified", "sparse", "loss"). gates: "permissive" (the default: a policy
    learns more from a gate it can pass) or "strict", or a GateConfig; it goes before the gates in `training`. fix: also with values
    that are no text, e.g. {"widths": [4, 8]}.
    """
    plain = {name: value for name, value in settings.items() if name != "gates"}
    training = plain.get("training", {})
    if isinstance(training, Mapping):
        plain["training"] = from_mapping(TrainingConfig, {"gates": GATES["permissive"], **training}, "environment: training")
    if isinstance(plain.get("reward"), str):
        plain["reward"] = {"mode": plain["reward"]}
    if isinstance(plain.get("fix"), Mapping):
        plain["fix"] = {name: value if isinstance(value, str) else json.dumps(value) for name, value in plain["fix"].items()}
    config = from_mapping(GrowthConfig, plain, "environment")
    if "gates" not in settings:
        return config
    gates = settings["gates"]
    if isinstance(gates, str) and gates not in GATES:
        raise unknown("gates", gates, GATES)
    return replace_fields(config, {"training.gates": GATES[gates] if isinstance(gates, str) else gates}, "environment")


class Hosts:
    """The tasks and host seeds that episodes are drawn from, each as likely as the others."""

    def __init__(self, config: GrowthConfig, task: str | Sequence[str], seeds: Sequence[int]) -> None:
        self.tasks = (task,) if isinstance(task, str) else tuple(task)
        self.seeds = seeds
        if not self.tasks:
            raise ConfigError("task is empty; expected the name of a task, or several")
        if not isinstance(seeds, Sequence) or not len(seeds):
            raise ConfigError(f"seeds is {seeds!r}; expected host seeds to draw from, such as range(64)")
        for seed in seeds:
            self._check_seed(seed)
        self.slots = max(most_slots(config, get_task(name)) for name in self.tasks)
        """The most slots that any host of the tasks has, drawn or not, so that all seeds see one size of observation."""
        self.blueprints = blueprint_names({topology: names(topology) for topology in Topology})

    def draw(self, random: np.random.Generator, options: Mapping[str, Any] | None = None) -> Start:
        """The next host. Both draws are always made, so that an option does not shift what follows."""
        task, seed = self.tasks[int(random.integers(len(self.tasks)))], self.seeds[int(random.integers(len(self.seeds)))]
        chosen = dict(options or {})
        for name in chosen:
            if name not in OPTIONS:
                raise ConfigError(f"unknown option {name!r} of reset; {nearest(str(name), OPTIONS)}")
        if "task" in chosen and chosen["task"] not in self.tasks:
            raise unknown("task of this environment", str(chosen["task"]), self.tasks)
        if "host_seed" in chosen:
            self._check_seed(chosen["host_seed"])
        return Start(task=chosen.get("task", task), seed=int(chosen.get("host_seed", seed)))

    @staticmethod
    def _check_seed(seed: object) -> None:
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
            raise ConfigError(f"host seed {seed!r}: expected an integer of at least 0")
        require((Purpose.DEVELOPMENT, Purpose.TRAINING), (int(seed),), who="an environment")
