"""How far one position of a model's input reaches: where features change when that position alone does.

A convolution sees as far as its kernel, attention as far as its mask lets it, and a network of 1 x 1 convolutions sees no shapes at all.
What counts is what the architecture can see, not what a network happens to have learned: the pass runs with stand-ins for the weights, all
of them positive, so that no ReLU is closed and nothing cancels out, and every network of an architecture has the same reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from esper.kasmina.attach.running import evaluating, untouched
from esper.kasmina.attach.sighting import channels_of, features_of
from esper.kasmina.attach.variation import Example, one_more
from esper.kasmina.fast_path import no_fast_path
from esper.kasmina.slot import Place
from esper.leyline.reports import Topology

STRIDES = (1, 3, 7, 13, 17, 23)
"""Steps through a short line of random numbers that a stand-in of any size is read from; a weight with more axes keeps its values."""
BIAS = 0.01
"""Size of stand-ins for biases: enough to keep a ReLU open, and too little to saturate one that has an upper end."""
PRECISE = 50_000_000
"""Parameters up to which a model runs in double precision, where changes far away are still seen that many layers have made small; a
larger one, for which that takes long on most GPUs, runs in single precision."""
TOLERANCE = 16
"""Differences up to so many roundings of the largest value are no change."""


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor of the example with positions."""

    leaf: int
    """Which of the example's leaves it is."""
    places: tuple[int, ...]
    """The axes that its positions lie along."""
    ids: int | None
    """How many ids there are, where it holds ids; 0 where that is not known. None where it holds values."""


def reaches(
    model: nn.Module, example: Example, samples: tuple[int, int], takers: Mapping[int, nn.Module], places: Sequence[Place]
) -> dict[str, int]:
    """Positions of the features at each place that change with the position in the middle of the input, by path; 0 where that is not known.

    samples: the axis of the inputs along which samples lie, and how many there are. takers: the first telling module that each tensor of
    the example went into, by the tensor's id. One forward pass, which leaves the model exactly as it was; whatever goes wrong in it, only
    this stays unknown.
    """
    mapped = [place for place in places if place.layout.topology is not Topology.VECTOR]
    axis, count = samples
    inputs = _inputs(example, axis, count, takers)
    if not mapped or not inputs:
        return dict.fromkeys((place.path for place in places), 0)
    found: dict[str, int] = {}
    precise = sum(p.numel() for p in model.parameters()) <= PRECISE
    for dtype in (torch.float64 if precise else torch.float32, None):  # not every model runs in another precision than its own
        try:
            with _kept(model, mapped) as features:
                _run(model, _one_position(example, axis, count, inputs, dtype), dtype)
            found = {place.path: _changed(features[place.path], place, max(count, 2)) for place in mapped if place.path in features}
            break
        except Exception:  # the model has its reasons, and a slot works without this
            continue
    return {place.path: found.get(place.path, 0) for place in places}


def _inputs(example: Example, axis: int, count: int, takers: Mapping[int, nn.Module]) -> list[_Input]:
    """The tensors whose positions are known from the layers that take them; else the first that looks as if it had any."""
    leaves = pytree.tree_leaves(example)
    known: list[_Input] = []
    guessed: list[_Input] = []
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.dim() < 2 or leaf.dim() <= axis or leaf.shape[axis] != count:
            continue
        others = [each for each in range(leaf.dim()) if each != axis]
        taker = takers.get(id(leaf))
        if isinstance(taker, nn.Embedding):
            known.append(_Input(number, tuple(others), taker.num_embeddings))
        elif leaf.is_floating_point() and leaf.dim() > 2:
            first = others[0] if leaf.shape[others[0]] <= leaf.shape[-1] else leaf.dim() - 1  # an input has fewer channels than positions
            channels = first if taker is None else channels_of(taker, leaf, axis)
            here = _Input(number, tuple(each for each in others if each != channels), None)
            (guessed if taker is None else known).append(here)
        elif leaf.dim() == 2 and not leaf.is_floating_point() and leaf.dtype is not torch.bool:
            guessed.append(_Input(number, tuple(others), 0))
    return known or guessed[:1]


