"""Features that a module returns in several places are the same features everywhere: while a seed is isolated, and once it has grown."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn

from esper.kasmina import Growable
from esper.kasmina.outputs import Holder, difference, holder_of, replaced
from esper.kasmina.slot import Slot
from tests.kasmina.growing import OPEN, assert_equal, gradients, grow_one, identical, outputs, unlike_birth


class Named(NamedTuple):
    first: Any
    second: Any


class Bag(tuple[Any, ...]):
    """A tuple of one's own."""


H, R, S = (torch.full((2, 3), float(i)) for i in range(3))

NESTED: dict[str, Any] = {
    "once": (H, R),
    "twice": (H, (R, S, H)),
    "in lists": [H, [R, [H, S]], H],
    "by name": Named(H, {"r": R, "h": H}),
    "named inside": (H, Named(R, H)),
    "ordered": (H, OrderedDict(r=R, h=H)),
    "a class of one's own": Bag((H, None, "word", Bag((H, 5)))),
    "what is no container": (H, {H.shape}, "text", None),
}


def count(output: Any, tensor: Tensor) -> int:
    if isinstance(output, dict):
        output = list(output.values())
    return sum(count(item, tensor) for item in output) if isinstance(output, (tuple, list)) else int(output is tensor)


@pytest.mark.parametrize("output", NESTED.values(), ids=NESTED.keys())
def test_the_very_same_features_are_replaced_wherever_they_are_and_nothing_else(output: Any) -> None:
    new = torch.full((2, 3), 9.0)
    times = count(output, H)
    holder = holder_of(output, H)
    assert holder is not None
    assert holder.pick(output) is H
    for found in (replaced(output, H, new), holder.put(output, new)):
        assert type(found) is type(output)
        assert (count(found, new), count(found, H)) == (times, 0)
        assert count(found, R) == count(output, R)
        assert repr(replaced(found, new, H)) == repr(output)
    assert count(output, H) == times, "the output itself is left as it was"


def test_what_does_not_hold_the_features_stays_the_very_same_object() -> None:
    cache = [R, {"s": S}]
    found = replaced((H, cache), H, S)
    assert found[1] is cache
    assert replaced(cache, H, S) is cache
    assert holder_of(cache, H) is None
    assert holder_of(H, H) is None


def test_another_length_than_the_probes_is_no_matter() -> None:
    holder = holder_of((H, R, S), H)
    assert holder == Holder(kind=tuple, length=3, parts=((0, None),))
    assert holder.put((R, S), H) == (H, S)
    assert holder.put((R, S, S, S, S), H) == (H, S, S, S, S)


def test_differences_between_outputs() -> None:
    far = float("inf")
    assert difference((H, [R]), (H.clone(), [R.clone()])) == 0.0
    assert difference(H, H + 0.5) == 0.5
    assert difference(100 * R, 101 * R) == pytest.approx(0.01)
    assert difference((H, R), (H,)) == far
    assert difference(H, H[:1]) == far
    nan = torch.tensor([torch.nan, torch.inf, 1.0])
    assert difference(nan, nan.clone()) == 0.0
    assert difference(nan, nan.flip(0)) == far


# A skip that is the features themselves, as the blocks of a diffusion network return them


class Down(nn.Module):
    """Features, and what goes over to the other side: they among it."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        skips: tuple[Tensor, ...] = ()
        for layer in (self.first, self.second):
            x = torch.nn.functional.silu(layer(x))
            skips += (x,)
        return x, skips


class Diffuser(nn.Module):
    """Down and up again; what goes over is added up in the order in which it is met."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = Down(3), Down(8)
        self.middle, self.up, self.out = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.down1(x)
        y, more = self.down2(x)
        skips += more
        x = self.middle(x * y)
        for skip in reversed(skips):
            x = torch.tanh(self.up(torch.cat([x, skip], 1))) + 0.1 * skip
        return self.out(x)


def diffuser() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Diffuser()


EXAMPLE = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(0))
BLOCKS = ["down1", "down2"]


def stepped(model: nn.Module, host: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    loss = (model(EXAMPLE) * torch.linspace(-1, 1, EXAMPLE.numel()).view_as(EXAMPLE)).sum()
    loss.backward()
    return {**gradients(host), "loss": loss.detach()}


def isolated(isolation: str) -> Growable:
    net = Growable(diffuser(), BLOCKS, EXAMPLE, isolation=isolation, gates=OPEN)  # type: ignore[arg-type]
    for slot in BLOCKS:
        net.germinate(slot, "conv_heavy")
        net.advance(slot)
    return unlike_birth(net)


@pytest.mark.parametrize("isolation", ["boost", "ste"])
def test_a_skip_that_is_the_features_keeps_isolation_bit_identical(isolation: str) -> None:
    net, bare = isolated(isolation), diffuser()
    expected, found = stepped(bare, bare), stepped(net, net.host)
    assert [name for name in expected if not identical(found[name], expected[name])] == []
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for slot in net.slots.values() for p in slot.learning_parameters())


def test_it_would_not_be_so_if_only_the_first_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(slot: Slot, module: nn.Module, args: Any, output: Any) -> Any:
        return (slot.blend(output[0]), *output[1:])

    monkeypatch.setattr(Slot, "hook", hook)
    net, bare = isolated("ste"), diffuser()
    expected, found = stepped(bare, bare), stepped(net, net.host)
    assert any(not identical(found[name], expected[name]) for name in expected)


def test_what_has_grown_reaches_the_other_side_in_the_network_and_in_its_harvest() -> None:
    net = grow_one(diffuser(), "down1", EXAMPLE, "conv_heavy")
    seen: list[tuple[Any, ...]] = []
    handle = net.host.get_submodule("down1").register_forward_hook(lambda module, args, output: seen.append(output))
    expected = outputs(net, EXAMPLE)
    handle.remove()
    x, skips = seen[0]
    assert skips[1] is x
    plain = net.harvest()
    assert isinstance(plain.get_submodule("down1.grown"), fx.GraphModule)
    assert_equal(outputs(plain, EXAMPLE), expected, tolerance=0.0)
    x, skips = plain.get_submodule("down1")(EXAMPLE)
    assert skips[1] is x
