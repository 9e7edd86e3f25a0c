"""What the header of a policy's file says of it. Free of torch, so that policies can be listed at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from esper.leyline.errors import PolicyError
from esper.leyline.observation import OBSERVATION

POLICY_FILE = "policy.safetensors"
"""Its name in the folder of the run that made it."""
POLICY_FORMAT = "esper policy"
POLICY_VERSION = 3
"""Goes up by one with every change to the network or the file that makes older files unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyHeader:
    """What a policy's file says of itself; whether it is true, `load_policy` finds out."""

    text: str
    """The JSON that the rest is read from."""
    sha256: str
    """Over that text and the weights, as it was written down."""
    version: int
    schema: str
    """The fingerprint of the observations that it was trained on."""
    config: dict[str, Any]
    """The sizes of its network, and its blueprints."""
    trained: dict[str, Any]
    """How it came about."""

    @property
    def problem(self) -> str:
        """Why this version of Esper cannot use the policy, to be read after its name; empty where it can."""
        if self.version != POLICY_VERSION:
            return f"is a policy of version {self.version}; this version of Esper reads {POLICY_VERSION}"
        if self.schema != OBSERVATION.fingerprint():
            return (
                f"was trained on observations with the fingerprint {self.schema}; this version of Esper makes "
                f"{OBSERVATION.fingerprint()} (version {OBSERVATION.version}), which it would misread: train it again"
            )
        return ""


def read_header(path: Path) -> PolicyHeader:
    """The header of a policy's file. Raises PolicyError for what is none."""
    with opened(path, "np") as file:
        metadata = file.metadata() or {}
    if "format" not in metadata or metadata["format"] != POLICY_FORMAT:
        raise PolicyError(f"{path} holds tensors, but no policy of Esper")
    if "policy" not in metadata or "sha256" not in metadata:
        raise PolicyError(f"{path} is damaged or was edited: its header is not whole")
    try:
        about = json.loads(metadata["policy"])
    except ValueError as error:
        raise PolicyError(f"{path} does not describe its policy in JSON: {error}") from error
    expected = ("version", "schema", "config", "trained")
    if not isinstance(about, dict) or not all(name in about for name in expected) or not isinstance(about["trained"], dict):
        raise PolicyError(f"{path} does not describe its policy; expected a table with {', '.join(expected)}")
    return PolicyHeader(text=metadata["policy"], sha256=metadata["sha256"], **{name: about[name] for name in expected})


@contextmanager
def opened(path: Path, framework: str) -> Iterator[Any]:
    """A policy's file as safetensors reads it; only with the framework "pt" is torch needed. Raises PolicyError where it cannot be read."""
    try:
        if path.is_dir():
            near = path / POLICY_FILE
            hint = f"did you mean {near}?" if near.is_file() else "expected a policy's file"
            raise PolicyError(f"{path} is a folder; {hint}")
        with safe_open(path, framework=framework) as file:
            yield file
    except FileNotFoundError:
        raise PolicyError(f"no policy at {path}") from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise PolicyError(f"{path} is not a policy, or is damaged: it is no safetensors file ({error})") from error
