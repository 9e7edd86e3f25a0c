"""Harvests around modules with unusual arguments and outputs, blueprints of the user's own, and what is refused, in words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.blueprints import GroupNorm
from esper.leyline.actions import Style
from esper.leyline.errors import HarvestError
from tests.kasmina.growing import (
    assert_equal,
    fingerprint,
    grow,
    grow_one,
    hook_count,
    outputs,
    registered,
    to_blending,
    to_training,
    unlike_birth,
)
from tests.kasmina.networks import ReadsWeight
from tests.kasmina.zoo import BY_NAME


class Inside(nn.Module):
    """A network around one block, called in the way that is given."""

    def __init__(self, block: nn.Module, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.way, self.head = block, way, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.way(self.block, x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Defaults(Block):
    """The second argument's default cannot be written into a graph; the third must not take its place."""

    def forward(self, x: Tensor, sizes: tuple[int, ...] = (1, 2), scale: float = 1.0, *, shift: float = 0.0) -> Tensor:
        return self.linear(x) * scale * sum(sizes) + shift


class KeywordOnly(Block):
    def forward(self, x: Tensor, scale: float = 1.0, *, shift: float) -> Tensor:
        return self.linear(x) * scale + shift


class PositionalOnly(Block):
    def forward(self, x: Tensor, scale: float = 2.0, /, input: Tensor | None = None) -> Tensor:
        return self.linear(x) * scale + (0.0 if input is None else input)


class Listing(Block):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.linear(x), x]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Named(Block):
    def forward(self, x: Tensor) -> Pair:
        return Pair(self.linear(x), x)


class Bag(tuple[Tensor, ...]):
    """A tuple with manners of its own."""

    def total(self) -> Tensor:
        return torch.stack(tuple(self)).sum(0)


class Bagged(Block):
    def forward(self, x: Tensor) -> Bag:
        return Bag((self.linear(x), x))


def plain_defaults(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, scale=0.5)


def keywords(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, 0.5, shift=3.0)


def all_by_name(block: nn.Module, x: Tensor) -> Tensor:
    return block(x=x, shift=-1.0)


def third_argument(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, 0.5, input=x)


def appended(block: nn.Module, x: Tensor) -> Tensor:
    items = block(x)
    items.append(x)
    return torch.stack(items).sum(0)


def by_field(block: nn.Module, x: Tensor) -> Tensor:
    pair = block(x)
    return pair.left - pair.right


def by_method(block: nn.Module, x: Tensor) -> Tensor:
    return block(x).total()


UNUSUAL: dict[str, tuple[type[Block], Callable[[nn.Module, Tensor], Tensor]]] = {
    "a default that no graph can hold": (Defaults, plain_defaults),
    "a required keyword": (KeywordOnly, keywords),
    "all by name": (KeywordOnly, all_by_name),
    "positional only": (PositionalOnly, third_argument),
    "a list": (Listing, appended),
    "a named tuple": (Named, by_field),
    "a tuple of one's own": (Bagged, by_method),
}


EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("block", "way"), UNUSUAL.values(), ids=UNUSUAL.keys())
def test_a_block_keeps_its_arguments_and_its_kind_of_output(block: type[Block], way: Callable[[nn.Module, Tensor], Tensor]) -> None:
    net = grow_one(Inside(block(), way), "block", EXAMPLE)
    plain = net.harvest()
    other = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    assert_equal(outputs(plain, other), outputs(net, other))
    assert_equal(outputs(copy.deepcopy(plain), other), outputs(net, other))


class Starred(Block):
    def forward(self, *features: Tensor) -> Tensor:
        return self.linear(features[0])


class DoublyStarred(Block):
    def forward(self, x: Tensor, **options: float) -> Tensor:
        return self.linear(x)


