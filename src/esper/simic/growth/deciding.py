"""Who decides: a controller by its name, a trained policy by its name or its file, or one that is given."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from esper import policies
from esper.kasmina.blueprints import names
from esper.leyline.errors import ConfigError, unknown
from esper.leyline.reports import Topology
from esper.simic.growth.naming import decider_names, find_policy
from esper.tamiyo import CONTROLLERS, Controller
from esper.tamiyo import make as make_controller
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_controller import PolicyController
from esper.tamiyo.policy.policy_file import load_policy


def controller_for(policy: object, config: Any = None, *, called: str = "policy") -> Controller:
    """The controller that is meant: a name, with its config or its default one, the name or file of a trained policy, or a Controller.

    called: what the user knows the argument as.
    """
    if isinstance(policy, str) and policy in CONTROLLERS:
        return make_controller(policy, config)
    found = find_policy(policy)
    if found is not None:
        if config:
            raise ConfigError(f"a trained policy has no settings; found {', '.join(config)} for {policy}")
        return PolicyController(policy_from_file(found.path), found.name or "policy")
    if isinstance(policy, str):
        raise unknown(called, policy, decider_names())
    if not isinstance(policy, Controller) or isinstance(policy, type):
        kinds = f"a name ({', '.join(decider_names())}), a policy file's path or a Controller"
        raise ConfigError(f"{called} is {kinds}, found {type(policy).__name__}")
    return policy


def policy_for(given: str | os.PathLike[str]) -> Policy:
    """The trained policy that is meant by a name or a path. Raises an EsperError for what is none, a controller among them."""
    found = find_policy(given)
    if found is not None:
        return policy_from_file(found.path)
    if given in CONTROLLERS:
        known = ", ".join(policies.names()) or "none ships"
        raise ConfigError(f"{given!r} is a controller, which has no weights; expected a policy's file, or its name ({known})")
    raise unknown("policy", given, policies.names())


def policy_from_file(path: Path) -> Policy:
    """The policy in a file, for hosts with the blueprints that are registered here.

    It chooses among those that both know; the others are masked, and a warning names them.
    """
    policy = load_policy(path)
    known, here = set(policy.config.blueprints), {name for topology in Topology for name in names(topology)}
    reasons = {"unknown to it": here - known, "not registered here": known - here}
    masked = [f"{', '.join(sorted(blueprints))} ({why})" for why, blueprints in reasons.items() if blueprints]
    if masked:
        warnings.warn(f"{path}: the policy will not grow {' and '.join(masked)}", stacklevel=3)
    return policy
