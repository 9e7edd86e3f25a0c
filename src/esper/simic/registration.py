"""The environments in Gymnasium's register; importing this puts them there. Entries are names of classes, so nothing heavy is loaded."""

from __future__ import annotations

from esper.leyline.errors import ConfigError

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ConfigError('the environments need gymnasium; install it with: pip install "esper-lite[rl]"') from error

ENVIRONMENTS: dict[str, tuple[str, str]] = {
    "esper/Growth-v0": ("GrowthEnv", "GrowthVector"),
    "esper/GrowthFlat-v0": ("GrowthFlatEnv", "GrowthFlatVector"),
}
"""By id: the class of one environment, and that of many in one; both are in `esper.simic.environment`."""


def register_environments() -> None:
    """Make the environments known to `gymnasium.make` and `gymnasium.make_vec`. A second call changes nothing."""
    home = "esper.simic.environment"
    for name, (single, vector) in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{home}:{single}", vector_entry_point=f"{home}:{vector}")


register_environments()
