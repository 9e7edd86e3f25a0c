"""The grown network as a plain module: the user's own classes, torch.nn and torch.fx, nothing of esper.

The host keeps all its modules and their names. Behind a module where a seed has grown, a small graph module, `grown`, runs; see grafting.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import fx, nn

from esper.kasmina.copying import copied
from esper.kasmina.grafting import Way, attach, grown_part, way_to
from esper.kasmina.outputs import difference
from esper.kasmina.slot import Place, Slot
from esper.kasmina.trial import TOLERANCE, is_repeatable, outcome
from esper.leyline.actions import Style
from esper.leyline.errors import HarvestError, in_a_line
from esper.leyline.stages import Stage

if TYPE_CHECKING:
    from esper.kasmina.growable import Growable


def harvest(model: Growable, kept: Collection[str]) -> nn.Module:
    """A deep copy of the host with the seeds of these slots as ordinary submodules, checked against the model on its example input."""
    # One copy of everything, so that the copied handles belong to the copied host.
    host, handles, slots = copied((model.host, model._handles, [slot for slot in model.slots.values() if slot.id in kept]))
    for handle in handles:
        handle.remove()
    for slot in slots:
        way = way_to(host, slot.place.path)
        attach(host, slot.place.path, way, plain_part(way, slot))
    host = plain_host(host)
    _check(model, host, [slot for slot in model.slot_ids if slot not in kept])
    return host


def plain_host(host: nn.Module) -> nn.Module:
    """The host with every module of esper's own in it, which the built-in hosts are, traced down to torch's."""
    if _is_of_esper(host):
        return _traced(host, "Network")
    replaced = {id(child): plain_host(child) for child in host.children()}
    for name, child in list(host._modules.items()):
        if child is not None and replaced[id(child)] is not child:
            setattr(host, name, replaced[id(child)])
    return host


def final_alpha(slot: Slot) -> float:
    """The influence that the slot's seed has in what is harvested."""
    # From the tensor: in half precision it is not quite the number in the record.
    return 1.0 if slot.state.stage is Stage.FOSSILIZED else float(slot.alpha)


def plain_part(way: Way, slot: Slot) -> fx.GraphModule:
    """The slot's seed at its present alpha, traced down to torch's own modules and functions."""
    assert slot.seed is not None
    try:
        return traced_part(way, slot.place, slot.seed, slot.gating, slot.state.style, final_alpha(slot), slot.training)
    except HarvestError as error:
        raise HarvestError(f"slot {slot.id!r}: the seed of blueprint {slot.state.blueprint!r} cannot be harvested: {error}") from error


def traced_part(
    way: Way, place: Place, seed: nn.Module, gating: nn.Module | None, style: Style, alpha: float, training: bool
) -> fx.GraphModule:
    """A part that runs behind the module at a place, with nothing of esper in it."""
    return _traced(grown_part(way, place, seed, gating, style, alpha).train(training), "Grown")


def _traced(module: nn.Module, name: str) -> fx.GraphModule:
    """The module as a graph of torch's own modules and functions; each keeps its mode."""
    modes = {path: inner.training for path, inner in module.named_modules()}
    try:
        traced = _Tracer().trace(module.eval())
    except Exception as error:
        raise HarvestError(
            f"{type(module).__name__} cannot be traced ({in_a_line(error)}); "
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


class _Tracer(fx.Tracer):
    """Looks into modules that hold anything of esper's, and into what has grown at them; everything else stays a module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # What has grown runs as a hook of a module that is looked into, and is given that module, which a graph cannot name.
        return not isinstance(m, fx.GraphModule) and not any(_is_of_esper(inner) for inner in m.modules())


def _check(model: Growable, plain: nn.Module, dropped: list[str]) -> None:
    """Compare the two on the example input; a difference means that the host does more with a module than call it."""
    # A framework may have put its own precision around the forward method of this instance.
    around = vars(model).pop("forward", None)
    try:
        with model.without(*dropped):
            expected = outcome(model, model.example)
    finally:
        if around is not None:
            vars(model)["forward"] = around
    try:
        found = outcome(plain, model.example)
    except Exception as error:
        raise HarvestError(
            f"the harvested network does not run ({in_a_line(error)}); the host uses a module with a slot "
            "in another way than calling it; put the slot at a module that is only called"
        ) from error
    apart = difference(expected, found)
    if apart > TOLERANCE and is_repeatable(plain, model.example):
        raise HarvestError(f"the harvested network differs from the grown one by {apart:.2e} on the example input")
