"""Looking at a model before anything is attached: one forward pass that learns which modules could carry a slot."""

from __future__ import annotations

import copy
import difflib
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import SlotShape, named_topology
from esper.kasmina.slot import Place, Slot
from esper.leyline.errors import SlotError
from esper.leyline.reports import Topology

Example = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]

CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.GroupNorm,
)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)

DIMENSIONS: dict[Topology, int] = {Topology.MAP2D: 4, Topology.MAP1D: 3, Topology.TOKENS: 3, Topology.VECTOR: 2}


class Layout(NamedTuple):
    """What a module of torch's own tells about the features it returns."""

    channels_first: bool
    width: int


@dataclass(slots=True)
class Sighting:
    """What the probe saw of one module."""

    path: str
    module: nn.Module
    calls: int = 0
    order: int = -1
    """Place in the order in which modules finished."""
    output: Any = None
    layouts: list[Layout] = field(default_factory=list)
    """Of the telling modules inside, in calling order."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the model without leaving a trace: buffers are copies inside, random streams are put back."""
    buffers = [(module, name, value) for module in model.modules() for name, value in module.named_buffers(recurse=False)]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            for module, name, value in buffers:
                setattr(module, name, value.clone())
            yield
        finally:
            for module, name, value in buffers:
                setattr(module, name, value)


def call(model: nn.Module, example: Example) -> Any:
    """Run the model on an example: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, (tuple, list)) else model(example)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Each module's mode is put back on the way out, whatever it is set to inside."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; each module's own mode is put back."""
    with modes_kept(model), torch.no_grad():
        model.eval()
        yield


