"""The environments in Gymnasium's register; importing this puts them there. Entries are names of classes, so nothing heavy is loaded."""

from __future__ import annotations

from esper.leyline.errors import ConfigError

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ConfigError('the environments need gymnasium; install it with: pip install "esper-lite[rl]"') from error

ENVIRONMENTS: dict[str, dict[str, str]] = {"esper/Growth-v0": {}, "esper/GrowthFlat-v0": {"heads": "core"}}
"""By id: the settings that make it what it is."""


def register_environments() -> None:
    """Make the environments known to `gymnasium.make` and `gymnasium.make_vec`. A second call changes nothing."""
    home = "esper.simic.environment"
    for name, settings in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{home}:GrowthEnv", vector_entry_point=f"{home}:GrowthVector", kwargs=settings)


register_environments()
