"""Which axis of a module's features is the batch and which are the channels, from passes with other inputs and from what layers tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.kasmina.attach.sighting import Hint, Sighting, features_of


@dataclass(frozen=True, slots=True)
class Spread:
    """Where features changed when one sample of the input did."""

    axis: int | None
    """The axis along which one sample's share of them changed, and no more; None if there is no such axis."""
    anywhere: bool


def spread(before: Tensor, after: Tensor, samples: int) -> Spread | None:
    """Where features differ between two passes; None where that cannot be told."""
    if before.shape != after.shape or before.dim() == 0 or before.numel() == 0:
        return None
    differs = ~((before == after) | (before.isnan() & after.isnan()))
    if not bool(differs.any()):
        return Spread(None, False)
    for axis, size in enumerate(before.shape):
        others = [each for each in range(before.dim()) if each != axis]
        changed = differs.any(others) if others else differs
        if samples > 1 and size % samples == 0 and int(changed.sum()) <= size // samples:
            return Spread(axis, True)
    return Spread(None, True)


def spreads(before: Mapping[str, Sighting], after: Mapping[str, Sighting], samples: int) -> dict[str, Spread]:
    """The same for every module that was called in both passes and returned features."""
    found: dict[str, Spread] = {}
    known: dict[tuple[int, int], Spread | None] = {}
    for path, seen in before.items():
        a, b = features_of(seen.output), features_of(after[path].output) if path in after else None
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            continue
        key = (id(a), id(b))
        if key not in known:
            with torch.no_grad():
                known[key] = spread(a, b, samples)
        here = known[key]
        if here is not None:
            found[path] = here
    return found


def changed_axes(before: Sighting, after: Sighting | None) -> set[int]:
    """Axes whose size is another in the second pass; empty where the two cannot be compared."""
    if after is None or not before.shapes or not after.shapes or len(before.shapes[-1]) != len(after.shapes[-1]):
        return set()
    return {axis for axis, (a, b) in enumerate(zip(before.shapes[-1], after.shapes[-1], strict=True)) if a != b}


def read_axes(
    shape: Sequence[int], batch: int, hints: Sequence[Hint], consumer: Hint | None, moving: set[int] | None
) -> str | None:
    """The layout of features, one letter for each axis; None when it is not clear.

    hints: of the layers that made them. consumer: of the layer that takes them. moving: axes whose length changed with the input's size,
    so that they are places and no channels; None if no other size ran.
    """
    if len(shape) == 2:
        return "BC" if batch == 0 else "CB"
    channels = _channels(shape, batch, [*hints, consumer] if consumer is not None else hints, moving or set(), taken=consumer is not None)
    if channels is None:
        return None
    places = [axis for axis in range(len(shape)) if axis not in (batch, channels)]
    letters = _place_letters(shape, places, channels, moving)
    if letters is None:
        return None
    named = {batch: "B", channels: "C", **dict(zip(places, letters, strict=True))}
    return "".join(named[axis] for axis in range(len(shape)))


def _channels(shape: Sequence[int], batch: int, hints: Sequence[Hint], moving: set[int], *, taken: bool) -> int | None:
    """The axis of the channels: one that does not move with the input, and that has the width which the last telling layer knows.

    taken: whether the last hint is of the layer that takes the features, which knows best.
    """
    last = len(shape) - 1
    possible = [axis for axis in range(len(shape)) if axis != batch and axis not in moving]
    if len(possible) == 1 and moving:
        return possible[0]
    for at, hint in enumerate(reversed(hints)):
        fitting = [axis for axis in possible if shape[axis] == hint.width]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:  # several are as long: where such a layer has its channels, if nothing can have turned them since
            usual = _usual(hint, batch, last)
            sure = (taken and at == 0) or moving or _alike(hints, len(shape))
            return usual if sure and usual in fitting else None
    if not hints:  # nothing tells: images have their channels first
        return 1 if len(shape) == 4 and batch == 0 and 1 in possible else None
    # What layers gave was folded, split or pooled since. All of one kind they still tell where.
    usual = _usual(hints[-1], batch, last)
    return usual if (moving or _alike(hints, len(shape))) and usual in possible else None


def _alike(hints: Sequence[Hint], dimensions: int) -> bool:
    """Whether all layers have their channels at the same end. Those of convolutions are turned into tokens often: three axes say little."""
    kinds = {hint.first for hint in hints}
    return kinds == {False} or (kinds == {True} and dimensions > 3)


def _usual(hint: Hint, batch: int, last: int) -> int:
    """Where a layer of that kind has its channels."""
    return last if not hint.first else (1 if batch != 1 else 0)


def _place_letters(shape: Sequence[int], places: Sequence[int], channels: int, moving: set[int] | None) -> str | None:
    """Letters for the axes that are neither batch nor channels."""
    if len(places) == 2 and channels == len(shape) - 1:
        # (B, H, W, C), or sequences side by side, as the variables of a time series: of those, one axis alone grows with the input.
        moves = [axis in moving for axis in places] if moving else []
        if moves in ([True, False], [False, True]):
            return "TG" if moves[0] else "GT"
        square = shape[places[0]] == shape[places[1]]
        return "HW" if square or all(moves or [False]) else "GT"
    return {1: "T", 2: "HW", 3: "DHW"}.get(len(places))