def sight(model: nn.Module, example: Example) -> tuple[dict[str, Sighting], Any]:
    """One forward pass: what each module did in it, by path, and the model's output. The model is left exactly as it was."""
    check_parameters(model)
    sightings = {path: Sighting(path, module) for path, module in model.named_modules(remove_duplicate=False) if path}
    by_module = {id(s.module): s for s in sightings.values()}
    running: list[Sighting] = []
    finished = Counter[str]()

    def enter(module: nn.Module, args: Any) -> None:
        running.append(by_module[id(module)])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        seen = running.pop()
        seen.calls += 1
        finished["modules"] += 1
        # A list may be appended to by the model later on.
        seen.order, seen.output = finished["modules"], copy.copy(output) if isinstance(output, list) else output
        layout = _layout(module, output)
        if layout is not None:
            for outer in (*running, seen):
                outer.layouts.append(layout)

    handles = []
    try:
        for module in {id(s.module): s.module for s in sightings.values()}.values():
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        with untouched(model), evaluating(model):
            output = call(model, example)
    except Exception as error:
        raise SlotError(f"the model does not run on the example input: {type(error).__name__}: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return sightings, output


def last_order(sightings: Mapping[str, Sighting]) -> int:
    """The order of the module that finished last; -1 when none was called."""
    return max((s.order for s in sightings.values()), default=-1)


def features_of(seen: Sighting) -> Any:
    """What a slot would take as the features: the output, or the first item of a tuple or list."""
    return seen.output[0] if isinstance(seen.output, (tuple, list)) and seen.output else seen.output


def probe(
    model: nn.Module, example: Example, paths: Collection[str], *, causal: bool, topology: Mapping[str, Topology | str]
) -> dict[str, Place]:
    """The places at these paths. Every mistake is found before anything is changed."""
    sightings, _ = sight(model, example)
    for path in (*paths, *topology):
        if path not in sightings:
            raise SlotError(f"the model has no module {path!r}; {_near(path, sightings)}")
    stated = {path: named_topology(kind) for path, kind in topology.items()}
    places = {}
    for path in paths:
        place = examine(sightings, path, example, causal=causal, stated=stated.get(path))
        if isinstance(place, str):
            raise SlotError(f"no slot can be attached to {path!r}: {place}")
        if has_slot(sightings[path].module):
            raise SlotError(f"{path!r} carries a slot of another Growable already; call release() on that one first")
        places[path] = place
    return places


def check_parameters(model: nn.Module) -> None:
    """Raise SlotError for what is no model, and for parameters that seeds, which are plain tensors, cannot be trained together with."""
    if not isinstance(model, nn.Module):
        raise SlotError(f"a model is an nn.Module, found {type(model).__name__}")
    sharding = sys.modules.get("torch.distributed.tensor")  # imported by whoever shards; it takes a second that others need not wait
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise SlotError(f"parameter {name!r} is on the meta device, where nothing can grow; give the model its weights first")
        if sharding is not None and isinstance(parameter, sharding.DTensor):
            raise SlotError(f"parameter {name!r} is sharded, and seeds are not; grow the model first and shard what is harvested")


def examine(sightings: Mapping[str, Sighting], path: str, example: Example, *, causal: bool, stated: Topology | None) -> Place | str:
    """The place at one path, or the reason why it cannot carry a slot."""
    seen = sightings[path]
    aliases = [s.path for s in sightings.values() if s.module is seen.module and s.path != path]
    if aliases:
        return f"the same module is also {aliases[0]!r}; a shared module cannot carry a slot"
    if seen.calls == 0:
        return "the example forward pass never calls it as a module"
    if seen.calls > 1:
        return f"it is called {seen.calls} times in one forward pass"
    items = len(seen.output) if isinstance(seen.output, (tuple, list)) else None
    features = features_of(seen)
    if not isinstance(features, Tensor):
        return f"its output is {_describe(seen.output)}; a slot needs a tensor, or a tuple that starts with one"
    if not features.is_floating_point():
        return f"its output has dtype {features.dtype}; a slot needs floating-point features"
    if isinstance(seen.module, (nn.RNNBase, nn.MultiheadAttention)) and not seen.module.batch_first:
        return "its output is time-first; build it with batch_first=True"
    topology = stated or read_topology(features, seen.layouts)
    if stated is not None and features.dim() != DIMENSIONS[stated]:
        return f"{stated} features have {DIMENSIONS[stated]} dimensions; its output has shape {tuple(features.shape)}"
    if topology is None:
        return f"the layout of its output, shape {tuple(features.shape)}, is not clear; {_layout_help(features)}"
    if topology is not Topology.VECTOR and features.shape[0] != batch_size(example):
        return f"its output, shape {tuple(features.shape)}, does not begin with the batch of {batch_size(example)}"
    width = features.shape[1 if topology in (Topology.MAP2D, Topology.MAP1D) else -1]
    if width < 2 and topology in (Topology.TOKENS, Topology.VECTOR):
        return "its output has a single feature; a seed needs at least two"
    return Place(
        path=path,
        shape=SlotShape(topology=topology, width=width, causal=causal),
        example_shape=tuple(features.shape),
        dtype=features.dtype,
        device=features.device,
        position=(seen.order - 1) / max(1, last_order(sightings) - 1),
        items=items,
        container=None if items is None else type(seen.output),
    )


def read_topology(features: Tensor, layouts: list[Layout]) -> Topology | None:
    """The topology that a shape and the modules inside speak for; None when they do not."""
    if features.dim() == 2:
        return Topology.VECTOR
    if features.dim() == 3:
        if not layouts:
            return None
        return Topology.MAP1D if _channels_first(features, layouts, layouts[-1].channels_first) else Topology.TOKENS
    if features.dim() == 4:
        # Squeeze-and-excite blocks hold linear layers too; a map without any convolution or pooling inside is channels-last.
        unclear = any(layout.channels_first for layout in layouts)
        return Topology.MAP2D if not layouts or _channels_first(features, layouts, unclear) else None
    return None


def _channels_first(features: Tensor, layouts: list[Layout], unclear: bool) -> bool:
    """Which of the two axes has the width of the last telling module, which a transpose may have moved; `unclear` if both or neither."""
    first, last = (features.shape[axis] == layouts[-1].width for axis in (1, -1))
    return unclear if first == last else first


def _layout(module: nn.Module, output: Any) -> Layout | None:
    features = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(features, Tensor) or features.dim() < 2:
        return None
    if isinstance(module, CHANNELS_FIRST):
        return Layout(True, features.shape[1])
    return Layout(False, features.shape[-1]) if isinstance(module, CHANNELS_LAST) else None


def has_slot(module: nn.Module) -> bool:
    """Whether a slot hangs on this module already."""
    return any(isinstance(getattr(hook, "__self__", None), Slot) for hook in module._forward_hooks.values())


def batch_size(example: Example) -> int:
    """Samples in an example: the first dimension of its first tensor."""
    values = example.values() if isinstance(example, dict) else example if isinstance(example, (tuple, list)) else [example]
    first = next((v for v in values if isinstance(v, Tensor) and v.dim() > 0), None)
    if first is None:
        raise SlotError("the example holds no tensor with a batch dimension")
    return first.shape[0]


def _describe(output: Any) -> str:
    if isinstance(output, (tuple, list)) and output:
        return f"a {type(output).__name__} that starts with {type(output[0]).__name__}"
    return f"of type {type(output).__name__}"


def _layout_help(features: Tensor) -> str:
    if features.dim() == 3:
        return 'say topology={path: "map1d"} for (B, C, T) or "tokens" for (B, T, d)'
    if features.dim() == 4:
        return 'it looks channels-last; say topology={path: "map2d"} if it is (B, C, H, W)'
    return "slots take 2 to 4 dimensions"


def _near(path: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(path, sorted(known), n=3, cutoff=0.4)
    if close:
        return "near it: " + ", ".join(repr(c) for c in close)
    top = sorted({p.split(".")[0] for p in known})
    return "it has: " + ", ".join(repr(t) for t in top[:8])
