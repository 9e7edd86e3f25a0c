"""The checker that users run on their own models: it passes what works, and says in words what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import check_growable
from tests.kasmina.growing import fingerprint, hook_count
from tests.kasmina.networks import ReadsWeight
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen

EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export speaks so of every LSTM
@pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)
def test_the_checker_passes_the_zoo_and_leaves_it_alone(specimen: Specimen) -> None:
    model = specimen.model()
    before = fingerprint(model)
    found = check_growable(model, specimen.example(), list(specimen.slots))
    assert found, str(found)
    assert [check.name for check in found.checks] == ["places", "copy", "dormant", "isolation", "growth", "harvest", "export"]
    assert str(found).count("ok  ") == 7
    assert [proposal.path for proposal in found.slots] == list(specimen.slots)
    assert fingerprint(model) == before
    assert hook_count(model) == 0


def exploding() -> nn.Module:
    """A network whose gradients are huge on random data."""
    model = BY_NAME["mlp"].model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(30.0)
    return model


def test_the_checker_takes_the_proposals_when_no_slots_are_given() -> None:
    found = esper.check_growable(exploding(), BY_NAME["mlp"].example())
    assert found, str(found)
    assert [proposal.path for proposal in found.slots] == ["1", "3"]


class Shared(nn.Module):
    """The same module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.alias = self.second

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo: Any) -> nn.Module:
        raise TypeError("there can be only one")


class Parameterless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.block[1](self.block[0](x)).round()


class Starred(nn.Module):
    """A block whose arguments no graph can name."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, *features: Tensor) -> Tensor:
            return self.linear(features[0])

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = self.Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


class Forgetful(nn.Module):
    """Gives other numbers at each call, from a source that nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.first(x)) * self.calls


FAULTS: dict[str, tuple[Callable[[], nn.Module], list[str] | None, str, str]] = {
    "shared": (Shared, ["second"], "places", "shared module cannot carry a slot"),
    "unknown": (Shared, ["frist"], "places", "near it: 'first'"),
    "no place": (lambda: nn.Linear(4, 2), None, "places", "no module of the model can carry a slot"),
    "does not run": (lambda: nn.Linear(5, 2), None, "places", "the model does not run on the example input"),
    "cannot be copied": (lambda: nn.Sequential(Uncopyable(4, 4), nn.ReLU(), nn.Linear(4, 2)), ["1"], "copy", "there can be only one"),
    "nothing to learn": (Parameterless, ["block.0"], "dormant", "does not depend on its parameters"),
    "not repeatable": (Forgetful, ["first"], "dormant", "output 0 differs by"),
    "reads a weight": (ReadsWeight, ["layer"], "harvest", "uses a module with a slot in another way than calling it"),
    "starred arguments": (Starred, ["block"], "harvest", r"Block.forward takes *features"),
}


@pytest.mark.parametrize(("factory", "slots", "failing", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_the_checker_says_what_does_not_work(factory: Callable[[], nn.Module], slots: list[str] | None, failing: str, words: str) -> None:
    model = factory()
    before = fingerprint(model)
    found = check_growable(model, EXAMPLE, slots)
    assert not found
    first = next(check for check in found.checks if not check.passed)
    assert first.name == failing
    assert words in first.detail
    assert f"FAIL {failing}: " in str(found)
    assert fingerprint(model) == before
    assert hook_count(model) == 0
