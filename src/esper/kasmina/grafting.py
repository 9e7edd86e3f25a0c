"""Where in a plain network a part that has grown hangs, and how it comes to run there.

As a rule the host's module holds it as `grown`, and it is that module's forward hook: so the module keeps its class, its signature and its
names. A Sequential gets one layer more, a graph module one node more. What runs all its children, whatever they are, cannot hold a
hook; there the nearest module outside does.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from types import CodeType
from typing import Any

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from esper.kasmina.blending import Graft
from esper.kasmina.fast_path import packing_encoders
from esper.kasmina.outputs import Holder
from esper.kasmina.slot import Place
from esper.leyline.actions import Style

NAME = "grown"
ITERATORS = frozenset({"children", "named_children", "_modules"})
"""What a forward pass that runs the children of its module one by one asks for."""


class Kind(Enum):
    """How a grown part comes to run."""

    HOOK = auto()
    LAYER = auto()
    NODE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a part would run behind one module, and which module holds it."""

    kind: Kind
    home: str
    name: str


class GrownLayer(Graft):
    """A seed behind a module: from the module's output to the same with the seed blended in."""

    holder: Holder | None = None

    def forward(self, output: Any) -> Any:
        """The output with what has grown in its features, wherever they are in it."""
        if self.holder is None:
            return super().forward(output)
        return self.holder.put(output, super().forward(self.holder.pick(output)))


class GrownHook(GrownLayer):
    """The same as a forward hook."""

    def forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:  # type: ignore[override]
        """What takes the place of the module's output."""
        return super().forward(output)


def grown_part(way: Way, place: Place, seed: nn.Module, gating: nn.Module | None, style: Style, alpha: float) -> GrownLayer:
    """The part for a place, to be traced or to be tried as it is."""
    part = (GrownHook if way.kind is Kind.HOOK else GrownLayer)(seed, gating, style, alpha, place.layout)
    part.holder = place.output
    return part


def way_to(host: nn.Module, path: str) -> Way:
    """How a part is to run behind the module at this path."""
    module = host.get_submodule(path)
    if isinstance(module, fx.GraphModule):  # copies of it lose its hooks
        return Way(kind=Kind.NODE, home=path, name=NAME)
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and "forward" not in vars(module):
        return Way(kind=Kind.LAYER, home=path, name=NAME)
    outer = path
    while not _can_hold(host.get_submodule(outer)):
        if not outer:  # nobody can; whoever tries it will see
            return Way(kind=Kind.HOOK, home=path, name=NAME)
        outer = outer.rpartition(".")[0]
    inside = path.removeprefix(outer).strip(".").replace(".", "_")
    return Way(kind=Kind.HOOK, home=outer, name=f"{NAME}_{inside}" if inside else NAME)


def attach(host: nn.Module, path: str, way: Way, part: nn.Module) -> Callable[[], None]:
    """Let the part run behind the module at this path; returns what takes it off again."""
    module, home = host.get_submodule(path), host.get_submodule(way.home)
    hooks: dict[Any, Any] = module._forward_hooks
    name = next(free for free in _numbered(way.name) if not hasattr(home, free) and free not in hooks)
    home.add_module(name, part)
    if way.kind is Kind.HOOK:
        # Under its name: a number, as torch counts hooks, would be given away again in a process that unpickles the network.
        hooks[name] = part
        _move_first(module, name)
    added = _add_node(module, name) if way.kind is Kind.NODE else None
    packing = packing_encoders(host, path)
    for encoder in packing:
        encoder.use_nested_tensor = False

    def detach() -> None:
        for encoder in packing:
            encoder.use_nested_tensor = True
        if added is not None:
            _remove_node(module, added)
        if way.kind is Kind.HOOK:
            del hooks[name]
        del home._modules[name]

    return detach


def hook_first(module: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
    """A forward hook that runs before those of others, whenever they are registered: what grows belongs to the module, and whoever looks at
    its output sees it. What has grown before, in a network that was harvested, still comes first."""
    handle = module.register_forward_hook(hook)
    _move_first(module, handle.id)
    return handle


def _move_first(module: nn.Module, key: int | str) -> None:
    hooks: OrderedDict[int | str, Any] = module._forward_hooks  # type: ignore[assignment]
    for other in [each for each in hooks if isinstance(each, int) and each != key]:
        hooks.move_to_end(other)


def _numbered(name: str) -> Iterator[str]:
    """A network that has grown may grow again: grown, grown_2, grown_3, ..."""
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def _add_node(module: nn.Module, name: str) -> fx.Node:
    assert isinstance(module, fx.GraphModule)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        node = module.graph.call_module(name, (output.args[0],))
    output.args = (node,)
    module.recompile()
    return node


def _remove_node(module: nn.Module, node: fx.Node) -> None:
    assert isinstance(module, fx.GraphModule)
    module.graph.output_node().args = (node.args[0],)
    module.graph.erase_node(node)
    module.recompile()


def _can_hold(module: nn.Module) -> bool:
    """Whether one more submodule makes no difference to what a module does, and stays when it is copied."""
    if isinstance(module, (fx.GraphModule, torch.jit.ScriptModule, nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return False
    return not any(name in ITERATORS for name in _names_used(type(module)))


def _names_used(kind: type[nn.Module]) -> Iterator[str]:
    """Names of attributes and functions in a class's forward pass, and in those of its own methods that the pass calls."""
    waiting, seen = ["forward"], {"forward"}
    while waiting:
        function = getattr(kind, waiting.pop(), None)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        for name in _names_in(code) if isinstance(code, CodeType) else ():
            yield name
            if name not in seen and not hasattr(nn.Module, name):
                seen.add(name)
                waiting.append(name)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
