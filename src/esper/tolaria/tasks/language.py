"""Tasks that predict the next character of a text with a small GPT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.kasmina.hosts import GPTHost
from esper.leyline.errors import ConfigError, DataError
from esper.tolaria.data.splits import Data, Split
from esper.tolaria.data.streams import shuffled
from esper.tolaria.data.text import VOCABULARY, Texts, text_data
from esper.tolaria.tasks import checks
from esper.tolaria.tasks.family import Member
from esper.tolaria.tasks.registry import Kind, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTask(Task):
    """Predict the next character: a `GPTHost` of the member's width, heads and layers, trained on what `read` gives."""

    kind: Kind = "language"
    classes: int = VOCABULARY
    read: Callable[[Path | None], Texts]
    """Reads the texts from a folder or file, or from where such data is kept."""

    def __post_init__(self) -> None:
        if "block" in self.family.ranges:
            raise ConfigError(f"task {self.name!r}: 'block' varies in its family; expected one length, because the data is cut by it")

    def load(self, source: Path | None, device: torch.device) -> Data:
        """The texts on the device, as blocks of the family's `block` tokens."""
        texts = self.read(source)
        checks.is_a(texts, Texts, self._named("read"))
        return text_data(texts, block=self.family.standard.block, device=device)

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        """A GPTHost with a slot behind each transformer block."""
        host = GPTHost(classes, block=member.block, width=member.width, heads=member.heads, layers=member.layers, parts=member.parts)
        return host, host.slot_paths()

    def example(self, member: Member) -> Tensor:
        """Two blocks of the token 0, (2, block)."""
        return torch.zeros(2, member.block, dtype=torch.int64)

    def training_set(self, data: Data, member: Member, seed: int) -> Split:
        """The training split, or `train_size` blocks of it, chosen by the seed."""
        split, wanted = data.train, member.train_size
        if member.label_noise:
            raise ConfigError(f"task {self.name!r}: 'label_noise' is {member.label_noise}; text has no labels, expected 0")
        if split.x.shape[1] != member.block:
            raise DataError(f"{data.origin}: the data has blocks of {split.x.shape[1]} tokens; the member's 'block' is {member.block}")
        if wanted > len(split):
            raise DataError(f"{data.origin}: the member asks for {wanted:,} blocks of text; there are {len(split):,}")
        if not wanted:
            return split
        chosen = shuffled(len(split), "subset", seed)[:wanted].sort().values.to(split.x.device)
        return Split(split.x[chosen], split.y[chosen])
