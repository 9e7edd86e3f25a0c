"""One module that computes for many of its kind: a copy whose layers take stacked tensors and follow their stacking rules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from esper.kasmina.norms import Norm, tracked_norms
from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.rules import Rule, max_pool, rule_for

DROPOUT = nn.modules.dropout._DropoutNd


class Streams:
    """A random stream for each host, so that chance does not depend on who else is in the batch.

    Each is the stream that the host would have alone: the device's default generator, started from the host's own seed.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        self.states: list[Tensor] = []
        for seed in seeds:
            self.generator.manual_seed(seed)
            self.states.append(self.generator.get_state())

    @contextmanager
    def kept(self, hosts: Iterable[int] | None = None) -> Iterator[None]:
        """What is drawn inside is given back, for all hosts or for some."""
        before = list(self.states)
        yield
        for host in range(len(before)) if hosts is None else hosts:
            self.states[host] = before[host]

    @contextmanager
    def of(self, host: int) -> Iterator[None]:
        """Inside, the default generator is this host's."""
        self.generator.set_state(self.states[host])
        yield
        self.states[host] = self.generator.get_state()


class Frame:
    """What the layers of a stacked module must know of the batch that runs through them."""

    def __init__(self) -> None:
        self.hosts = 1
        """N: rows of the stack that are bound."""
        self.samples = 1
        """S: samples of each host in the batch."""
        self.streams: Streams | None = None
        self.places: Sequence[int] = ()
        """Of each row, its host's place in the streams."""

    def holds_rows(self, tree: Any) -> bool:
        """Whether the first tensor has a row for each sample of each host."""
        first = next((leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)), None)
        return first is not None and first.dim() > 0 and len(first) == self.samples * self.hosts

    def split(self, tree: Any) -> Any:
        """Tensors of the batch, (S * N, ...), as (S, N, ...); everything else as it is."""
        rows, shape = self.samples * self.hosts, (self.samples, self.hosts)
        return pytree.tree_map_only(Tensor, lambda each: each.unflatten(0, shape) if each.dim() and len(each) == rows else each, tree)

    def join(self, tree: Any) -> Any:
        """The inverse of `split`."""
        shape = (self.samples, self.hosts)
        return pytree.tree_map_only(Tensor, lambda each: each.flatten(0, 1) if each.shape[:2] == shape else each, tree)


