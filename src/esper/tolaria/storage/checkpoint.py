"""Checkpoints: the whole state of a run in a folder of its own, written so that a kill at any moment leaves the one before intact.

A checkpoint is a folder `step-00000012` with three files: `tensors.safetensors`, `state.json` (everything else, with references to the
tensors) and `manifest.json`, written last, with size and sha256 of the other two. It is written under a temporary name, brought down
to the disk and renamed into place. Nothing in it can run: no pickle is written, and none is ever read.

A state is made of dicts, lists, tuples, text, bytes, numbers, None and tensors. All of it comes back with the same types and the same
bits, tensors on the CPU: `load_state_dict` takes each to where its parameter lives. Two references to one tensor come back as two
references to one tensor. That a tensor was a parameter, or needed a gradient, is not kept.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import reprlib
import secrets
import shutil
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from esper.leyline.errors import CheckpointError, in_a_line
from esper.leyline.files import open_file, sync_folder, write_new

FORMAT = "esper checkpoint"
FORMAT_VERSION = 3
"""Goes up by one with every change to the files that an older reader would not understand."""

_MANIFEST, _STATE, _TENSORS = "manifest.json", "state.json", "tensors.safetensors"
_UNFINISHED, _DISCARDED = ".tmp-", ".trash-"
_PICKLE = re.compile(rb"\x80[\x02-\x05]|PK\x03\x04", re.DOTALL)
"""How a pickle begins, and the zip archive with one inside that torch.save writes."""

_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64}
    | {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
)
"""What safetensors both writes and reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was found whole."""

    step: int
    name: str
    state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run, in a folder. One process may write at a time, which the run's lock sees to; any number may read.

    keep: how many of the newest stay.
    run: the run they belong to; a checkpoint of another run is not accepted.
    """

    def __init__(self, folder: Path, keep: int = 3, run: str = "") -> None:
        if keep < 1:
            raise CheckpointError(f"at least 1 checkpoint has to be kept; found keep = {keep}")
        self.folder = folder
        self.keep = keep
        self.run = run
        self.problems: list[str] = []
        """What the last call of `latest` had to pass over, a sentence each."""

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, whole or not, oldest first."""
        return sorted(int(match[1]) for name in self._names() if (match := re.fullmatch(r"step-(\d{8,})", name)))

    def save(self, step: int, state: dict[str, Any]) -> str:
        """Save the state as the newest checkpoint, remove those beyond `keep`, and return its name.

        Raises CheckpointError when it cannot be written; what was saved before is then as it was.
        """
        saved = self.steps()
        if step < 0 or (saved and step <= saved[-1]):
            newest = f"the newest here is {saved[-1]}; rewind first to save an earlier one" if saved else "steps count from 0"
            raise CheckpointError(f"step {step} cannot be saved in {self.folder}: {newest}")
        files = _pack(state)
        temporary = self.folder / f"{_UNFINISHED}{secrets.token_hex(4)}"
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)
            self._discard(lambda step: False)
            temporary.mkdir()
            for name, content in (*files.items(), (_MANIFEST, self._manifest(step, files))):
                write_new(temporary / name, content)
            sync_folder(temporary)
            temporary.rename(self.folder / _name(step))
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            last = f"the last one, {_name(saved[-1])}, is intact" if saved else "there is none before it"
            raise CheckpointError(f"{_name(step)} cannot be saved in {self.folder}: {error.strerror}; {last}") from error
        oldest = [*saved, step][-self.keep :][0]
        self._remove(lambda other: other < oldest)
        return _name(step)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None when there is none at all; `problems` says what was passed over.

        Raises CheckpointError when there are checkpoints and not one can be used, so that no run starts anew by mistake.
        """
        steps = self.steps()
        names = [name for name in self._names() if not name.startswith((_UNFINISHED, _DISCARDED))]
        self.problems = [_not_one_of_ours(self.folder / name) for name in names if name not in map(_name, steps)]
        damaged: list[str] = []
        for step in reversed(steps):
            try:
                return Checkpoint(step=step, name=_name(step), state=self.load(step))
            except CheckpointError as error:
                damaged.append(str(error))
                self.problems.append(str(error))
        if damaged:
            raise CheckpointError(f"no checkpoint in {self.folder} can be used: {'; '.join(damaged)}")
        return None

    def load(self, step: int) -> dict[str, Any]:
        """The state saved at `step`. Raises CheckpointError, in a sentence, for one that is missing, damaged or not this run's."""
        path = self.folder / _name(step)
        if step not in self.steps():
            known = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(f"no checkpoint of step {step} in {self.folder}; there are: {known}")
        if not path.is_dir():
            raise CheckpointError(_not_one_of_ours(path))
        manifest = _read(path / _MANIFEST)
        listed = self._listed(path, step, manifest)
        files = {}
        for name in (_STATE, _TENSORS):
            content = files[name] = _read(path / name)
            size, digest = listed[name]
            if len(content) != size:
                raise CheckpointError(f"{path / name} is damaged: it has {len(content)} bytes, and {size} were written")
            if sha256(content).hexdigest() != digest:
                raise CheckpointError(f"{path / name} is damaged or was edited: its sha256 is not the one that was written down")
        if manifest != self._manifest(step, files):
            raise CheckpointError(f"{path / _MANIFEST} was edited")
        return _unpack(path, files)

    def rewind(self, step: int) -> None:
        """Remove every checkpoint newer than `step`, as what comes after it will happen again, and those that a kill left beyond `keep`."""
        kept = [other for other in self.steps() if other <= step][-self.keep :]
        self._remove(lambda other: other not in kept)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error

    def _manifest(self, step: int, files: Mapping[str, bytes]) -> bytes:
        """The one manifest that belongs to these files, byte for byte."""
        listed = {name: {"size": len(content), "sha256": sha256(content).hexdigest()} for name, content in files.items()}
        manifest = {"format": FORMAT, "version": FORMAT_VERSION, "run": self.run, "step": step, "files": listed}
        return json.dumps(manifest, indent=1).encode() + b"\n"

    def _listed(self, path: Path, step: int, content: bytes) -> dict[str, tuple[int, str]]:
        """Size and sha256 of each file, as the manifest has them, when it is one and is ours."""
        try:
            manifest = json.loads(content)
        except (ValueError, RecursionError):
            raise CheckpointError(f"{path / _MANIFEST} is damaged: it is not JSON") from None
        if not isinstance(manifest, dict) or "format" not in manifest or manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} is not a checkpoint of Esper")
        if "version" not in manifest or manifest["version"] != FORMAT_VERSION:
            found = reprlib.repr(manifest["version"]) if "version" in manifest else "no version"
            raise CheckpointError(f"{path} has format version {found}; this version of Esper reads {FORMAT_VERSION}")
        try:
            if manifest["run"] != self.run:
                raise CheckpointError(f"{path} belongs to another run ({reprlib.repr(manifest['run'])}, and this is {self.run!r})")
            if manifest["step"] != step:
                raise CheckpointError(f"{path} was saved as step {reprlib.repr(manifest['step'])} and renamed")
            return {name: (manifest["files"][name]["size"], manifest["files"][name]["sha256"]) for name in (_STATE, _TENSORS)}
        except (KeyError, TypeError):
            raise CheckpointError(f"{path / _MANIFEST} was edited") from None

    def _remove(self, unwanted: Callable[[int], bool]) -> None:
        try:
            self._discard(unwanted)
        except OSError as error:
            raise CheckpointError(f"checkpoints in {self.folder} that are no longer needed cannot be removed: {error.strerror}") from error

    def _discard(self, unwanted: Callable[[int], bool]) -> None:
        """Remove checkpoints, and whatever a kill left behind. They lose their names first: a half-removed one is never taken for good."""
        removed = [step for step in self.steps() if unwanted(step)]
        for step in removed:
            (self.folder / _name(step)).rename(self.folder / f"{_DISCARDED}{_name(step)}-{secrets.token_hex(4)}")
        if removed:
            sync_folder(self.folder)
        for name in self._names():
            if name.startswith((_UNFINISHED, _DISCARDED)):
                shutil.rmtree(self.folder / name)


