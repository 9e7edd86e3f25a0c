"""Who is meant by a name or a path: a controller, a policy that ships with the package, or a policy's file. Free of torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from esper import policies
from esper.tamiyo import CONTROLLERS


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The file of a trained policy that is meant."""

    path: Path
    name: str = ""
    """The exact name that it ships under, such as tamiyo-1; empty for a file of the user's own."""


def find_policy(given: object) -> PolicyFile | None:
    """The trained policy that is meant; None for a controller, and for a name that nobody has.

    Names come before files: ./tamiyo is a file, whatever ships. A text is a file's path if it has a suffix or a folder in it, or if there
    is such a file.
    """
    if isinstance(given, os.PathLike):
        return PolicyFile(Path(given))
    if not isinstance(given, str) or given in CONTROLLERS:
        return None
    exact = policies.exact_name(given)
    if exact is not None:
        return PolicyFile(policies.POLICIES[exact], exact)
    return PolicyFile(Path(given)) if Path(given).suffix or os.sep in given or os.path.isfile(given) else None


def decider_names() -> list[str]:
    """Every name of somebody who decides: controllers, and policies that ship."""
    return [*CONTROLLERS, *policies.names()]


def anchored(given: str) -> str:
    """The same, written so that it means the same from any folder and whatever ships later: the exact name of a policy, or a full path."""
    policy = find_policy(given)
    if policy is not None and policy.name:
        return policy.name
    is_path = given not in CONTROLLERS and (policy is not None or os.path.exists(given))
    return str(Path(given).absolute()) if is_path else given
