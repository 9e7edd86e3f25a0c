"""Members and families: a task is not one host but many, and a seed draws the host, the data and the budget of one of them.

On a single host a tuned schedule is as good as any controller can be. What a controller can learn is to see what *this* host needs, so
a task's family holds hosts that gain much by growing, and hosts that gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from esper.kasmina.hosts import BlockParts
from esper.leyline.config import Count, NonNegative, NonNegativeInt, Range, Size, check_ranges, replace_fields
from esper.leyline.errors import ConfigError
from esper.leyline.score import MOST_RENT, USUAL_RENT
from esper.tolaria.data.streams import stream_seed

Schedule = Literal["constant", "linear", "cosine", "step"]
SlotLayout = Literal["before", "after", "both"]
Choices = Mapping[str, tuple[Any, ...]]
"""For each field of Member that varies, the values it can take; each is as likely as the others, and one named twice is twice as likely."""
STEP_FACTOR = 0.1
"""What a `step` schedule multiplies the learning rate by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One host, its data and its budget. Plain values alone, so that it can be written as JSON or TOML and read back."""

    widths: tuple[Size, ...] = ()
    """Vision: channels of each block."""
    kernel: Annotated[int, Range(1, 15)] = 3
    """Vision: size of the convolutions, an odd number."""
    kernels: tuple[Annotated[int, Range(1, 15)], ...] = ()
    """Vision: a size for each block in place of `kernel`, e.g. 1,3,3 for a host whose first block sees no shapes."""
    depth: Annotated[int, Range(1, 16)] = 1
    """Vision: convolutions in each block."""
    slots: SlotLayout = "before"
    """Vision: where the slots are: before each pool, after it, or both."""
    width: Annotated[int, Range(1, 8192)] = 64
    """Language: features of a token."""
    heads: Annotated[int, Range(1, 128)] = 4
    """Language: attention heads; a divisor of the width."""
    layers: Annotated[int, Range(1, 128)] = 2
    """Language: transformer blocks, each with a slot behind it."""
    parts: tuple[BlockParts, ...] = ()
    """Language: what each block has, attention, an MLP or both, e.g. mlp,both for a host whose first block sees one token at a time; all
    have both when this is empty."""
    block: Annotated[int, Range(2, 8192)] = 64
    """Language: tokens that the host sees at once; the same for a whole family, because the data is cut by it."""
    train_size: NonNegativeInt = 0
    """Samples of the training split that this host gets, images or blocks of text; 0 is all of them."""
    label_noise: Annotated[float, Range(0, 1)] = 0.0
    """Vision: share of the training labels that are replaced by random ones."""
    epochs: Count
    """The budget: passes over the training data."""
    batch: Annotated[int, Range(2, 1_000_000)]
    """Samples in a step of the optimizer."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with Nesterov's momentum, which convolutions like, or AdamW, which transformers need."""
    learning_rate: NonNegative
    """At the start of the budget; `schedule` says how it falls."""
    schedule: Schedule = "cosine"
    """How the learning rate falls over the last part of the budget: not at all, in a line or a cosine to zero, or at once to a tenth."""
    decay: Annotated[float, Range(0, 1)] = 0.4
    """The share of the budget, at its end, over which the learning rate falls. 1 decays from the start, which starves late seeds."""
    weight_decay: NonNegative = 5e-4
    momentum: Annotated[float, Range(0, 1)] = 0.9
    """Nesterov's momentum of SGD; AdamW has none."""
    augment: bool = False
    """Vision: shift and mirror the training images at random."""
    rent: Annotated[float, Range(0, MOST_RENT)] = USUAL_RENT
    """What its user pays for size: points of accuracy for a network that grew sixteenfold, half as many for fourfold. Training does not
    depend on it; the score, the rewards and whoever decides do."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, sizes in (("kernel", (self.kernel,)), ("kernels", self.kernels)):
            if even := [size for size in sizes if size % 2 == 0]:
                raise ConfigError(f"Member: {name!r} is {even[0]}; expected an odd size, which keeps the size of the map")
        if self.kernels and len(self.kernels) != len(self.widths):
            raise ConfigError(f"Member: 'kernels' has {len(self.kernels)} sizes; expected one for each of the {len(self.widths)} widths")
        if self.parts and len(self.parts) != self.layers:
            raise ConfigError(f"Member: 'parts' has {len(self.parts)} entries; expected one for each of the {self.layers} layers")
        if self.width % self.heads:
            raise ConfigError(f"Member: 'width' is {self.width}; expected a multiple of 'heads', which is {self.heads}")

    def plain(self) -> dict[str, float | int | str]:
        """The fields as events and tables hold them: several sizes as 8-16-32."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def rate_at(self, epoch: float) -> float:
        """The learning rate at the start of an epoch, counted from 0; fractions are moments within it."""
        start = self.epochs * (1 - self.decay)
        if self.schedule == "constant" or epoch < start or self.decay == 0:
            return self.learning_rate
        passed = min(1.0, (epoch - start) / (self.epochs - start))
        factor = {"linear": 1 - passed, "cosine": 0.5 * (1 + math.cos(math.pi * passed)), "step": STEP_FACTOR}[self.schedule]
        return self.learning_rate * factor


def _plain(value: Any) -> float | int | str:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | str) else "-".join(map(str, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The hosts, data and budgets of a task: a standard member, and what varies around it."""

    standard: Member
    ranges: Choices = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.ranges.items():
            if not values:
                raise ConfigError(f"Family: the range of {name!r} is empty; expected the values it can take")
            for value in values:
                replace_fields(self.standard, {name: value}, "Member")

    def draw(self, seed: int) -> Member:
        """The member of that seed: the same in every process and release. A field's value does not depend on which others vary."""
        drawn = {name: values[stream_seed("member", seed, name) % len(values)] for name, values in self.ranges.items()}
        return replace_fields(self.standard, drawn, "Member")

    def with_fixed(self, **values: Any) -> Family:
        """This family with some fields the same for every member: `family.with_fixed(epochs=40, widths=(8, 16, 32))`.

        One `kernel`, and another number of blocks, take the place of the `kernels` or the `parts` that the family draws.
        """
        if "kernel" in values:
            values = {"kernels": (), **values}
        standard = replace_fields(self.standard, values, "Member")
        ranges = {name: choices for name, choices in self.ranges.items() if name not in values}
        for name, blocks in (("kernels", len(standard.widths)), ("parts", standard.layers)):
            if any(choice and len(choice) != blocks for choice in ranges.get(name, ())):
                del ranges[name]
        return Family(standard=standard, ranges=ranges)