def called(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


def with_sizes(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, (1, 2, 3))


REFUSED: dict[str, tuple[nn.Module, str, str]] = {
    "starred": (Inside(Starred(), called), "block", r"'block': Starred\.forward takes \*features, which a graph module cannot pass on"),
    "doubly starred": (Inside(DoublyStarred(), called), "block", r"DoublyStarred\.forward takes \*\*options"),
    "an argument that no graph can hold": (Inside(Defaults(), with_sizes), "block", r"does not run \(TypeError"),
    "its weight is read": (ReadsWeight(), "layer", r"does not run \(AttributeError.*in another way than calling it"),
}


@pytest.mark.parametrize(("model", "slot", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_harvested_is_told_in_words(model: nn.Module, slot: str, words: str) -> None:
    net = grow_one(copy.deepcopy(model), slot, EXAMPLE)
    before = fingerprint(net)
    with pytest.raises(HarvestError, match=words):
        net.harvest()
    assert fingerprint(net) == before
    assert hook_count(net.host) == 1


class LooksAtType(nn.Module):
    """Treats a module of another class differently, without any error."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.head(x if isinstance(self.layer, nn.Linear) else 2 * x)


@pytest.mark.parametrize("broken", [0.0, torch.nan, torch.inf])
def test_a_harvest_that_computes_something_else_is_refused(broken: float) -> None:
    class Poisoned(LooksAtType):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (0.0 if isinstance(self.layer, nn.Linear) else broken)

    with pytest.raises(HarvestError, match="the harvested network differs from the grown one by"):
        grow_one(Poisoned(), "layer", EXAMPLE).harvest()


class Masked(nn.Module):
    """Gives minus infinity for what is not allowed, as a policy does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.layer(x)))
        return logits if self.training else logits.masked_fill(torch.tensor([True, False, False]), -torch.inf)


def test_infinities_in_the_same_places_are_no_difference() -> None:
    net = grow_one(Masked(), "layer", EXAMPLE)
    assert torch.equal(outputs(net.harvest(), EXAMPLE)[0], outputs(net, EXAMPLE)[0])


# Blueprints of the user's own


class Choosing(nn.Module):
    """Goes one of two ways by the data, which no trace can follow."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x)) if x.mean() > -100 else x


def test_a_blueprint_of_ones_own_stays_a_class_of_ones_own() -> None:
    with registered("choosing", lambda shape: Choosing(nn.GroupNorm(2, shape.width))) as name:
        net = grow_one(BY_NAME["in_place"].model(), "conv1", BY_NAME["in_place"].example(), name)
        plain = net.harvest()
    assert any(type(module) is Choosing for module in plain.modules())
    assert_equal(outputs(plain, BY_NAME["in_place"].example(3)), outputs(net, BY_NAME["in_place"].example(3)))


def test_a_blueprint_that_cannot_be_traced_is_told_in_words() -> None:
    with registered("choosing_badly", lambda shape: Choosing(GroupNorm(shape.width))) as name:
        net = grow_one(BY_NAME["in_place"].model(), "conv1", BY_NAME["in_place"].example(), name)
        with pytest.raises(HarvestError, match=r"slot 'conv1': the seed of blueprint 'choosing_badly' cannot .* \(TraceError"):
            net.harvest()


class Around(nn.Module):
    """The user's own class, which no trace can follow, around esper's classes, one of them under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = BY_NAME["conv_host"].model()
        self.norm = GroupNorm(1)
        self.alias = self.norm

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.norm(x) if x.mean() > -100 else x)


def test_esper_inside_a_class_of_ones_own_is_traced_and_the_class_stays() -> None:
    example = BY_NAME["conv_host"].example()
    net = grow_one(Around(), "trunk.blocks.0", example)
    plain = net.harvest()
    assert type(plain) is Around
    assert plain.alias is plain.norm
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
    assert_equal(outputs(plain, BY_NAME["conv_host"].example(3)), outputs(net, BY_NAME["conv_host"].example(3)))


def test_a_network_in_double_precision_is_harvested_in_it() -> None:
    model = BY_NAME["mlp"].model().double()
    example = BY_NAME["mlp"].example().double()
    net = grow_one(model, "1", example)
    assert_equal(outputs(net.harvest(), example), outputs(net, example), tolerance=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("style", Style)
def test_a_network_that_changes_its_precision_after_it_was_wrapped_is_harvested_in_it(style: Style, dtype: torch.dtype) -> None:
    specimen = BY_NAME["residual"]
    net = unlike_birth(to_blending(to_training(grow(specimen), specimen, [style], tempo=3), specimen))
    net.to(dtype)
    example = specimen.example(5).to(dtype)
    kept = net.harvest(live="keep")
    assert {p.dtype for p in kept.parameters()} == {dtype}
    assert_equal(outputs(kept, example), outputs(net, example), tolerance=4 * torch.finfo(dtype).eps)
