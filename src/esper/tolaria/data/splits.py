"""Train, val and test of a task on one device, shared by all hosts, and the order of an epoch.

Training and decisions see train and val. The test split is for final figures alone: the only way to it is `Data.test` with a
`FinalEvaluation`, so that a search for that name finds every place that looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline.errors import DataError
from esper.leyline.plugins import telling
from esper.tolaria.data.streams import generator, shuffled


@dataclass(frozen=True, slots=True)
class Split:
    """Inputs and targets on the device, one row for each sample.

    Images: x float32 (N, C, H, W), normalised, and y int64 (N,). Text: x int64 (N, block) and y int64 (N, block), the token that
    follows each one in x; both are views of one stream of tokens, so neither may be written to.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor) or not isinstance(self.y, Tensor):
            raise DataError(f"a split of {type(self.x).__name__} and {type(self.y).__name__}; expected two tensors")
        if len(self.x) != len(self.y):
            raise DataError(f"a split of {len(self.x):,} inputs and {len(self.y):,} targets; expected as many of one as of the other")

    def __len__(self) -> int:
        return self.x.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalEvaluation:
    """The permission to look at the test split, and who asks: `FinalEvaluation(asked_by="esper compare")`."""

    asked_by: str

    def __post_init__(self) -> None:
        if not self.asked_by.strip():
            raise DataError("FinalEvaluation: asked_by is empty; expected who looks at the test split, such as 'esper compare'")


class Data:
    """What a task learns from, on one device: `train` and `val`, and `test` for final figures.

    One object serves every host; nothing in it is ever written to. `fingerprint` is the SHA-256 of the raw arrays or text, so two runs
    with the same one saw the same data. `origin` says in words where it came from.
    """

    def __init__(self, *, classes: int, train: Split, val: Split, test: Callable[[], Split], fingerprint: str, origin: str) -> None:
        self.classes = classes
        self.fingerprint = fingerprint
        self.origin = origin
        self.train = train
        """The whole training split; what one host trains on is `Task.training_set`."""
        self.val = val
        """The split that decisions and rewards are measured on, cut from the training data."""
        # The test split stays in its raw form, off the device, until somebody may see it.
        self._test = test
        for name, split in (("train", train), ("val", val)):
            if not len(split):
                raise DataError(f"{origin}: the {name} split is empty; expected more data")

    def test(self, purpose: FinalEvaluation) -> Split:
        """The test split, brought to the device now. Raises DataError for anything but a FinalEvaluation."""
        if not isinstance(purpose, FinalEvaluation):
            raise DataError(
                f"the test split is for final figures: expected test(FinalEvaluation(asked_by=...)), found {type(purpose).__name__}; "
                "decisions are made on val"
            )
        with telling(f"{self.origin}: making the test split", file=""):
            made = self._test()
        if not isinstance(made, Split):
            raise DataError(f"{self.origin}: the test split is a {type(made).__name__}; expected a Split")
        return made


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of n training samples in one epoch: a permutation (CPU, int64) that depends on seed and epoch alone."""
    return torch.randperm(n, generator=generator("order", seed, epoch))


def stratified(labels: Tensor, size: int, *key: str | int) -> tuple[Tensor, Tensor]:
    """Two disjoint sets of positions that together are all of them: `size` with the classes in proportion, and the rest; both sorted.

    Each class gives its exact share, rounded so that the sum is `size` (largest remainders first). Which of its samples go is the
    key's choice.
    """
    assert 0 <= size <= len(labels), f"cannot take {size} of {len(labels)}"
    counts = torch.bincount(labels).tolist()
    exact = [count * size / len(labels) for count in counts]
    wanted = [int(share) for share in exact]
    by_remainder = sorted(range(len(counts)), key=lambda label: (wanted[label] - exact[label], label))
    for label in by_remainder[: size - sum(wanted)]:
        wanted[label] += 1
    order = shuffled(len(labels), *key)
    ordered = labels[order]
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(wanted):
        taken[order[ordered == label][:count]] = True
    return taken.nonzero().flatten(), (~taken).nonzero().flatten()
