"""Random streams by name: every draw is a function of a key such as ("order", seed, epoch), whatever else was drawn before.

A key is hashed with SHA-256, so neighbouring seeds and epochs give unrelated streams, and two purposes never share one.
"""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

# The constants of the splitmix64 mixer, as signed 64-bit numbers because torch has no unsigned arithmetic.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX2 = 0x94D049BB133111EB - (1 << 64)


def stream_seed(*key: str | int) -> int:
    """A number from 0 to 2**63 - 1 that depends on the key alone, the same in every process and release."""
    # int() because a number of numpy or torch is the same key as Python's.
    plain = [part if isinstance(part, str) else int(part) for part in key]
    digest = hashlib.sha256(json.dumps(plain).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator at the start of the key's stream."""
    return torch.Generator().manual_seed(stream_seed(*key))


def draws(index: Tensor, *key: str | int) -> Tensor:
    """For each position in `index` (int64, any shape) a random number from 0 to 2**62 - 1, on the same device.

    A position's number depends on the key and the position alone, not on the other positions. The arithmetic is on integers, so
    every device gives the same numbers.
    """
    return draws_from(index, stream_seed(*key))


def draws_from(index: Tensor, stream: int | Tensor) -> Tensor:
    """What `draws` gives, from `stream_seed` of the key. A tensor of them, broadcast with `index`, gives each position its own stream."""
    mixed = (index + 1) * _STEP + stream
    mixed = (mixed ^ _shift(mixed, 30)) * _MIX1
    mixed = (mixed ^ _shift(mixed, 27)) * _MIX2
    return _shift(mixed ^ _shift(mixed, 31), 2)


def shuffled(size: int, *key: str | int) -> Tensor:
    """The numbers 0 to size - 1 in the key's order (CPU, int64). Unlike torch.randperm, the same in every release of torch."""
    return torch.argsort(draws(torch.arange(size), *key), stable=True)


def _shift(value: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills with zeros; torch's own repeats the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
