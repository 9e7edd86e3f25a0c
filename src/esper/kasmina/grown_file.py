"""Grown networks in files: one safetensors file with the weights, and in its header what has grown where.

Nothing in the file can run, and every byte of what counts is covered by a checksum. The host's class is not in it: whoever loads the
file builds the host as at the start, and what has grown is built from its blueprints.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from esper.kasmina import extras
from esper.kasmina.blending import Gating
from esper.kasmina.blueprints import BLUEPRINTS, SlotShape, build
from esper.kasmina.copying import copied
from esper.kasmina.grafting import attach, way_to
from esper.kasmina.growable import Growable
from esper.kasmina.harvest import final_alpha, plain_host, traced_part
from esper.kasmina.layout import Layout
from esper.kasmina.outputs import Holder
from esper.kasmina.slot import Place, Slot, random_stream
from esper.leyline.actions import Style
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import BlueprintError, ConfigError, EsperError, StateError, in_a_line
from esper.leyline.files import replace_file
from esper.leyline.reports import Topology

VERSION = 1
"""Goes up by one with every change to the file that an older reader would not understand."""
HEADER = "esper"
PLAIN_KINDS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownSlot:
    """What has grown at one place of a host."""

    path: str
    blueprint: str
    topology: Topology
    width: int
    causal: bool
    axes: str
    """The layout of the features."""
    style: Style
    alpha: float
    gate: bool
    """Whether it has a learned gate."""
    output: str
    """Where the features are in the module's output, as JSON; empty for a tensor."""


def save_grown(model: Growable, path: str | Path, live: str = "drop") -> None:
    """Write the grown network to a file, whole or not at all: its weights, and what has grown where. `load_grown` makes it anew.

    live: as for `Growable.harvest`, what becomes of seeds that are still alive.
    """
    if not isinstance(model, Growable):
        raise ConfigError(f"save_grown saves a Growable, found {type(model).__name__}; a plain module has torch.save")
    path = Path(path)
    kept = model.kept_by(live)
    state = model.harvest(live).state_dict()
    tensors, aliases, others = _sorted(path, state)
    slots = [to_plain(_grown(model.slots[id])) for id in kept]
    modules = _plain(path, "_metadata", _versions(state))
    about = {"version": VERSION, "slots": slots, "aliases": aliases, "extras": others, "modules": modules}
    text = json.dumps(about, allow_nan=False)
    # "pt", so that others who read safetensors take it for what it is besides: the weights of a torch network.
    metadata = {"format": "pt", HEADER: text, "sha256": _digest(text, tensors)}
    try:
        content = safetensors.torch.save(tensors, metadata)
    except (KeyError, ValueError, SafetensorError) as error:
        raise StateError(f"{path} cannot hold the network: safetensors refuses it ({error})") from error
    try:
        replace_file(path, content)
    except OSError as error:
        raise StateError(f"the network cannot be written to {path}: {error.strerror}") from error


def load_grown(factory: Callable[[], nn.Module] | nn.Module, path: str | Path) -> nn.Module:
    """The network in a file, as `harvest` gave it: a plain module with nothing of esper in it, in the precision it was saved in.

    factory: builds the host as it was before anything grew, or is such a host, which is copied. Blueprints of your own have to be
    registered before.
    """
    path = Path(path)
    about, tensors = _read(path)
    slots = [from_plain(GrownSlot, slot) for slot in about["slots"]]
    host = copied(factory) if isinstance(factory, nn.Module) else factory()
    if not isinstance(host, nn.Module) or isinstance(host, Growable):
        raise StateError(f"{path} needs the host that it was grown from, an nn.Module; found {type(host).__name__}")
    device = next((parameter.device for parameter in host.parameters()), torch.device("cpu"))
    for slot in slots:
        if slot.path not in dict(host.named_modules()):
            near = _near(slot.path, dict(host.named_modules()))
            raise StateError(f"{path} was grown at {slot.path!r}, which this host does not have{near}")
        way, (seed, gating) = way_to(host, slot.path), _modules(path, slot)
        part = traced_part(way, _place(path, slot), seed, gating, slot.style, slot.alpha, host.training)
        attach(host, slot.path, way, part.to(device))
    network = plain_host(host)
    tied = {name: tensors[first] for name, first in about["aliases"].items()}
    _fill(path, network, {**tensors, **tied}, about["extras"], about["modules"])
    return network


def _grown(slot: Slot) -> GrownSlot:
    place = slot.place
    return GrownSlot(
        path=place.path,
        blueprint=slot.state.blueprint,
        topology=place.shape.topology,
        width=place.shape.width,
        causal=place.shape.causal,
        axes=place.layout.axes,
        style=slot.state.style,
        alpha=final_alpha(slot),
        gate=slot.gating is not None,
        output="" if place.output is None else json.dumps(_written(place.output)),
    )


def _modules(path: Path, slot: GrownSlot) -> tuple[nn.Module, nn.Module | None]:
    """Modules of the structure that the file describes; their tensors are loaded afterwards."""
    if (slot.topology, slot.blueprint) not in BLUEPRINTS:
        raise BlueprintError(
            f"{path} holds a seed of the blueprint {slot.blueprint!r} for {slot.topology}, which is not known here; "
            "import the plug-in or module that registers it before loading"
        )
    with random_stream(0):
        gating = Gating(slot.topology, slot.width) if slot.gate else None
        return build(slot.blueprint, SlotShape(topology=slot.topology, width=slot.width, causal=slot.causal)), gating


