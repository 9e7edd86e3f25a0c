"""What is compared to tell whether models of several processes are the same: the bits of their parameters, summed, and seeds' records."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from esper.kasmina.slot import Slots
from esper.leyline.codec import to_plain
from esper.leyline.errors import RankError

Record = dict[tuple[str, str], str]
"""All that is known of the seeds of a model but their tensors, by slot and name, as text: in it a NaN is equal to itself."""
SHAPES = "shapes of its parameters"
"""The name of what a seed's own record does not know."""
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers to read the bits of a tensor as, by the bytes of one of its elements."""


def record_of(slots: Slots) -> Record:
    """What this process knows of the seeds."""
    record: Record = {}
    for slot in slots.values():
        known = {**to_plain(slot.state), SHAPES: [list(p.shape) for p in slot.seed_parameters()]}
        record |= {(slot.id, name): json.dumps(value) for name, value in known.items()}
    return record


def same_shapes(records: Sequence[Record]) -> bool:
    """Whether the seeds of all ranks have parameters that can be compared."""
    return len({tuple((key, value) for key, value in record.items() if key[1] == SHAPES) for record in records}) == 1


def compare_records(records: Sequence[Record], when: str) -> None:
    """Raise RankError unless the records of all ranks, in their order, are the same."""
    for rank, record in enumerate(records):
        for slot, name in (*records[0], *record):
            first, other = records[0].get((slot, name)), record.get((slot, name))
            if first != other:
                raise RankError(f"the ranks are not equal {when}: of slot {slot!r}, {name} is {first} on rank 0 and {other} on rank {rank}")


def sum_of_bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's elements, their bits read as whole numbers: a 0-d int64 that any change of one element changes."""
    values = tensor.detach()
    flat = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
    return flat.view(WORDS[flat.element_size()]).sum(dtype=torch.int64)
