"""Policies in files: one safetensors file with the weights, and in its header what they are for.

Nothing in the file can run, and every byte of it is covered by a checksum. A policy fits hosts with any number of slots and any
blueprints; it chooses among those that it was made with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError, PolicyError
from esper.leyline.files import replace_file
from esper.leyline.observation import OBSERVATION
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy

POLICY_FILE = "policy.safetensors"
"""Its name in the folder of the run that made it."""
POLICY_FORMAT = "esper policy"
POLICY_VERSION = 3
"""Goes up by one with every change to the network or the file that makes older files unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """What a policy file says about itself."""

    config: PolicyConfig
    trained: dict[str, Any]
    """How it came about, in whatever words whoever saved it found useful."""


def save_policy(policy: Policy, path: str | Path, trained: Mapping[str, Any] | None = None) -> None:
    """Write the policy to a file, whole or not at all; `trained` is anything that JSON can hold."""
    path = Path(path)
    about = {
        "version": POLICY_VERSION,
        "schema": OBSERVATION.fingerprint(),
        "config": asdict(policy.config),
        "trained": dict(trained or {}),
    }
    try:
        text = json.dumps(about, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"what is told about the policy's training cannot be written as JSON: {error}") from error
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    metadata = {"format": POLICY_FORMAT, "policy": text, "sha256": _digest(text, tensors)}
    try:
        replace_file(path, safetensors.torch.save(tensors, metadata))
    except OSError as error:
        raise PolicyError(f"the policy cannot be written to {path}: {error.strerror}") from error


def read_policy_info(path: str | Path) -> PolicyInfo:
    """What a policy file says about itself. Raises PolicyError for anything that is not a usable one."""
    policy, trained = _read(Path(path))
    return PolicyInfo(config=policy.config, trained=trained)


def load_policy(path: str | Path) -> Policy:
    """The policy in a file, or PolicyError in a sentence that says why it cannot be used."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[Policy, dict[str, Any]]:
    """The policy in a file, checked, and what is told about its training."""
    metadata, tensors = _content(path)
    if "format" not in metadata or metadata["format"] != POLICY_FORMAT:
        raise PolicyError(f"{path} holds tensors, but no policy of Esper")
    if "policy" not in metadata or "sha256" not in metadata or metadata["sha256"] != _digest(metadata["policy"], tensors):
        raise PolicyError(f"{path} is damaged or was edited: its checksum is not the one that was written down")
    about = _about(path, metadata["policy"])
    if about["version"] != POLICY_VERSION:
        raise PolicyError(f"{path} is a policy of version {about['version']}; this version of Esper reads {POLICY_VERSION}")
    if about["schema"] != OBSERVATION.fingerprint():
        raise PolicyError(
            f"{path} was trained on observations with the fingerprint {about['schema']}; this version of Esper makes "
            f"{OBSERVATION.fingerprint()} (version {OBSERVATION.version}), which it would misread: train it again"
        )
    try:
        config = from_mapping(PolicyConfig, about["config"], source=str(path))
    except ConfigError as error:
        raise PolicyError(f"{path} cannot be used: {error}") from error
    policy = Policy(config)
    expected = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        odd = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise PolicyError(f"{path} does not hold the policy that it describes: {odd!r} is missing, unknown or of another size")
    for name, tensor in sorted(tensors.items()):
        if not torch.isfinite(tensor).all():
            raise PolicyError(f"{path} holds no usable policy: {name!r} has values that are not finite")
    policy.load_state_dict(tensors)
    return policy, about["trained"]


def _about(path: Path, text: str) -> dict[str, Any]:
    """What the header of the file says about the policy: a table with every key that is needed."""
    try:
        about = json.loads(text)
    except ValueError as error:
        raise PolicyError(f"{path} does not describe its policy in JSON: {error}") from error
    expected = ("version", "schema", "config", "trained")
    if not isinstance(about, dict) or not all(name in about for name in expected) or not isinstance(about["trained"], dict):
        raise PolicyError(f"{path} does not describe its policy; expected a table with {', '.join(expected)}")
    return about


def _content(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file, as they are written there."""
    try:
        if path.is_dir():
            near = path / POLICY_FILE
            hint = f"did you mean {near}?" if near.is_file() else "expected a policy's file"
            raise PolicyError(f"{path} is a folder; {hint}")
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise PolicyError(f"no policy at {path}") from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise PolicyError(f"{path} is not a policy, or is damaged: it is no safetensors file ({error})") from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over what is told about the policy and over each tensor's name, type, shape and values."""
    digest = sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
