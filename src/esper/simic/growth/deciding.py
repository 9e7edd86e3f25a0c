"""Who decides: a controller by its name, a trained policy by its file, or one that is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from esper.kasmina.blueprints import names
from esper.leyline.errors import ConfigError, PolicyError, nearest, unknown
from esper.leyline.reports import Topology
from esper.tamiyo import CONTROLLERS, Controller
from esper.tamiyo import make as make_controller
from esper.tamiyo.policy.policy_controller import PolicyController


def is_policy_file(policy: object) -> bool:
    """Whether this names a file, as a path with a suffix does, and not a controller."""
    return isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy not in CONTROLLERS and bool(Path(policy).suffix))


def controller_for(policy: object, config: Any = None, *, called: str = "policy") -> Controller:
    """The controller that is meant: a name, with its config or its default one, the file of a trained policy, or a Controller.

    called: what the user knows the argument as.
    """
    if isinstance(policy, str) and policy in CONTROLLERS:
        return make_controller(policy, config)
    if isinstance(policy, str | os.PathLike) and is_policy_file(policy):
        return _from_file(Path(policy))
    if isinstance(policy, str):
        raise unknown(called, policy, CONTROLLERS)
    if not isinstance(policy, Controller) or isinstance(policy, type):
        kinds = f"a name ({', '.join(CONTROLLERS)}), a policy file's path or a Controller"
        raise ConfigError(f"{called} is {kinds}, found {type(policy).__name__}")
    return policy


def _from_file(path: Path) -> Controller:
    """The policy in a file, if it knows everything that could grow here."""
    controller = PolicyController.from_file(path)
    known = controller.policy.config.blueprints
    for name in (name for topology in Topology for name in names(topology)):
        if name not in known:
            raise PolicyError(f"{path}: the policy was made without the blueprint {name!r} that is registered here; {nearest(name, known)}")
    return controller
