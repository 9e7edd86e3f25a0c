"""The checker that users run on their own models: it passes what works, and says in words what does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import check_growable
from tests.kasmina.growing import fingerprint, hook_count
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


class Forgetful(nn.Module):
    """Gives other numbers at each call, from a source that nobody can put back."""

    calls = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x)) * next(self.calls)


class Branching(nn.Module):
    """Goes one way or another by the values of its input, which no export can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x if bool(x.sum() > 0) else -x)


FAULTS: dict[str, tuple[Callable[[], nn.Module], list[str] | None, str, str]] = {
    "shared": (Shared, ["alias"], "places", "it is the same module as 'second'"),
    "unknown": (Shared, ["frist"], "places", "near it: 'first'"),
    "no place": (lambda: nn.Linear(4, 2), None, "places", "no place for a slot was found among 0 modules"),
    "does not run": (lambda: nn.Linear(5, 2), None, "places", "the model does not run on the example input"),
    "cannot be copied": (lambda: nn.Sequential(Uncopyable(4, 4), nn.ReLU(), nn.Linear(4, 2)), ["1"], "copy", "there can be only one"),
    "nothing to learn": (Parameterless, ["block.0"], "dormant", "does not depend on its parameters"),
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


@pytest.mark.parametrize(("model", "name", "words"), [(Branching, "export", "torch.export does not take the model as it is")])
def test_what_the_bare_model_cannot_do_is_not_held_against_growing(model: Callable[[], nn.Module], name: str, words: str) -> None:
    found = check_growable(model(), EXAMPLE, ["first"])
    (check,) = (each for each in found.checks if each.passed is None)
    assert found, str(found)
    assert check.name == name
    assert words in check.detail
    assert f"--   {name}: " in str(found)


def test_a_model_that_never_repeats_itself_is_not_compared() -> None:
    found = check_growable(Forgetful(), EXAMPLE, ["first"])
    assert [check.name for check in found.checks if check.passed is None] == ["dormant", "isolation"]
    assert "gives other numbers each time" in str(found)
