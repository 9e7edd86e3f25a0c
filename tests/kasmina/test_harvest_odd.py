"""Harvests around modules with unusual arguments and outputs, blueprints of the user's own, and what is refused, in words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

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


class Starred(Block):
    def forward(self, *features: Tensor) -> Tensor:
        return self.linear(features[0]) + features[-1]


class DoublyStarred(Block):
    def forward(self, x: Tensor, **options: float) -> Tensor:
        return self.linear(x) * options["scale"]


class Varying(Block):
    """Returns as many items as there are samples, and one more."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.linear(x), *x.unbind())


class Caching(Block):
    """Fills what it is given, and returns other things besides."""

    def forward(self, x: Tensor, *, cache: list[Tensor] | None = None, use: bool = False) -> tuple[Tensor, list[Tensor] | None, bool]:
        y = self.linear(x)
        if cache is not None:
            cache.append(2 * y)
        return y, cache, use


class Skipping(Block):
    """Hands its features on three times, as the blocks of a diffusion network do: to the next, in a skip, and by name."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        y = self.linear(x)
        return y, (x, torch.tanh(y), y), {"in": x, "out": y}


def plain_defaults(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, scale=0.5)


def keywords(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, 0.5, shift=3.0)


def called(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


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


def with_sizes(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, (1, 2, 3))


def twice(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, x)


def again(block: nn.Module, x: Tensor) -> Tensor:
    return block(block(x, x), x)


def with_scale(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, scale=0.5)


def summed(block: nn.Module, x: Tensor) -> Tensor:
    first, *rest = block(x)
    return first + torch.stack(rest).sum(0)


def cached(block: nn.Module, x: Tensor) -> Tensor:
    cache: list[Tensor] = []
    y, same, used = block(x, cache=cache, use=True)
    assert same is cache
    return y + cache[0] if used else x


def by_attribute(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, scale=0.5) + block.linear.weight.sum()  # type: ignore[operator,union-attr]


def skipped(block: nn.Module, x: Tensor) -> Tensor:
    first, skips, named = block(x)
    assert skips[2] is first
    assert named["out"] is first
    return first * torch.sigmoid(skips[2]) + skips[1] - named["out"] * skips[0]


UNUSUAL: dict[str, tuple[type[Block], Callable[[nn.Module, Tensor], Tensor]]] = {
    "a default that no graph can hold": (Defaults, plain_defaults),
    "a required keyword": (KeywordOnly, keywords),
    "all by name": (KeywordOnly, all_by_name),
    "positional only": (PositionalOnly, third_argument),
    "a list": (Listing, appended),
    "a named tuple": (Named, by_field),
    "a tuple of one's own": (Bagged, by_method),
    "an argument that no graph can hold": (Defaults, with_sizes),
    "starred": (Starred, twice),
    "called twice": (Starred, again),
    "doubly starred": (DoublyStarred, with_scale),
    "doubly starred, and read": (DoublyStarred, by_attribute),
    "as many items as there are samples": (Varying, summed),
    "a cache": (Caching, cached),
    "the same features in three places": (Skipping, skipped),
}


EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize(("block", "way"), UNUSUAL.values(), ids=UNUSUAL.keys())
def test_a_block_keeps_its_arguments_and_its_kind_of_output(
    block: type[Block], way: Callable[[nn.Module, Tensor], Tensor], training: bool
) -> None:
    net = grow_one(Inside(block(), way), "block", EXAMPLE).train(training)
    plain = net.harvest()
    assert type(plain.get_submodule("block")) is block
    assert all(module.training is training for module in plain.modules())
    other = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    assert_equal(outputs(plain, other), outputs(net, other))
    assert_equal(outputs(copy.deepcopy(plain), other), outputs(net, other))
    if block is not Bagged:  # of a class of its own only a copy keeps the class
        assert_equal(outputs(pickle.loads(pickle.dumps(plain)), other), outputs(net, other))


def test_a_hook_that_is_added_to_an_unpickled_harvest_does_not_push_out_what_has_grown() -> None:
    net = grow_one(Inside(Starred(), twice), "block", EXAMPLE)
    plain = pickle.loads(pickle.dumps(net.harvest()))
    expected = outputs(plain, EXAMPLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemovableHandle, "next_id", 0)  # as in a process that has just begun
        handles = [plain.block.register_forward_hook(lambda module, args, output: None) for _ in range(3)]
    assert_equal(outputs(plain, EXAMPLE), expected, tolerance=0.0)
    for handle in handles:
        handle.remove()
    assert_equal(outputs(plain, EXAMPLE), expected, tolerance=0.0)


# Modules that go through their children


class Children(nn.Module):
    """Runs whatever it holds, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.through(x)

    def through(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


class Dense(nn.Sequential):
    """Gives each layer the sum of what all before it gave."""

    def forward(self, input: Tensor) -> Tensor:
        for layer in self:
            input = input + layer(input)
        return input


class Table(nn.ModuleDict):
    """Runs all its entries side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([entry(x) for entry in self.values()]).sum(0)


def layers() -> list[nn.Module]:
    return [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]


ITERATING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "children": (Children, "grown_block"),
    "a Sequential with a forward pass of its own": (lambda: Dense(*layers()), "grown_block"),
    "a dict": (lambda: Table({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}), "grown_block"),
    "a Sequential": (lambda: nn.Sequential(*layers()), "block.grown"),
    "a Sequential that returns a tuple": (lambda: nn.Sequential(nn.Linear(4, 4), Varying()), "block.grown"),
    "a traced module": (lambda: fx.symbolic_trace(nn.Sequential(*layers())), "block.grown"),
}


@pytest.mark.parametrize(("block", "name"), ITERATING.values(), ids=ITERATING.keys())
def test_what_runs_all_its_children_is_not_disturbed(block: Callable[[], nn.Module], name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Inside(block(), summed if "Varying" in repr(block()) else called)
    host = list(model.state_dict())
    net = grow_one(model, "block", EXAMPLE)
    plain = net.harvest()
    assert [key for key in plain.state_dict() if not key.startswith(f"{name}.")] == host
    assert len(plain.state_dict()) > len(host)
    other = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    for each in (plain, copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert_equal(outputs(each, other), outputs(net, other))
    assert_equal([torch.export.export(plain, (other,)).module()(other)], outputs(net, other))


def test_a_network_that_has_grown_can_grow_again() -> None:
    first = grow_one(Inside(nn.Sequential(*layers()), called), "block", EXAMPLE).harvest()
    for slot, name in (("block", "block.grown_2."), ("block.grown", "block.grown.grown."), ("block.0", "block.0.grown.")):
        before = list(first.state_dict())
        net = grow_one(copy.deepcopy(first), slot, EXAMPLE)
        second = net.harvest()
        assert [key for key in second.state_dict() if not key.startswith(name)] == before
        assert_equal(outputs(pickle.loads(pickle.dumps(second)), EXAMPLE), outputs(net, EXAMPLE))


class LooksForGraphs(nn.Module):
    """Treats a network with a graph module in it differently, without any error."""

    def __init__(self, by: float = 0.5) -> None:
        super().__init__()
        self.layer, self.head, self.by = nn.Linear(4, 4), nn.Linear(4, 2), by

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.layer(x))
        return x + self.by if any(isinstance(module, fx.GraphModule) for module in self.modules()) else x


@pytest.mark.parametrize("broken", [0.5, torch.nan, torch.inf])
def test_a_harvest_that_computes_something_else_is_refused(broken: float) -> None:
    net = grow_one(LooksForGraphs(broken), "layer", EXAMPLE)
    before = fingerprint(net)
    with pytest.raises(HarvestError, match="the harvested network differs from the grown one by"):
        net.harvest()
    assert fingerprint(net) == before
    assert hook_count(net.host) == 1


class Keeping(Block):
    """Keeps results of the last forward pass, with their graphs, in all kinds of places."""

    def __init__(self) -> None:
        super().__init__()
        self.features: Tensor | None = None
        self.history: list[Any] = []
        self.record: Record | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.linear(x)
        self.history.append((self.features.sum(), {"mean": self.features.mean()}))
        self.record = Record(self.features)
        return self.features


@dataclass(slots=True)
class Record:
    features: Tensor


def test_a_network_that_keeps_tensors_of_its_last_step_can_be_harvested() -> None:
    net = grow_one(Inside(Keeping(), called), "block", EXAMPLE)
    net.train()(EXAMPLE).sum().backward()
    kept = net.host.block.features
    plain = net.harvest()
    assert net.host.block.features is kept
    assert kept.grad_fn is not None
    copies = [plain.block.features, plain.block.history[-1][0], plain.block.history[-1][1]["mean"], plain.block.record.features]
    assert all(each.grad_fn is None for each in copies)
    assert plain.block.record.features is plain.block.features
    assert torch.equal(plain.block.features, kept)
    assert_equal(outputs(plain, EXAMPLE), outputs(net, EXAMPLE))


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


class Captures(nn.Module):
    """Takes the features of a block from a hook of its own, which is hung up in the first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Defaults(), nn.Linear(4, 2)
        self.block.seen = None
        self.hooked = False

    def forward(self, x: Tensor) -> Tensor:
        """The head works on what the hook has seen."""
        if not self.hooked:
            self.hooked = True
            self.block.register_forward_hook(keep)
        self.block(x)
        return self.head(torch.tanh(self.block.seen))


def keep(module: nn.Module, args: Any, output: Tensor) -> None:
    module.seen = output


@pytest.mark.parametrize("passes", [0, 1])
def test_hooks_of_others_see_what_has_grown_whenever_they_were_hung_up(passes: int) -> None:
    torch.manual_seed(0)
    model, x = Captures(), torch.randn(3, 4)
    for _ in range(passes):
        model(x)
    net = grow_one(model, "block", x)
    expected = outputs(net, x)
    with torch.no_grad():
        assert not torch.equal(expected[0], net.host.head(torch.tanh(net.host.block.forward(x))))
    plain = net.harvest()
    assert torch.equal(outputs(plain, x)[0], expected[0])
    again = grow_one(plain, "block", x)
    assert torch.equal(outputs(again.harvest(), x)[0], outputs(again, x)[0])


def test_what_a_framework_puts_around_the_forward_method_is_not_compared() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    net = grow_one(Inside(nn.Linear(4, 4), lambda block, x: block(x)), "block", x)
    bare = net.forward
    net.forward = lambda x: bare(x).half().float()  # type: ignore[method-assign, assignment]
    rounded, plain = net(x), net.harvest()
    assert torch.equal(outputs(plain, x)[0], bare(x))
    assert torch.equal(net(x), rounded)
    assert not torch.equal(rounded, bare(x))
