"""Which axis of features is which: found by trying, refused where it stays unclear, and nothing that grows mixes samples."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.kasmina import Growable, find_slots
from esper.kasmina.blueprints import names
from esper.kasmina.layout import OWN_AXES, Layout, named_layout
from esper.leyline.errors import SlotError, UnknownNameError
from esper.leyline.reports import Topology
from tests.kasmina.growing import OPEN, unlike_birth
from tests.kasmina.networks import ChannelsLastNet
from tests.kasmina.zoo import BY_NAME, run

LAYOUTS = ["BC", "CB", "BTC", "TBC", "BCT", "TCB", "BCHW", "BHWC", "HWBC", "BGTC", "BTGC", "BGCT", "BCDHW", "BDHWC", "BDCHW", "DBHWC"]


@pytest.mark.parametrize("axes", LAYOUTS)
def test_what_is_arranged_for_a_seed_comes_back_as_it_was(axes: str) -> None:
    layout = Layout(axes)
    h = torch.randn(torch.Size(range(2, 2 + len(axes))))
    seen = layout.arrange(h)
    own = OWN_AXES[layout.topology]
    assert tuple(seen.shape) == layout.arranged(h.shape)
    assert seen.dim() == len(own)
    for axis in own[1:]:
        assert seen.shape[own.index(axis)] == h.shape[axes.index(axis)]
    assert torch.equal(layout.restore(seen, h), h)
    assert layout.plain == (axes == own)
    # A gate has one channel, which goes over all of the features'.
    gate = seen.narrow(own.index("C"), 0, 1)
    assert layout.restore(gate, h).shape == torch.Size(1 if axis == "C" else size for axis, size in zip(axes, h.shape, strict=True))


@given(st.text(alphabet="BCTHWDGx1 ", max_size=6))
def test_whatever_is_stated_is_a_layout_or_refused_in_words(stated: str) -> None:
    letters = set(stated)
    places = {"H", "W"} <= letters or "T" in letters or len(stated) == 2
    if len(letters) == len(stated) <= 5 and {"B", "C"} <= letters and places and stated.isalpha() and stated.isupper():
        assert sorted(named_layout(stated).order) == list(range(len(stated)))
    else:
        with pytest.raises((SlotError, UnknownNameError), match=re.escape(repr(stated))):
            named_layout(stated)


FOUND: dict[str, dict[str, tuple[str, Topology, int]]] = {
    "channels_last_axes": {"block1": ("BHWC", Topology.MAP2D, 4), "block2": ("BHWC", Topology.MAP2D, 4)},
    "time_first": {"embed": ("TBC", Topology.TOKENS, 8), "layers.1": ("TBC", Topology.TOKENS, 8), "recurrent": ("TBC", Topology.TOKENS, 6)},
    "volume": {"stem": ("BCDHW", Topology.MAP2D, 4), "body": ("BCDHW", Topology.MAP2D, 6)},
    "series": {"embed": ("BGTC", Topology.TOKENS, 8), "block2": ("BGTC", Topology.TOKENS, 8)},
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_axes_are_found(name: str, batch: int) -> None:
    specimen = BY_NAME[name]
    example = specimen.example()
    example = example[:, :batch] if name == "time_first" else example[:batch]
    net = Growable(specimen.model(), list(FOUND[name]), example)
    for slot, expected in FOUND[name].items():
        place = net.slots[slot].place
        assert (place.layout.axes, place.shape.topology, place.shape.width) == expected


class AsWideAsHigh(ChannelsLastNet):
    """Tells nothing but by what happens to an image of another size: every axis is four long."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.turn(self.patches(x).permute(0, 2, 3, 1))
        return self.head(x.mean((1, 2)))


def test_of_axes_that_are_alike_another_size_tells() -> None:
    example = torch.randn(3, 3, 8, 8)
    model = AsWideAsHigh()
    with torch.no_grad():
        assert model.patches(example).shape == (3, 4, 4, 4)
    assert Growable(model, ["turn"], example).slots["turn"].place.layout.axes == "BHWC"


class Folded(nn.Module):
    """Of a fixed size, and nothing tells what became of the channels: a linear layer's are folded into a map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv1d(3, 4, 1), nn.Linear(40, 48)
        self.fold = nn.Unflatten(1, (6, 8))
        self.head = nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fold(self.linear(self.conv(x).flatten(1))).flatten(1))


def test_what_stays_unclear_is_refused_unless_it_is_stated() -> None:
    example = torch.randn(2, 3, 10)
    with pytest.raises(SlotError, match=r"'fold': the layout of its output, shape \(2, 6, 8\), is not clear; say topology="):
        Growable(Folded(), ["fold"], example)
    assert "fold" not in [place.path for place in find_slots(Folded(), example)]
    for stated, width in (("BCT", 6), ("BTC", 8), ("tokens", 8), ("map1d", 6)):
        assert Growable(Folded(), ["fold"], example, topology={"fold": stated}).report("fold").width == width


@pytest.mark.parametrize("name", FOUND)
def test_nothing_that_grows_mixes_the_samples(name: str) -> None:
    """An attention seed on the wrong axis would look at the other samples of the batch."""
    specimen = BY_NAME[name]
    example = specimen.example()
    axis = 1 if name == "time_first" else 0
    net = Growable(specimen.model().eval(), list(FOUND[name]), example, gates=OPEN)
    for slot in net.slot_ids:
        for blueprint in names(net.report(slot).topology):
            net.germinate(slot, blueprint)
            net.advance(slot)
            with torch.no_grad():
                unlike_birth(net)
            changed = example.clone()
            changed.select(axis, 0).add_(1.0)
            with net.trial(slot), torch.no_grad():
                before, after = run(net, example), run(net, changed)
            assert not torch.equal(before[0], after[0])
            assert torch.allclose(before[1:], after[1:], atol=1e-6), blueprint
            net.prune(slot)
            while net.report(slot).stage.name != "DORMANT":
                net.tick()


def test_a_module_that_is_called_twice_carries_one_seed_for_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared, self.head = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.shared(self.first(x))))

    x = torch.randn(3, 4)
    net = Growable(Twice(), ["shared"], x, gates=OPEN)
    net.germinate("shared", "mlp")
    net.advance("shared")
    net(x).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.slots["shared"].seed_parameters())
    with torch.no_grad():
        unlike_birth(net)
    seed, host = net.slots["shared"].seed, net.host
    assert seed is not None
    with net.trial("shared"), torch.no_grad():
        step = lambda h: seed(host.shared[1](host.shared[0](h)))  # noqa: E731
        assert torch.allclose(net(x), host.head(step(step(host.first(x)))))
