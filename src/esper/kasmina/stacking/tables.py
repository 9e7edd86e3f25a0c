"""Tables that say which rows of a batch have a seed at a slot, where that is and what becomes of its output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, eq=False)
class Tables:
    """What our kernels know of a slot of a view. Tensors are filled anew as seeds come and go; the rest stays as long as the view.

    Rows that run through seeds are one buffer, a block for each stack of seeds, (samples, seeds, ...) each, then one for the rows that
    have a gate. A place is a row of these blocks; those to spare read the row of the host that does not exist.
    """

    source: Tensor
    """int64 (places,): of each place, the row of the batch that it reads."""
    block: Tensor
    """int64 (places, 3): the number of its block, the first place of that, and how many there are in it."""
    sizes: list[int]
    """Places of each stack of seeds."""
    gated: int
    """Places of the block for gates."""
    place: Tensor
    """int64 (rows,): of each row of the batch, the place of its seed; -1 for none."""
    kind: Tensor
    """int64 (rows,): the value of its `Kind`; 0 for none."""
    nth: Tensor
    """int64 (rows,): which it is of the rows with a gate, or of those that have a second gradient."""
    alpha: Tensor
    """(rows,)."""
    seconds: int
    """Rows whose gradient has a part besides that which they would have without a seed: those that are multiplied, and
    isolated ones that are not cut off."""
    cut: bool
    """Whether isolated rows are cut off from the gradient of their seed's input."""
    closed: bool
    """Whether there can be no row that is not cut off."""
    boost: bool
    """Whether isolated seeds are pulled towards the features."""
