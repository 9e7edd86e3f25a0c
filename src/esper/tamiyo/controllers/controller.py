"""What every controller is: something that looks at one host after each epoch and decides. And the register of those there are.

A controller never changes. What it remembers of a host is a state of plain values that is handed in and out with every
decision, so that any number of hosts can share a controller, and a saved run goes on exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from esper import policies
from esper.leyline.actions import Decision
from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError, unknown
from esper.tamiyo.observe.signals import Observation

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

State = dict[str, Any]
"""What a controller remembers of one host: plain values that JSON can hold. Never changed in place."""


@runtime_checkable
class Controller(Protocol):
    """Decides for any number of hosts, one at a time."""

    @property
    def name(self) -> str:
        """What it is called in commands, logs and tables."""

    def start(self, seed: int) -> State:
        """The state before a host's first epoch. The host's seed, at least 0, is all that random numbers may depend on."""

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """A legal decision and the state after it. The same arguments always give the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerKind:
    """A kind of controller that can be made by its name."""

    name: str
    config: type[DataclassInstance]
    """What can be set, a frozen dataclass with a default for everything."""
    factory: Callable[[Any], Controller]
    purpose: str
    """One line that says what it does."""
    space: Mapping[str, str]
    """What `esper tune` searches unless it is told otherwise, as `leyline.space` writes it; empty for whatever can be searched."""


CONTROLLERS: dict[str, ControllerKind] = {}
"""Every kind of controller by its name."""


def register(
    name: str,
    config: type[DataclassInstance],
    factory: Callable[[Any], Controller],
    *,
    purpose: str,
    space: Mapping[str, str] | None = None,
) -> None:
    """Make a kind of controller known: `factory(config)` builds one. space: what `esper tune` searches; see docs/tuning.md."""
    if name in CONTROLLERS:
        raise ConfigError(f"there is already a controller {name!r}: {CONTROLLERS[name].purpose}")
    if name in policies.names():
        raise ConfigError(f"{name!r} is the name of a policy that ships with Esper; expected another one for the controller")
    CONTROLLERS[name] = ControllerKind(name=name, config=config, factory=factory, purpose=purpose, space=space or {})


def make(name: str, config: DataclassInstance | Mapping[str, object] | None = None) -> Controller:
    """The controller of that name; `config` is an object of its config class, the same as a mapping, or None for the defaults."""
    if name not in CONTROLLERS:
        raise unknown("controller", name, CONTROLLERS)
    kind = CONTROLLERS[name]
    if config is None or isinstance(config, Mapping):
        return kind.factory(from_mapping(kind.config, config or {}, source=name))
    if not isinstance(config, kind.config):
        raise ConfigError(f"controller {name!r}: its config must be a {kind.config.__name__}; found {type(config).__name__}")
    return kind.factory(config)


def random_stream(name: str, *numbers: int) -> np.random.Generator:
    """The random numbers for one decision: the same for the same arguments, and independent of those for any others."""
    entropy = [*numbers, *name.encode()]
    # An array of words means the same to numpy as a list of small numbers, and takes half the time.
    return np.random.default_rng(np.array(entropy, dtype=np.uint32) if max(entropy) < 1 << 32 else entropy)
