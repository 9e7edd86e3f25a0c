"""A place whose growth could not be harvested is refused when the model is wrapped, in words, and the model is left as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.kasmina.attach.survey import probe
from esper.kasmina.trial import unharvestable
from esper.leyline.errors import SlotError
from tests.kasmina.growing import assert_equal, fingerprint, grow_one, hook_count, outputs

EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


class ReadsTheLast(nn.Module):
    """Takes the last layer of a block by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = layers(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)) + self.block[-1].weight.sum()


class RunsTwice(ReadsTheLast):
    """Calls a block, and then the layers in it by itself."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        for layer in self.block:
            x = layer(x)
        return self.head(x + y)


class Hidden(nn.Module):
    """Runs its children in a way that nobody would look for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for child in vars(self)[["_buffers", "_modules"][1]].values():
            x = child(x)
        return x


class Counts(ReadsTheLast):
    """Computes something else when there are more layers."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)) * len(self.block)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "indexed": (ReadsTheLast, "block", r"'block', as nothing .* does not run once something has grown there \(AttributeError"),
    "run twice": (RunsTwice, "block", r"would run 2 times in one forward pass, not 1"),
    "hidden": (lambda: nn.Sequential(Hidden(), nn.Linear(4, 2)), "0", r"does not run once something has grown there \(TypeError"),
    "counted": (Counts, "block", r"the network's output changes by \d\.\d\de.\d\d once anything has grown there, even what does nothing"),
}


@pytest.mark.parametrize(("make", "slot", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_could_not_be_harvested_is_refused_when_the_model_is_wrapped(make: Callable[[], nn.Module], slot: str, words: str) -> None:
    model = make()
    before = fingerprint(model)
    with pytest.raises(SlotError, match=words):
        Growable(model, [slot], EXAMPLE)
    assert fingerprint(model) == before
    assert hook_count(model) == 0


class Blocks(nn.Module):
    """Sixteen blocks; of those whose numbers are given the last layer is read."""

    def __init__(self, read: tuple[int, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([layers() for _ in range(16)])
        self.head, self.read = nn.Linear(4, 2), read

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            x = x + block[-1].bias if i in self.read else x
        return self.head(x)


@contextmanager
def passes(model: nn.Module) -> Iterator[list[None]]:
    """Inside, each forward pass of the model is counted."""
    found: list[None] = []
    handle = model.register_forward_pre_hook(lambda module, args: found.append(None))
    yield found
    handle.remove()


@pytest.mark.parametrize(("guilty", "most"), [((), 2), ((5,), 10), ((0, 5), 18)])
def test_the_guilty_are_found_by_halves(guilty: tuple[int, ...], most: int) -> None:
    model = Blocks(guilty)
    paths = [f"blocks.{i}" for i in range(16)]
    places = probe(model, EXAMPLE, paths, causal=True, topology={})
    with passes(model) as found:
        refused = unharvestable(model, EXAMPLE, [places[path] for path in paths])
    assert list(refused) == [f"blocks.{i}" for i in guilty]
    assert all("AttributeError" in why for why in refused.values())
    assert len(found) <= most


class Samples(nn.Module):
    """Draws from every random stream there is, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = layers(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x) + torch.randn(4) + random.gauss(0.0, 1.0) + np.random.normal()
        return self.head(x) * torch.rand(2)


def test_a_network_that_samples_is_compared_from_the_same_random_state() -> None:
    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    model = Samples()
    torch.set_rng_state(torch.tensor(streams[2], dtype=torch.uint8))
    net = Growable(model, ["block"], EXAMPLE)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == streams
    with pytest.raises(SlotError, match="changes by"):
        Growable(SamplesByLength(), ["block"], EXAMPLE)
    assert net.slot_ids == ("block",)


class SamplesByLength(Samples):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * len(self.block)


class OwnStream(Samples):
    """Draws from a stream that nobody else knows, so that no two passes give the same."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x) + torch.randn(4, generator=self.stream))


def test_a_network_that_never_gives_the_same_twice_is_not_held_against_itself() -> None:
    net = grow_one(OwnStream(), "block", EXAMPLE)
    plain = net.harvest()
    for each in (net.host, plain):
        each.stream.manual_seed(5)  # type: ignore[union-attr,operator]
    assert_equal(outputs(plain, EXAMPLE), outputs(net, EXAMPLE))


class Remembers(nn.Module):
    """Keeps account of its passes in attributes, and puts a tensor into one."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = layers(), nn.Linear(4, 2)
        self.seen: list[int] = []
        self.sums: dict[str, int] = {}
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        self.sums["passes"] = len(self.seen)
        self.last = self.block(x)
        self.new = True
        return self.head(self.last)


def test_attributes_are_left_as_they_were() -> None:
    model = Remembers()
    seen, sums = model.seen, model.sums
    Growable(model, ["block"], EXAMPLE)
    assert model.seen is seen
    assert model.sums is sums
    assert (seen, sums, model.last, hasattr(model, "new")) == ([], {}, None, False)


class Rescales(nn.Module):
    """Holds its weights at another scale in eval mode, and an attribute says at which they are, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = layers(), nn.Linear(4, 2)
        self.small = False

    @torch.no_grad()
    def _rescale(self) -> None:
        if self.small == self.training:
            self.head.weight.mul_(2.0 if self.training else 0.5)
            self.small = not self.training

    def forward(self, x: Tensor) -> Tensor:
        self._rescale()
        return self.head(self.block(x) * (2.0 if self.small else 1.0))


def test_an_attribute_that_says_how_parameters_stand_goes_with_them() -> None:
    model = Rescales()
    expected = model(EXAMPLE)
    net = Growable(model, ["block"], EXAMPLE)
    assert torch.equal(net(EXAMPLE), expected)
