"""Policies in files: one safetensors file with the weights, and in its header what they are for.

Nothing in the file can run, and every byte of it is covered by a checksum. A policy fits hosts with any number of slots. Its
blueprints are matched by name: it can be loaded for some of them, in any order, and, if that is wanted, for new ones, which start as
they would in a new policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from esper.leyline.config import from_mapping
from esper.leyline.errors import ConfigError, PolicyError, nearest
from esper.leyline.files import replace_file
from esper.leyline.observation import OBSERVATION
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy

POLICY_FILE = "policy.safetensors"
"""Its name in the folder of the run that made it."""
POLICY_FORMAT = "esper policy"
POLICY_VERSION = 1
"""Goes up by one with every change to the network or the file that makes older files unusable."""

EMBEDDINGS = ("actor.slot_encoder.blueprint.weight", "critic.slot_encoder.blueprint.weight")
"""Tensors with a row for NO_BLUEPRINT and one for each blueprint."""
HEAD_ROWS = ("heads.choices.blueprint.weight", "heads.choices.blueprint.bias")
"""Tensors with a row for each blueprint."""


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
    _write(path, safetensors.torch.save(tensors, metadata))


def read_policy_info(path: str | Path) -> PolicyInfo:
    """What a policy file says about itself, without building the policy. Raises PolicyError for anything that is not a usable one."""
    return _read(Path(path))[0]


def load_policy(
    path: str | Path,
    *,
    blueprints: Sequence[str] | None = None,
    new_blueprints: bool = False,
    device: torch.device | str = "cpu",
) -> Policy:
    """The policy in a file, or PolicyError in a sentence that says why it cannot be used.

    blueprints: those that it is to choose among, in this order; by default its own.
    new_blueprints: give those that it does not know fresh weights, to be learned, instead of refusing them.
    """
    path = Path(path)
    info, tensors = _read(path)
    wanted = info.config.blueprints if blueprints is None else tuple(blueprints)
    for name in wanted:
        if name not in info.config.blueprints and not new_blueprints:
            raise PolicyError(f"{path}: the policy was made without the blueprint {name!r}; {nearest(name, info.config.blueprints)}")
    policy = Policy(replace(info.config, blueprints=wanted))
    fresh = policy.state_dict()
    for name in EMBEDDINGS:
        tensors[name] = _matched(tensors[name], fresh[name], ("", *info.config.blueprints), ("", *wanted))
    for name in HEAD_ROWS:
        tensors[name] = _matched(tensors[name], fresh[name], info.config.blueprints, wanted)
    policy.load_state_dict(tensors)
    return policy.to(device)


def _matched(rows: Tensor, fresh: Tensor, known: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Rows for the names wanted: the known ones', and fresh ones for the rest."""
    return torch.stack([rows[known.index(name)] if name in known else fresh[place] for place, name in enumerate(wanted)])


def _read(path: Path) -> tuple[PolicyInfo, dict[str, Tensor]]:
    """Everything in the file, checked."""
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
    expected = {name: tensor.shape for name, tensor in Policy(config).state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        odd = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise PolicyError(f"{path} does not hold the policy that it describes: {odd!r} is missing, unknown or of another size")
    for name, tensor in sorted(tensors.items()):
        if not torch.isfinite(tensor).all():
            raise PolicyError(f"{path} holds no usable policy: {name!r} has values that are not finite")
    return PolicyInfo(config=config, trained=about["trained"]), tensors


def _about(path: Path, text: str) -> dict[str, Any]:
    """What the file says about the policy, complete."""
    try:
        about = json.loads(text)
    except ValueError as error:
        raise PolicyError(f"{path} does not describe its policy in JSON: {error}") from error
    expected = ("version", "schema", "config", "trained")
    if not isinstance(about, dict) or not all(name in about for name in expected) or not isinstance(about["trained"], dict):
        raise PolicyError(f"{path} does not describe its policy; expected a table with {', '.join(expected)}")
    return about


def _content(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if path.is_dir():
        near = path / POLICY_FILE
        hint = f"did you mean {near}?" if near.is_file() else "expected a policy's file"
        raise PolicyError(f"{path} is a folder; {hint}")
    try:
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


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise PolicyError(f"the policy cannot be written to {path}: {error.strerror}") from error