def _name(step: int) -> str:
    return f"step-{step:08}"


def _not_one_of_ours(path: Path) -> str:
    try:
        if path.is_file():
            _read(path)
    except CheckpointError as error:
        return str(error)
    return f"{path} is not a checkpoint of Esper"


def _read(path: Path) -> bytes:
    """The content of a file, unless it is a pickle: those are refused by their first bytes."""
    try:
        with open_file(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is not a whole checkpoint: it has no {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    # The length in front of a safetensors header can look like a pickle's mark; a pickle read as a length is beyond any file.
    if _PICKLE.match(content) and int.from_bytes(content[:8], "little") > len(content):
        raise CheckpointError(f"{path} is a pickle, which can run code when it is loaded; Esper never loads one")
    return content


def _pack(state: dict[str, Any]) -> dict[str, bytes]:
    """The two files that hold a state."""
    packer = _Packer()
    structure = packer.pack(state, "state")
    text = json.dumps(structure, allow_nan=False, separators=(",", ":")).encode()
    return {_STATE: text, _TENSORS: safetensors.torch.save(packer.tensors)}


def _unpack(path: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The state in the two files."""
    try:
        state = _Unpacker(safetensors.torch.load(files[_TENSORS])).unpack(json.loads(files[_STATE]))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError, struct.error) as error:
        raise CheckpointError(f"{path} cannot be understood ({in_a_line(error)})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, expected a dict")
    return state


class _Packer:
    """Turns a state into what JSON has, and collects its tensors.

    What JSON has no word for becomes an object of one key, which says what it is: {"tuple": [...]}, {"dict": [[key, value], ...]}.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        # With the tensor itself, or its memory, and with it its place, might go to another one.
        self._known: dict[tuple[Any, ...], tuple[Tensor, dict[str, Any]]] = {}

    def pack(self, value: Any, where: str) -> Any:
        """`where` is the path to the value, for messages and for the names of the tensors."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            # Infinities and NaNs by their bits; any other float is exact in JSON.
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if type(value) is list:
            return [self.pack(item, f"{where}.{index}") for index, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.pack(item, f"{where}.{index}") for index, item in enumerate(value)]}
        if type(value) is dict:
            return {"dict": self._pack_items(value, where)}
        if type(value) is OrderedDict:
            # A module's state dict, which carries the version of each of its modules as an attribute.
            metadata = getattr(value, "_metadata", None)
            return {"ordered": self._pack_items(value, where), "metadata": self.pack(metadata, f"{where}._metadata")}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, Tensor):
            return self._pack_tensor(value, where)
        kinds = "dicts, lists, tuples, text, bytes, numbers, None and tensors"
        raise CheckpointError(f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds {kinds}")

    def _pack_items(self, mapping: Mapping[Any, Any], where: str) -> list[list[Any]]:
        return [[self.pack(key, f"a key of {where}"), self.pack(item, f"{where}.{key}")] for key, item in mapping.items()]

    def _pack_tensor(self, tensor: Tensor, where: str) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in _DTYPES:
            kind = f"{tensor.device.type} tensor of {tensor.dtype}, {tensor.layout}"
            raise CheckpointError(f"{where} is a {kind}, which cannot be saved; a checkpoint holds dense tensors of what safetensors has")
        tensor = tensor.detach().resolve_conj().resolve_neg()  # safetensors writes the memory, whatever is still to be done to it
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() == 0 or place not in self._known:
            name = f"{len(self.tensors)} {where}".encode("ascii", "backslashreplace").decode()
            self.tensors[name] = tensor.cpu().contiguous().clone()
            self._known[place] = tensor, {"tensor": name, "stride": _layout(tensor)}
        return self._known[place][1]


class _Unpacker:
    """The inverse of _Packer."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._unpacked: dict[str, Tensor] = {}

    def unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.unpack(item) for item in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"float": bits}:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"tuple": items}:
                return tuple(self.unpack(item) for item in items)
            case {"dict": items}:
                return {self.unpack(key): self.unpack(item) for key, item in items}
            case {"ordered": items, "metadata": metadata}:
                ordered = OrderedDict((self.unpack(key), self.unpack(item)) for key, item in items)
                if metadata is not None:
                    ordered._metadata = self.unpack(metadata)  # type: ignore[attr-defined]
                return ordered
            case {"bytes": text}:
                return base64.b64decode(text, validate=True)
            case {"tensor": name, "stride": stride}:
                if name not in self._unpacked:
                    tensor = self._tensors[name]
                    moved = tensor if stride is None else torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
                    self._unpacked[name] = moved
                return self._unpacked[name]
        raise ValueError(f"no value is written as {reprlib.repr(value)}")


def _layout(tensor: Tensor) -> list[int] | None:
    """The strides of a tensor that fills its memory without gaps in another order than the usual (channels-last, transposed), else None."""
    order = sorted(range(tensor.dim()), key=lambda dimension: tensor.stride(dimension), reverse=True)
    return list(tensor.stride()) if not tensor.is_contiguous() and tensor.permute(order).is_contiguous() else None