def _place(path: Path, slot: GrownSlot) -> Place:
    """As much of a place as a part needs to know."""
    return Place(
        path=slot.path,
        shape=SlotShape(topology=slot.topology, width=slot.width, causal=slot.causal),
        example_shape=(),
        layout=Layout(slot.axes),
        dtype=torch.float32,
        device=torch.device("cpu"),
        position=0.0,
        output=_holder(path, json.loads(slot.output)) if slot.output else None,
    )


def _written(holder: Holder) -> dict[str, Any]:
    """A holder as JSON. Classes of the user's own are named, as `module:name`."""
    plain = next((name for name, kind in PLAIN_KINDS.items() if kind is holder.kind), None)
    kind = plain or f"{holder.kind.__module__}:{holder.kind.__qualname__}"
    parts = [[key, None if inner is None else _written(inner)] for key, inner in holder.parts]
    return {"kind": kind, "length": holder.length, "parts": parts}


def _holder(path: Path, plain: dict[str, Any]) -> Holder:
    """The inverse. A file may name only classes of modules that are here already: nothing is imported for it."""
    name = plain["kind"]
    kind: Any = PLAIN_KINDS.get(name)
    if kind is None:
        module, _, qualified = name.partition(":")
        kind = sys.modules.get(module)
        for part in qualified.split("."):
            kind = getattr(kind, part, None)
    if not isinstance(kind, type) or not issubclass(kind, (tuple, list, dict)):
        raise StateError(f"{path} was grown from a host whose module returns a {name}, which is not known here; import it before loading")
    parts = tuple((key, None if inner is None else _holder(path, inner)) for key, inner in plain["parts"])
    return Holder(kind=kind, length=plain["length"], parts=parts)


def _sorted(path: Path, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """A state dict as tensors, names of tied ones with the first name of each, and what is no tensor."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    others: dict[str, Any] = {}
    known: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            others[name] = _plain(path, name, value)
            continue
        if value.layout is not torch.strided or value.is_quantized:
            raise StateError(f"{path} cannot hold {name!r} of the host's state dict, which is {value.layout}; expected a dense tensor")
        where = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and where in known:
            aliases[name] = known[where]
        else:
            known[where] = name
            tensors[name] = value.detach().resolve_conj().resolve_neg().cpu().contiguous().clone()
    return tensors, aliases, others


def _plain(path: Path, name: str, value: Any) -> Any:
    """What is no tensor, as JSON."""
    try:
        return extras.write(value)
    except TypeError as error:
        raise StateError(f"{path} cannot hold {name!r} of the host's state dict, which has in it {error}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says about itself, and its tensors."""
    try:
        if path.is_dir():
            raise StateError(f"{path} is a folder; expected the file of a grown network")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a file is no mapping
    except FileNotFoundError:
        raise StateError(f"no grown network at {path}") from None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"{path} is no grown network, or is damaged: it is no safetensors file ({error})") from error
    if HEADER not in metadata:
        raise StateError(f"{path} holds tensors, but no grown network; expected a file that save_grown wrote")
    if "sha256" not in metadata or metadata["sha256"] != _digest(metadata[HEADER], tensors):
        raise StateError(f"{path} is damaged or was edited: its checksum is not the one that was written down")
    about: dict[str, Any] = json.loads(metadata[HEADER])
    if about["version"] != VERSION:
        raise StateError(f"{path} is a grown network of version {about['version']}; this version of Esper reads {VERSION}")
    return about, tensors


def _versions(state: Mapping[str, Any]) -> dict[str, Any]:
    """What torch keeps beside a state dict: the version of each module's own format, which some ask for when they are loaded."""
    return dict(getattr(state, "_metadata", {}))


def _fill(path: Path, network: nn.Module, tensors: dict[str, Tensor], plain: dict[str, Any], versions: dict[str, Any]) -> None:
    """Load tensors and whatever else is in the state into a network of the same structure."""
    expected = network.state_dict(keep_vars=True)
    other = f"{path} was grown from another host"
    try:
        state = OrderedDict(tensors | {name: extras.read(value, expected.get(name), repr(name)) for name, value in plain.items()})
        state._metadata = extras.read(versions, _versions(expected), "_metadata")  # type: ignore[attr-defined]
    except StateError as error:
        raise StateError(f"{other}: {error}") from None
    for name, mine in expected.items():
        if name not in state:
            raise StateError(f"{other}: it has no {name!r}{_near(name, state)}")
        found = state[name]
        if isinstance(found, Tensor) and isinstance(mine, Tensor) and not name.endswith("_extra_state"):
            if found.shape != mine.shape:
                raise StateError(f"{other}: {name!r} has shape {tuple(found.shape)} there and {tuple(mine.shape)} here")
            if found.dtype != mine.dtype:
                mine.data = mine.data.to(found.dtype)
    for name in state:
        if name not in expected:
            raise StateError(f"{other}: it has {name!r}, which this one does not{_near(name, expected)}")
    try:
        network.load_state_dict(state)
    except EsperError:
        raise
    except Exception as error:
        raise StateError(f"{path} cannot be loaded into this host: {in_a_line(error)}") from error


def _near(name: str, known: Iterable[str]) -> str:
    """The nearest name, if there is one: a network has too many to name them all."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the header and over each tensor's name, type, shape and values."""
    digest = sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
