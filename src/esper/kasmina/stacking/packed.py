"""Small tensors that go to a device together."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.kasmina.stacking.rows import sent


class Packed:
    """Tensors of one type that are written together, in one copy to the device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._sizes: list[int] = []
        self.made: Tensor | None = None

    def add(self, size: int) -> int:
        """Room for one more tensor; returns its number."""
        self._sizes.append(size)
        return len(self._sizes) - 1

    def make(self) -> list[Tensor]:
        """All of them."""
        self.made = torch.zeros(sum(self._sizes), dtype=self.dtype, device=self.device)
        self._staged = torch.zeros(sum(self._sizes), dtype=self.dtype)
        self.staged = [part.numpy() for part in self._staged.split(self._sizes)]
        return list(self.made.split(self._sizes))

    def write(self) -> None:
        """Copy what was staged to the device."""
        assert self.made is not None
        self.made.copy_(sent(self._staged, self.device))
