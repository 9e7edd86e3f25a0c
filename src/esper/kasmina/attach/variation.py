"""Other inputs made from an example: one more sample, one sample changed, another size. They tell which axis of features is which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from esper.leyline.errors import SlotError

Example = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]

LEAST_SIZE = 4
"""An axis of an input that is shorter than this is not halved."""


def batch_size(example: Example) -> int:
    """Samples in an example: the first dimension of its first tensor."""
    found = next(_tensors(example), None)
    if found is None:
        raise SlotError("the example holds no tensor with a batch dimension")
    return found.shape[0]


def sample_counts(example: Example) -> dict[int, int]:
    """How many samples an example would have, by the axis of its inputs that they may lie along: the first or, in sequences, the second."""
    first = next(_tensors(example), None)
    if first is None:
        return {}
    return {0: first.shape[0], 1: first.shape[1]} if first.dim() > 1 else {0: first.shape[0]}


def one_more(example: Example, axis: int, count: int) -> Example:
    """The first sample once more, behind the others."""
    return _along(example, axis, count, lambda t: torch.cat((t, t.narrow(axis, 0, 1)), axis))


def one_changed(example: Example, axis: int, count: int) -> Example:
    """The first sample changed: by noise, or where that makes no sense to the values of another.

    Single numbers stay, unless there is nothing else: they are lengths and times, and what is made for them would no longer fit.
    """
    generator = torch.Generator().manual_seed(0)
    single = all(t.dim() <= axis + 1 for t in _tensors(example))

    def change(t: Tensor) -> Tensor:
        if not single and t.dim() <= axis + 1:
            return t
        changed, first = t.clone(), t.narrow(axis, 0, 1)
        if t.is_floating_point() and not bool(((t == 0) | (t == 1)).all()):
            noise = torch.randn(first.shape, generator=generator).to(device=t.device, dtype=t.dtype)
            other = first + noise * (t.std() if t.numel() > 1 else 1.0)
        else:
            others = [t.narrow(axis, at, 1) for at in range(1, count)]
            others += [first.flip(each) for each in range(t.dim()) if each != axis]
            other = next((each for each in others if not torch.equal(each, first)), first)
        changed.narrow(axis, 0, 1).copy_(other)
        return changed

    return _along(example, axis, count, change)


def other_sizes(example: Example, axis: int, count: int) -> Iterator[Example]:
    """The example in other sizes: images of half or twice the height and width, sequences of half the length."""
    inputs = [t for t in _tensors(example) if t.dim() > max(axis, 1) and t.shape[axis] == count]
    sequence = 1 - axis
    images = {size for t in inputs if t.is_floating_point() and t.dim() > 3 for size in t.shape[2:]}
    lengths = {t.shape[sequence] for t in inputs if not t.is_floating_point()}
    tries = [images | lengths] if images or lengths else []
    for t in inputs:
        if t.is_floating_point() and t.dim() == 3:
            tries += [lengths | {t.shape[sequence]}, lengths | {t.shape[2]}]
    for sizes in tries:
        wanted = {size for size in sizes if size >= LEAST_SIZE}
        if wanted:
            yield _along(example, axis, count, lambda t, wanted=wanted: _halved(t, axis, wanted))  # type: ignore[misc]
    if images:
        yield _along(example, axis, count, lambda t: t.repeat(1, 1, *[2] * (t.dim() - 2)) if t.is_floating_point() and t.dim() > 3 else t)


def _halved(t: Tensor, samples: int, sizes: set[int]) -> Tensor:
    for axis in range(t.dim()):
        if axis != samples and t.shape[axis] in sizes:
            t = t.narrow(axis, 0, t.shape[axis] // 2)
    return t.contiguous()


def _along(example: Example, axis: int, count: int, change: Callable[[Tensor], Tensor]) -> Example:
    """The example with every tensor changed that has `count` samples along the axis."""
    return pytree.tree_map_only(Tensor, lambda t: change(t) if t.dim() > axis and t.shape[axis] == count else t, example)


def _tensors(example: Example) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim() > 0)