def _one_position(example: Example, axis: int, count: int, inputs: Sequence[_Input], dtype: torch.dtype | None) -> Example:
    """The first sample again and again, alike at all positions where it holds values; in the second the middle position is another."""
    if count == 1:
        example, count = one_more(example, axis, count), 2
    leaves, structure = pytree.tree_flatten(example)
    leaves = [_again(leaf, axis, count, dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for each in inputs:
        t = leaves[each.leaf]
        middle: list[Any] = [slice(None)] * t.dim()
        middle[axis] = 1
        for place in each.places:
            middle[place] = t.shape[place] // 2
        if each.ids is None:
            # More than anything around it, so that it is the one that a max pool takes.
            most = max(0.0, float(t.max()))
            step = most - float(t.min())
            t.fill_(most)
            t[tuple(middle)] += step or 1.0
        else:
            t[tuple(middle)] = _other_id(t, int(t[tuple(middle)]), each.ids)
    return pytree.tree_unflatten(leaves, structure)


def _again(t: Tensor, axis: int, count: int, dtype: torch.dtype | None) -> Tensor:
    """A copy in which all samples are the first."""
    if dtype is not None and t.is_floating_point():
        t = t.to(dtype)
    if t.dim() <= axis or t.shape[axis] != count:
        return t.clone()
    return t.narrow(axis, 0, 1).expand_as(t).clone()


def _other_id(t: Tensor, here: int, known: int) -> int:
    """Another id than the one that is here."""
    if known:
        return (here + 1) % known
    others = t[t != here]
    return int(others[0]) if len(others) else int(here == 0)


@contextmanager
def _kept(model: nn.Module, places: Sequence[Place]) -> Iterator[dict[str, Tensor]]:
    """The features at these places, by path, once a pass has run: as they were returned, whatever is done to them in place later."""
    features: dict[str, Tensor] = {}

    def keep(path: str, output: Any) -> None:
        features[path] = features_of(output).detach().clone()

    modules = [(place.path, model.get_submodule(place.path)) for place in places]
    hooks = [module.register_forward_hook(lambda _, __, output, path=path: keep(path, output)) for path, module in modules]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()


def _run(model: nn.Module, example: Example, dtype: torch.dtype | None) -> None:
    """A forward pass with the stand-ins. They hang in the model in place of its weights while it runs, and take hardly any memory."""
    with untouched(model), evaluating(model), no_fast_path():
        stand_ins = {id(p): _stand_in(name, p, number, dtype) for number, (name, p) in enumerate(model.named_parameters())}
        tensors = {name: stand_ins[id(p)] for name, p in _at_each_place(model)}
        tensors |= {name: _statistic(name, buffer, dtype) for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        args = () if isinstance(example, dict) else tuple(example) if isinstance(example, (tuple, list)) else (example,)
        functional_call(model, tensors, args, example if isinstance(example, dict) else None, tie_weights=False)


def _at_each_place(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every place that a parameter has, once: all names of one that modules share, and one name of a module that has several.

    torch finds the other names by itself if it is let, but then puts a stand-in back for the weight of a module that has two.
    """
    for path, module in model.named_modules():
        yield from module.named_parameters(prefix=path, recurse=False, remove_duplicate=False)


def _stand_in(name: str, parameter: Tensor, number: int, dtype: torch.dtype | None) -> Tensor:
    """Positive values for a parameter, the same for every network of an architecture; a weight's add up to about a half for each output."""
    if not parameter.is_floating_point() or parameter.numel() == 0 or parameter.dim() > len(STRIDES):
        return parameter
    strides = STRIDES[: parameter.dim()]
    length = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, strides, strict=True))
    values = 0.25 + 0.5 * torch.rand(length, generator=torch.Generator().manual_seed(number), dtype=torch.float64, device="cpu")
    inputs = parameter.numel() / parameter.shape[0] if parameter.dim() > 1 else 1.0
    values = values * BIAS if name.endswith("bias") else values / inputs
    return values.to(parameter.device, dtype or parameter.dtype).as_strided(parameter.shape, strides)


def _statistic(name: str, buffer: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A buffer; of what a norm has learned about its inputs, what it knows at birth."""
    buffer = buffer.to(dtype or buffer.dtype)
    if name.endswith("running_mean"):
        return torch.zeros_like(buffer)
    return torch.ones_like(buffer) if name.endswith("running_var") else buffer


def _changed(features: Tensor, place: Place, samples: int) -> int:
    """Positions at which the second sample's features differ from the first's."""
    axis = place.layout.batch
    rows, rest = divmod(features.shape[axis], samples)
    if rest:
        return 0
    first, second = (features.narrow(axis, start, rows) for start in (0, rows))
    noise = TOLERANCE * torch.finfo(features.dtype).eps * float(first.abs().max())
    return int(((first - second).abs() > noise).any(place.layout.channels).sum())
