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
from torch import Tensor

from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError, PolicyError
from esper.leyline.files import replace_file
from esper.leyline.observation import OBSERVATION
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_header import POLICY_FORMAT, POLICY_VERSION, opened, read_header


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
    header = read_header(path)
    with opened(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    if header.sha256 != _digest(header.text, tensors):
        raise PolicyError(f"{path} is damaged or was edited: its checksum is not the one that was written down")
    if header.problem:
        raise PolicyError(f"{path} {header.problem}")
    try:
        config = from_mapping(PolicyConfig, header.config, source=str(path))
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
    return policy, header.trained


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over what is told about the policy and over each tensor's name, type, shape and values."""
    digest = sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
