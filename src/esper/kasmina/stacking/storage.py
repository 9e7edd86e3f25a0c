"""One storage for everything that learns in a stack, so that one operation serves all of it: an operation costs more than its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.stacking.rows import Rows, sent

CHUNK = 256
"""Numbers that are summed one after another; the sums of such chunks are summed then, so that long sums are as exact as short ones."""


class Segments:
    """What is whose in a vector that holds the rows of several parts, one part after another. A segment is one row of one tensor.

    Rows are counted through all parts; segments in the order in which they are in the vector: by part, by tensor, by row.
    """

    def __init__(self, parts: Sequence[Rows], device: torch.device) -> None:
        rows, lengths, self.first_row, self.first_segment = [np.zeros(0, int)], [np.zeros(0, int)], [0], [0]
        for part in parts:
            rows.append(np.tile(np.arange(len(part)) + self.first_row[-1], len(part.sizes)))
            lengths.append(np.repeat(np.asarray(part.sizes, int), len(part)))
            self.first_row.append(self.first_row[-1] + len(part))
            self.first_segment.append(self.first_segment[-1] + len(rows[-1]))
        length = np.concatenate(lengths)
        self.rows = sent(torch.from_numpy(np.concatenate(rows)), device)
        """int64 (segments,): of each, its row."""
        self._lengths = sent(torch.from_numpy(length), device)
        chunks = -(-length // CHUNK)
        sizes = np.full(chunks.sum(), CHUNK)
        sizes[np.cumsum(chunks) - 1] = length - (chunks - 1) * CHUNK
        # As offsets, which is what a GPU goes by: from lengths it would count them out anew each time.
        self._offsets = [sent(torch.from_numpy(np.concatenate(([0], np.cumsum(each)))), device) for each in (sizes, chunks)]
        self.elements = int(length.sum())

    def __len__(self) -> int:
        return self.first_segment[-1]

    def row_of_elements(self) -> Tensor:
        """int32 (elements,): of each number in the vector, its row."""
        return torch.repeat_interleave(self.rows.int(), self._lengths, output_size=self.elements)

    def sums(self, vector: Tensor) -> Tensor:
        """Over each segment, (segments,). What is not finite in one reaches no other. Waits for no device."""
        for offsets in self._offsets:
            vector = torch.segment_reduce(vector, "sum", offsets=offsets, unsafe=True)
        return vector


class Storage:
    """The rows of several parts in one vector, one part after another, and likewise what their optimisers keep.

    Parts are moved here with what they hold; their modules' tensors are views of this storage from here on.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = list(parts)
        sizes, rows = [len(part.flat) for part in self.parts], [len(part) for part in self.parts]
        learning = [part for part in self.parts if part.names]  # a part without parameters may have no device
        self.flat = torch.cat([part.flat for part in learning])
        """(elements,)."""
        self.states = {key: torch.cat([part.states[key] for part in learning]) for key in learning[0].kept}
        """The optimisers' figures by name, (elements,) each."""
        self.steps = torch.zeros(sum(rows), device=self.flat.device, dtype=torch.float64)
        """(rows,): how often each was stepped, once its part has read that."""
        pieces = {key: state.split(sizes) for key, state in self.states.items()}
        for at, (part, flat, steps) in enumerate(zip(self.parts, self.flat.split(sizes), self.steps.split(rows), strict=True)):
            part.place(flat, {key: each[at] for key, each in pieces.items()}, steps)
        self.segments = Segments(self.parts, self.flat.device)

    def holds(self, parts: Sequence[Rows]) -> bool:
        """Whether these are the parts that are here, in this order."""
        return [id(part) for part in parts] == [id(part) for part in self.parts]

    def finite(self) -> Tensor:
        """Whether all of a row is, bool (rows,)."""
        spoilt = self.segments.sums(self.flat * 0)  # NaN where something is not finite
        return torch.zeros(len(self.steps), dtype=spoilt.dtype, device=spoilt.device).index_add_(0, self.segments.rows, spoilt) == 0
