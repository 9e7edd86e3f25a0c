"""The grown network as a plain module: the user's own classes, torch.nn and torch.fx, nothing of esper.

Where a seed has grown, the host's module is replaced by a small graph module that holds it as `module` and the seed as `grown`.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from esper.kasmina.attach.probe import Example, call, evaluating, untouched
from esper.kasmina.blending import Graft
from esper.kasmina.slot import Place, Slot
from esper.leyline.errors import HarvestError
from esper.leyline.stages import Stage

if TYPE_CHECKING:
    from esper.kasmina.growable import Growable

TOLERANCE = 1e-6
"""Largest difference, relative to the largest output, between the grown model and what is harvested from it."""


def harvest(model: Growable, kept: Collection[str]) -> nn.Module:
    """A deep copy of the host with the seeds of these slots as ordinary submodules, checked against the model on its example input."""
    # One deepcopy of everything, so that the copied handles belong to the copied host.
    host, handles, slots = copy.deepcopy((model.host, model._handles, [slot for slot in model.slots.values() if slot.id in kept]))
    for handle in handles:
        handle.remove()
    _replace(host, [(slot.place, plain_seed(slot)) for slot in slots])
    host = plain_host(host)
    _check(model, host, [slot for slot in model.slot_ids if slot not in kept])
    return host


def plain_host(host: nn.Module) -> nn.Module:
    """The host with every module of esper's own in it, which the built-in hosts are, traced down to torch's."""
    if _is_of_esper(host):
        return _traced(host, "Network")
    replaced = {id(child): plain_host(child) for child in host.children()}
    for name, child in list(host._modules.items()):
        if child is not None:
            setattr(host, name, replaced[id(child)])
    return host


def _traced(module: nn.Module, name: str) -> fx.GraphModule:
    """The module as a graph of torch's own modules and functions; each keeps its mode."""
    modes = {path: inner.training for path, inner in module.named_modules()}
    try:
        traced = _Tracer().trace(module.eval())
    except Exception as error:
        raise HarvestError(
            f"{type(module).__name__} cannot be traced ({type(error).__name__}: {error}); "
            "what chooses its way by the data may not hold modules of esper's"
        ) from error
    graph = fx.Graph()  # a copy, as a traced graph is pickled with its tracer, which is of esper
    graph.output(graph.graph_copy(traced, {}))
    for node in graph.nodes:
        node.type = None  # an annotation, which is only a string here and keeps the graph from being pickled
    plain = fx.GraphModule(module, graph, class_name=name)
    for path, inner in plain.named_modules():
        inner.training = modes.get(path, modes[""])
    return plain


def _is_of_esper(module: nn.Module) -> bool:
    return type(module).__module__.startswith("esper.")


def can_be_harvested(model: nn.Module, example: Example, places: Sequence[Place]) -> bool:
    """Whether plain modules can take these places: False when the model does more with one than call it. The model is left as it was."""
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    with untouched(model), evaluating(model):
        expected = call(model, example)
        try:
            replaced = _replace(model, [(place, nn.Identity()) for place in places])
            return all(_difference(a, b) <= TOLERANCE for a, b in zip(_tensors(expected), _tensors(call(model, example)), strict=True))
        except Exception:
            return False
        finally:
            for owner, name, module in replaced:
                setattr(owner, name, module)


def _replace(host: nn.Module, seeds: Sequence[tuple[Place, nn.Module]]) -> list[tuple[nn.Module, str, nn.Module]]:
    """Put grown modules in their places; returns where and what was replaced."""
    planned = []  # all of it first: replacing an outer module changes the paths of those inside
    for place, seed in seeds:
        parent, _, name = place.path.rpartition(".")
        owner = host.get_submodule(parent)
        planned.append((owner, name, getattr(owner, name), grow_module(getattr(owner, name), seed, place)))
    for owner, name, _, grown in planned:
        setattr(owner, name, grown)
    return [(owner, name, module) for owner, name, module, _ in planned]


