"""Whether a module can be stacked: tried on two of its kind, with values and gradients compared to theirs one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.rows import Rows, finite
from esper.kasmina.stacking.rows import stacked as stacked_rows
from esper.kasmina.stacking.stacked import StackedModule, Streams
from esper.leyline.errors import in_a_line

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest difference, relative to the largest value, by the type of the parameters; 5e-2 for any other."""
PERTURBATION = 0.1
"""How far the second module's weights are from the first's, as a share of their size."""
NO_ROWS = "its output has no row for each sample"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was learned about a module that can be stacked."""

    unused: frozenset[str]
    """Parameters that get no gradient, by name."""
    batchless: frozenset[str] = frozenset()
    """Layers that are called with what is the same for all samples, by path."""


def check_stackable(module: nn.Module, x: Tensor, kept: Collection[str] = ()) -> Checked:
    """Raise Unstackable, with the reason, unless the module computes for two what each would compute alone.

    module: is left as it was. x: samples to try it on, an even number of them, at least four. kept: as for StackedModule.
    """
    modules = [_like(module, 0.0), _like(module, PERTURBATION)]
    inputs = [x[0::2], x[1::2]]
    try:
        stacked = StackedModule(module, kept)
        rows = stacked_rows([copy.deepcopy(each) for each in modules])
        unused: frozenset[str] = frozenset()
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _in_full_precision():
            for training in (True, False):
                alone = [_Trial(each, training, x, seed) for seed, (each, x) in enumerate(zip(modules, inputs, strict=True))]
                stacked.module.train(training)
                values = rows.values()
                stacked.bind(values, 2, Streams([0, 1], x.device), [0, 1])
                together = _Trial(stacked.module, training, x, None, [values[name] for name in rows.names])
                _compare(alone, together, x)
                if training:
                    unused = _compare_gradients(alone, together, rows.names)
                    _compare_buffers(modules, stacked, rows)
    except Exception as error:
        reason = str(error) if isinstance(error, Unstackable) else f"it does not run for several hosts at once: {in_a_line(error)}"
        raise Unstackable(f"{_where(error)}{reason}") from error
    return Checked(unused, stacked.batchless())


@contextmanager
def _in_full_precision() -> Iterator[None]:
    """Inside, cuDNN takes no products in TF32: on so few samples a batch norm would make much of the difference."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _where(error: BaseException) -> str:
    """The innermost layer that was computing when an error was raised, as the beginning of a sentence."""
    path, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is StackedModule._run.__code__:
            owner, module = trace.tb_frame.f_locals["self"], trace.tb_frame.f_locals["module"]
            path = f"module {owner.paths[module]!r} ({type(module).__name__}): " if owner.paths[module] else ""
        trace = trace.tb_next
    return path


class _Trial:
    """One forward pass, with what every module inside gave, and the gradient of its output."""

    def __init__(self, module: nn.Module, training: bool, x: Tensor, seed: int | None, values: list[Tensor] | None = None) -> None:
        self.seen: dict[str, Any] = {}
        module.train(training)
        if seed is not None:
            Streams([seed], x.device)
        handles = [each.register_forward_hook(self._note(path)) for path, each in module.named_modules() if path]
        try:
            with torch.set_grad_enabled(training):
                self.seen[""] = module(x)
        finally:
            for handle in handles:
                handle.remove()
        self.gradients: list[Tensor | None] = []
        if training:
            leaves = [each for each in _tensors(self.seen[""]) if each.requires_grad]
            if not leaves:
                raise Unstackable("its output does not depend on its parameters")
            if not all(each.dim() for each in leaves):
                raise Unstackable(NO_ROWS)
            values = [p for p in module.parameters() if p.requires_grad] if values is None else values
            # Weighted, so that a permuted sample or feature shows.
            weights = [torch.linspace(0.5, 1.5, each[0].numel(), device=x.device, dtype=each.dtype).view(each.shape[1:]) for each in leaves]
            loss = torch.stack([(each * weight).sum() for each, weight in zip(leaves, weights, strict=True)]).sum()
            self.gradients = list(torch.autograd.grad(loss, values, allow_unused=True))

    def _note(self, path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            self.seen.setdefault(path, output)

        return note


def _compare(alone: list[_Trial], together: _Trial, x: Tensor) -> None:
    """Outputs of every module, in the order in which they finished."""
    for path, output in together.seen.items():
        if any(path not in each.seen for each in alone):
            continue
        both = zip(*(_tensors(each.seen[path]) for each in alone), strict=False)
        for stacked, (first, second) in zip(_tensors(output), both, strict=False):
            if not stacked.dim() or len(stacked) != len(x) or len(first) != len(x) // 2:
                continue  # not a batch; what follows from it is compared
            found = torch.stack((first, second), 1).flatten(0, 1)
            if stacked.shape != found.shape or _difference(found, stacked) > _tolerance(found):
                where = f"module {path!r}" if path else "the model"
                raise Unstackable(f"{where} gives other outputs for two hosts than one by one; does it mix the samples of a batch?")
    outputs = [_tensors(each.seen[""]) for each in (*alone, together)]
    if not all(len(each) == len(outputs[0]) and all(len(leaf) for leaf in each) for each in outputs) or len(outputs[2][0]) != len(x):
        raise Unstackable(NO_ROWS)


def _compare_gradients(alone: list[_Trial], together: _Trial, names: list[str]) -> frozenset[str]:
    """Gradients of every parameter; returns the names of those that have none."""
    unused = set()
    # Some gradients are zero but for rounding: a bias in front of a norm.
    scale = max((float(each.abs().max()) for trial in alone for each in trial.gradients if each is not None and each.numel()), default=0.0)
    for name, first, second, both in zip(names, alone[0].gradients, alone[1].gradients, together.gradients, strict=True):
        if first is None or second is None:
            unused.add(name)
            continue
        expected = torch.stack((first, second))
        if both is None or _difference(expected, both, scale) > _tolerance(expected):
            raise Unstackable(f"the gradient of {name!r} is another for two hosts than one by one; does it mix the samples of a batch?")
    return frozenset(unused)


def _compare_buffers(modules: list[nn.Module], stacked: StackedModule, rows: Rows) -> None:
    first, second = (dict(each.named_buffers()) for each in modules)
    for name in first:
        if name in stacked.shared:
            if not torch.equal(first[name], second[name]):
                raise Unstackable(f"the buffer {name!r} of a module with others inside is not a constant")
            continue
        expected = torch.stack((first[name], second[name]))
        if _difference(expected, rows.fixed[name]) > _tolerance(expected):
            raise Unstackable(f"the buffer {name!r} changes otherwise for two hosts than one by one")


def _like(module: nn.Module, by: float) -> nn.Module:
    """A copy with its weights moved a little. It is finite, even if the module is broken: whether it can be stacked does not depend on
    that."""
    other = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.copy_(finite(tensor))
        for p in other.parameters():
            if p.is_floating_point() and by:
                size = (p.std() if p.numel() > 1 else p.abs().mean()).clamp(min=0.1)
                p.add_(by * size * torch.randn(p.shape, generator=generator).to(p))
    return other


def _tolerance(like: Tensor) -> float:
    return TOLERANCE.get(like.dtype, 5e-2) if like.device.type == "cpu" else 5e-2


def _difference(expected: Tensor, found: Tensor, scale: float = 1e-3) -> float:
    """Largest difference, as a share of the largest value, or of `scale` if that is larger; infinite where one is not finite."""
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    expected, found = expected.detach().double(), found.detach().double()
    difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=scale))
    return difference if difference == difference else float("inf")


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
