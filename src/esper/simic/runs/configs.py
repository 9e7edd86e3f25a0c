"""The config of a run, whatever kind of run it is. No torch is loaded here: whoever only looks at runs needs it too."""

from __future__ import annotations

from pathlib import Path

from esper.leyline.config import from_mapping, read_toml
from esper.leyline.errors import RunError
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.learning.offline_config import BCConfig, IQLConfig
from esper.simic.runs.compare_config import CompareConfig
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.headroom_config import HeadroomConfig
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.search_config import SearchConfig
from esper.simic.runs.sweep_config import SweepConfig

Config = (
    ControllerRunConfig
    | PPORunConfig
    | ExpertRunConfig
    | BCConfig
    | IQLConfig
    | CompareConfig
    | HeadroomConfig
    | SearchConfig
    | SweepConfig
)
"""Whatever decides a run."""
CONFIGS: dict[str, type[Config]] = {
    "run": ControllerRunConfig,
    "learn": PPORunConfig,
    "expert": ExpertRunConfig,
    "bc": BCConfig,
    "iql": IQLConfig,
    "compare": CompareConfig,
    "headroom": HeadroomConfig,
    "tune": SearchConfig,
    "sweep": SweepConfig,
}
"""By the kind that a config says it is."""


def read_config(path: Path) -> Config:
    """The config of a run, of the kind that it says it is."""
    content = read_toml(path)
    kind = content.get("kind")
    if kind == "gardener":
        raise RunError(f"{path.parent} was recorded by a Gardener; it goes on in the training loop that it is part of")
    if not isinstance(kind, str) or kind not in CONFIGS:
        expected = ", ".join(f'"{name}"' for name in CONFIGS)
        raise RunError(f"{path} does not say what kind of run it is; expected a kind that is one of {expected}")
    return from_mapping(CONFIGS[kind], content, source=str(path))
