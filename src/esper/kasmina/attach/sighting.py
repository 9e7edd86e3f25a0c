"""One forward pass of a model, and what each of its modules did in it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from esper.kasmina.outputs import replaced

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


class Hint(NamedTuple):
    """What a module with weights tells about the features it returns."""

    first: bool
    """Whether the channels are the second axis, as behind a convolution, or the last, as behind a linear layer."""
    width: int


@dataclass(slots=True)
class Sighting:
    """What was seen of one module in one forward pass."""

    path: str
    module: nn.Module
    calls: int = 0
    order: int = -1
    """Place in the order in which modules finished."""
    output: Any = None
    """Of its last call."""
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Of the features that it returned, one for each call; () for what is no tensor."""
    hints: list[Hint] = field(default_factory=list)
    """Of the telling modules inside, in calling order; behind them, those of what came right before, if the shape is the same."""
    consumer: Hint | None = None
    """Of the first telling module that its features went into as they were."""
    nodes: list[Node] = field(default_factory=list)
    """What made the features, one for each call, where gradients were on."""
    leaves: int = 0
    """Calls of modules with weights of their own inside it, itself included."""


def features_of(output: Any) -> Any:
    """What a slot would take as the features: the output, or the first item of a tuple or list."""
    return output[0] if isinstance(output, (tuple, list)) and output else output


class Watch:
    """Hooks on every module of a model, for one forward pass.

    graph: give each module's features a node of their own in the graph of gradients, which leads only to what uses them as returned.
    """

    def __init__(self, model: nn.Module, *, graph: bool = False) -> None:
        self._graph = graph
        self.sightings = {path: Sighting(path, module) for path, module in model.named_modules(remove_duplicate=False) if path}
        # A module with several names goes by the first.
        self._by_module = {id(s.module): s for s in reversed(self.sightings.values())}
        self._running: list[Sighting] = []
        self._counts = Counter[str]()
        self._latest: tuple[tuple[int, ...], Hint] | None = None
        self._makers: dict[int, list[Sighting]] = {}
        """Who returned each tensor, by its id; all of them are kept."""
        self.takers: dict[int, nn.Module] = {}
        """The first telling module that each tensor went into, by the tensor's id: good for those that outlive the pass."""

    def __enter__(self) -> Watch:
        modules = {id(s.module): s.module for s in self.sightings.values() if not is_scripted(s.module)}.values()
        self._handles = [module.register_forward_pre_hook(self._enter) for module in modules]
        self._handles += [module.register_forward_hook(self._leave) for module in modules]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(self._by_module[id(module)])
        taken = args[0] if args else None
        hint = _hint(module, taken) if isinstance(taken, Tensor) and not isinstance(module, nn.Embedding) else None
        if isinstance(taken, Tensor) and (hint is not None or isinstance(module, nn.Embedding)):
            self.takers.setdefault(id(taken), module)
        for maker in self._makers.pop(id(taken), ()) if hint is not None else ():
            maker.consumer = hint

    def _leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        features = features_of(output)
        if self._graph and isinstance(features, Tensor) and features.requires_grad:
            output = replaced(output, features, features.clone())
        self._note(module, output)
        return output

    def _note(self, module: nn.Module, output: Any) -> None:
        seen = self._running.pop()
        while seen.module is not module:  # one that was left by an exception, which the model caught
            seen = self._running.pop()
        features = features_of(output)
        seen.calls += 1
        self._counts["finished"] += 1
        # A list may be appended to by the model later on.
        seen.order, seen.output = self._counts["finished"], copy.copy(output) if isinstance(output, list) else output
        is_tensor = isinstance(features, Tensor)
        if is_tensor:
            self._makers.setdefault(id(features), []).append(seen)
        seen.shapes.append(tuple(features.shape) if is_tensor else ())
        if is_tensor and features.grad_fn is not None:
            seen.nodes.append(features.grad_fn)
        if any(True for _ in module.parameters(recurse=False)):
            for outer in (*self._running, seen):
                outer.leaves += 1
        hint = _hint(module, features) if is_tensor else None
        if hint is not None:
            self._latest = tuple(features.shape), hint
            for outer in (*self._running, seen):
                outer.hints.append(hint)
        elif is_tensor and not seen.hints and self._latest is not None and self._latest[0] == tuple(features.shape):
            seen.hints.append(self._latest[1])


def _hint(module: nn.Module, features: Tensor) -> Hint | None:
    """What torch's own layers tell, and others whose bias or scale is as long as exactly one axis of their output."""
    if features.dim() < 2:
        return None
    if isinstance(module, CHANNELS_FIRST):
        return Hint(True, features.shape[1])
    if isinstance(module, CHANNELS_LAST):
        return Hint(False, features.shape[-1])
    sizes = {parameter.shape[0] for parameter in module.parameters(recurse=False) if parameter.dim() == 1}
    if len(sizes) != 1 or any(True for _ in module.children()):
        return None
    (width,) = sizes
    axes = [axis for axis in range(1, features.dim()) if features.shape[axis] == width]
    return Hint(axes[0] == 1 and features.dim() > 2, width) if len(axes) == 1 and axes[0] in (1, features.dim() - 1) else None


def channels_of(taker: nn.Module, features: Tensor, batch: int) -> int:
    """The axis of the channels of features that go into a telling module, whose samples lie along the axis `batch`."""
    hint = _hint(taker, features)
    assert hint is not None, "a module that tells nothing"
    return (1 if batch != 1 else 0) if hint.first else features.dim() - 1


def is_scripted(module: nn.Module) -> bool:
    """Whether a module is TorchScript, which takes no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def position(order: int, sightings: Mapping[str, Sighting]) -> float:
    """Where in the forward pass something lies, by the order in which modules finished: 0 for the first, 1 for the last."""
    return (order - 1) / max(1, last_order(sightings) - 1)


def last_order(sightings: Mapping[str, Sighting]) -> int:
    """The order of the module that finished last; -1 when none was called."""
    return max((s.order for s in sightings.values()), default=-1)
