"""Pieces of work that run beside each other on a device: each is too small to fill it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
STREAMS = 4
"""That work is dealt to: each has a workspace of cuBLAS, 32 MiB."""


class Beside:
    """Runs work on several streams of a GPU, which a captured step keeps as branches of its graph. Elsewhere one after another.

    What the work gets may come from the stream that it is called on, and what it returns may be used there: both wait for each other, on
    the device. The backward pass of what ran on a stream runs on that stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams = [torch.cuda.Stream(device) for _ in range(STREAMS)] if device.type == "cuda" else []

    def run(self, works: Sequence[Callable[[], T]], lent: Tensor | None = None) -> list[T]:
        """The results of all, in order.

        lent: what the work goes on reading in the backward pass, although nothing on the stream that it is called on waits for that: its
        memory is not to be used again before.
        """
        if not self._streams or len(works) == 1:
            return [work() for work in works]
        here, found = torch.cuda.current_stream(self._streams[0].device), []
        used = self._streams[: len(works)]
        for stream in used:
            stream.wait_stream(here)
            if lent is not None:
                lent.record_stream(stream)
        for number, work in enumerate(works):
            with torch.cuda.stream(used[number % len(used)]):
                found.append(work())
        for stream in used:
            here.wait_stream(stream)
        return found