class StackedModule:
    """A module for N hosts: `bind` gives it their tensors, `module` is called with their batches, (S * N, ...).

    kept: paths of modules that must stay reachable, because something hangs on them; they are never inside of what runs through vmap, and
    neither are batch norms, whose statistics are made anew for measurements.
    batchless: paths of layers that are called with what is the same for all samples, positions for instance; None to find out in the
    first batch, which must then not have as many rows as there are positions.
    """

    def __init__(self, module: nn.Module, kept: Collection[str] = (), batchless: Collection[str] | None = None) -> None:
        self.frame = Frame()
        self.module = copy.deepcopy(module)
        self.kept = frozenset(kept)
        self.shared: set[str] = set()
        """Buffers that are the same in all hosts and never change, by name: one of each is enough."""
        self._owners: dict[str, list[tuple[dict[str, Any], str]]] = {}
        """Where each tensor goes, by its name in the module."""
        self._spread: list[tuple[nn.Module, str, str]] = []
        """Parameters that a container uses itself: module, attribute, name. They are bound for each row of a batch."""
        self._values: Mapping[str, Tensor] = {}
        self.paths: dict[nn.Module, str] = {}
        """Of each layer that computes by a rule."""
        self._known = None if batchless is None else frozenset(batchless)
        self._without_batch: dict[nn.Module, bool] = {}
        """Of each layer that has run: whether it is called with what is the same for all samples."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        names |= {id(b): name for name, b in self.module.named_buffers()}
        self._visit(self.module, "", names)
        self.module.register_forward_pre_hook(self._begin, with_kwargs=True)

    def bind(self, values: Mapping[str, Tensor], hosts: int, streams: Streams | None = None, places: Sequence[int] = ()) -> None:
        """Run with these tensors, (hosts, *shape) by name, until others are bound."""
        self.frame.hosts, self.frame.streams, self.frame.places = hosts, streams, places
        self._values = values
        for name, owners in self._owners.items():
            for owner, attribute in owners:
                owner[attribute] = values[name]

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        batch = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        frame = self.frame
        frame.samples = len(batch) // frame.hosts
        for owner, attribute, name in self._spread:
            value = self._values[name]
            if value.dim() > 2 and value.shape[1] == 1:
                value = value.squeeze(1)  # made with a batch of one, to be expanded: (N, 1, ...)
            owner.__dict__[attribute] = value.expand(frame.samples, *value.shape).flatten(0, 1)

    def batchless(self) -> frozenset[str]:
        """Paths of the layers that were called with what is the same for all samples."""
        return frozenset(self.paths[module] for module, found in self._without_batch.items() if found)

    # Taking the module apart

    def _visit(self, module: nn.Module, path: str, names: Mapping[int, str]) -> None:
        """Give a module what it needs to compute for many, and those inside."""
        rule = rule_for(module)
        inside = any(each.startswith(f"{path}.") if path else each for each in self.kept)
        own = [*module._parameters.values(), *module._buffers.values()]
        holds = any(each is not None for each in own)
        parametrized = parametrize.is_parametrized(module)
        norms = tracked_norms(module)
        if isinstance(module, DROPOUT):
            self._patch(module, _dropout, path)
        elif type(module) is nn.MaxPool2d:
            module.forward = partial(max_pool, module)  # type: ignore[method-assign]
        elif rule is not None and not parametrized:
            self._take(module, names)
            self._patch(module, rule, path)
            self._visit_children(module, path, names)
        elif isinstance(module, Norm) and norms:
            reason = "its running statistics could not be made anew, because it computes in a way of its own"
            raise Unstackable(f"module {path!r} ({type(module).__name__}): {reason}")
        elif (holds or parametrized) and not inside and not norms:
            self._vmapped(module, path, names)
        else:
            self._spread_own(module, path, names)
            self._visit_children(module, path, names)

    def _visit_children(self, module: nn.Module, path: str, names: Mapping[int, str]) -> None:
        for name, child in module.named_children():
            self._visit(child, f"{path}.{name}" if path else name, names)

    def _take(self, module: nn.Module, names: Mapping[int, str]) -> None:
        """Make the module's own tensors plain attributes that `bind` fills."""
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                self._owners.setdefault(names[id(parameter)], []).append((module.__dict__, name))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                self._owners.setdefault(names[id(buffer)], []).append((module._buffers, name))

    def _spread_own(self, module: nn.Module, path: str, names: Mapping[int, str]) -> None:
        """A container's own parameters, as for each row of a batch; its buffers have to be constants."""
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                self._spread.append((module, name, names[id(parameter)]))
        self.shared |= {names[id(buffer)] for buffer in module._buffers.values() if buffer is not None}

    def _patch(self, module: nn.Module, rule: Rule, path: str) -> None:
        module.forward = partial(self._run, module, rule)
        self.paths[module] = path

    def _run(self, module: nn.Module, rule: Rule, *args: Any, **kwargs: Any) -> Any:
        frame = self.frame
        if rule is _dropout:
            return _dropout(module, frame, *args)
        # Known beforehand, or as it was in the very first batch: another may have as many rows as there are positions, say.
        if module not in self._without_batch:
            found = not frame.holds_rows((args, kwargs)) if self._known is None else self.paths[module] in self._known
            self._without_batch[module] = found
        if self._without_batch[module]:
            return self._batchless(module, rule, args, kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # as nearly always
            out = rule(module, args[0].unflatten(0, (frame.samples, frame.hosts)))
            return out.flatten(0, 1) if isinstance(out, Tensor) else frame.join(out)
        return frame.join(rule(module, *frame.split(args), **frame.split(kwargs)))

    def _batchless(self, module: nn.Module, rule: Rule, args: Any, kwargs: Any) -> Any:
        """A layer called with what is the same for all samples, positions for instance: its output is that of each row of the batch."""
        frame, hosts = self.frame, self.frame.hosts
        args, kwargs = pytree.tree_map_only(Tensor, lambda each: each.expand(1, hosts, *each.shape), (args, kwargs))
        out = rule(module, *args, **kwargs)
        return pytree.tree_map_only(Tensor, lambda each: each.expand(frame.samples, *each.shape[1:]).flatten(0, 1), out)

    def _vmapped(self, module: nn.Module, path: str, names: Mapping[int, str]) -> None:
        """Run a layer without a rule, and all that is in it, through vmap."""
        plain = copy.deepcopy(module)
        inner = {name: names[id(tensor)] for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        values: dict[str, Tensor] = {}
        for name, whole in inner.items():
            self._owners.setdefault(whole, []).append((values, name))
        pairs = list(zip(plain.modules(), module.modules(), strict=True))

        def rule(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            for each, like in pairs:
                each.training = like.training

            leaves: list[Any] = []
            spec: pytree.TreeSpec | None = None

            def alone(values: dict[str, Tensor], args: Any, kwargs: Any) -> list[Tensor]:
                nonlocal leaves, spec
                leaves, spec = pytree.tree_flatten(torch.func.functional_call(plain, values, args, kwargs))
                return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

            shape = (self.frame.samples, self.frame.hosts)
            dims = pytree.tree_map(lambda each: 1 if isinstance(each, Tensor) and each.shape[:2] == shape else None, (args, kwargs))
            tensors = iter(vmapped(alone, (0, *dims), 1, values, args, kwargs))
            assert spec is not None
            # Whatever is no tensor, None in the place of attention weights for instance, is the same for all hosts.
            return pytree.tree_unflatten([next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

        self._patch(module, rule, path)


def vmapped(function: Callable[..., Any], in_dims: Any, out_dims: int, *args: Any) -> Any:
    """`torch.vmap`, without its advice to its own developers on operations that it does one by one."""
    # Python's own filters would make every other warning that is shown once be shown again.
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        return torch.vmap(function, in_dims=in_dims, out_dims=out_dims)(*args)
    finally:
        torch._C._functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]


def draws_at_random(module: nn.Module) -> bool:
    """Whether some layer draws random numbers while it trains."""
    return any(isinstance(each, DROPOUT) and each.p > 0.0 for each in module.modules())


def _dropout(module: nn.Module, frame: Frame, x: Tensor) -> Tensor:
    """Dropout, with what each host would drop alone."""
    assert isinstance(module, DROPOUT)
    if not module.training or module.p == 0.0:
        return x
    if frame.streams is None:
        raise Unstackable("it drops features at random where no random stream is given")
    rows = x.unflatten(0, (frame.samples, frame.hosts))
    parts = []
    for row, place in enumerate(frame.places):
        with frame.streams.of(place):
            parts.append(type(module).forward(module, rows[:, row].contiguous()))
    return torch.stack(parts, 1).flatten(0, 1)