def grow_module(module: nn.Module, seed: nn.Module, place: Place) -> fx.GraphModule:
    """The module with a seed behind it, taking the same arguments and returning the same kind of output."""
    root = nn.Module()
    root.module = module
    root.grown = seed
    graph = fx.Graph()
    args, kwargs = _placeholders(graph, module, place.path)
    output = graph.call_module("module", args, kwargs)
    graph.output(_grown_output(graph, output, place))
    grown = fx.GraphModule(root, graph, class_name="Grown")
    grown.training = module.training  # not train(), which would set the modes of what is inside the module too
    return grown


def plain_seed(slot: Slot) -> fx.GraphModule:
    """The slot's seed at its present alpha, traced down to torch's own modules and functions."""
    # From the tensor: in half precision it is not quite the number in the record.
    alpha = 1.0 if slot.state.stage is Stage.FOSSILIZED else float(slot.alpha)
    assert slot.seed is not None
    graft = Graft(slot.seed, slot.gating, slot.state.style, alpha).train(slot.training)
    try:
        return _traced(graft, "Seed")
    except HarvestError as error:
        raise HarvestError(f"slot {slot.id!r}: the seed of blueprint {slot.state.blueprint!r} cannot be harvested: {error}") from error


class _Tracer(fx.Tracer):
    """Looks into modules that hold anything of esper's; everything else stays a module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(_is_of_esper(inner) for inner in m.modules())


def _placeholders(graph: fx.Graph, module: nn.Module, path: str) -> tuple[tuple[fx.Node, ...], dict[str, Any]]:
    """The module's own signature, as far as a graph can express it. Arguments with defaults that it cannot are left at them."""
    args: list[fx.Node] = []
    kwargs: dict[str, Any] = {}
    optional = left_out = False
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars, kind = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**", type(module).__name__
            raise HarvestError(f"{path!r}: {kind}.forward takes {stars}{name}, which a graph module cannot pass on; put the slot elsewhere")
        required = parameter.default is parameter.empty
        if not required and not (parameter.default is None or isinstance(parameter.default, (bool, int, float, str))):
            left_out = True
            continue
        if required and not optional:
            node = graph.placeholder(name)
        else:  # a required keyword behind optional arguments needs some default, as the graph's signature has no keyword-only part
            node = graph.placeholder(name, default_value=None if required else parameter.default)
        optional = optional or not required
        if parameter.kind is parameter.KEYWORD_ONLY or (left_out and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
            kwargs[name] = node
        else:
            args.append(node)
    return tuple(args), kwargs


def _grown_output(graph: fx.Graph, output: fx.Node, place: Place) -> Any:
    if place.items is None or place.container is None:
        return graph.call_module("grown", (output,))
    first = graph.call_module("grown", (graph.call_function(operator.getitem, (output, 0)),))
    items = [first, *(graph.call_function(operator.getitem, (output, i)) for i in range(1, place.items))]
    if place.container is tuple or place.container is list:
        return place.container(items)
    named = hasattr(place.container, "_fields")
    return graph.call_function(place.container, tuple(items) if named else (items,))


def _check(model: Growable, plain: nn.Module, dropped: list[str]) -> None:
    """Compare the two on the example input; a difference means that the host does more with a module than call it."""
    with untouched(model.host), evaluating(model), model.without(*dropped):
        expected = call(model, model.example)
    try:
        with untouched(plain), evaluating(plain):
            found = call(plain, model.example)
    except Exception as error:
        raise HarvestError(
            f"the harvested network does not run ({type(error).__name__}: {error}); the host uses a module with a slot "
            "in another way than calling it; put the slot at a module that is only called"
        ) from error
    for a, b in zip(_tensors(expected), _tensors(found), strict=True):
        if not _difference(a, b) <= TOLERANCE:  # NaN is too much as well
            raise HarvestError(f"the harvested network differs from the grown one by {_difference(a, b):.2e} on the example input")


def _difference(a: Tensor, b: Tensor) -> float:
    """Largest difference, as a share of the largest finite size in a if that is above 1. Infinities and NaNs must be in the same places."""
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    scale = torch.where(a.isfinite(), a.abs(), 0.0)
    return float(difference.max()) / max(1.0, float(scale.max())) if a.numel() else 0.0


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
