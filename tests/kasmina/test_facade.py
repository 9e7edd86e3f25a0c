"""A Growable looks like its host, and is copied, pickled and compiled as any module."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina.growable import growable_in
from esper.leyline.errors import ConfigError
from esper.leyline.stages import Stage
from tests.kasmina.growing import OPEN, assert_equal, unlike_birth

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Host(nn.Module):
    """With attributes, a property, methods that run it, and a signature that frameworks read."""

    shared = "of the class"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 3)
        self.config = {"layers": 1}
        self.slots = "the host's own"
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """The host's."""
        return self.head(self.body(x)) * scale

    @property
    def width(self) -> int:
        return self.head.out_features

    def logits(self, x: Tensor) -> Tensor:
        return self(x)

    def __deepcopy__(self, memo: object) -> Host:
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made


class Narrow(Host):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def grown(host: nn.Module | None = None) -> esper.Growable:
    """With a blended seed that makes a difference."""
    torch.manual_seed(0)
    net = esper.Growable(Plain() if host is None else host, ["body"], X, gates=OPEN)
    net.germinate("body", "lora8", tempo=1)
    net.advance("body")
    net(X).sum().backward()
    net.measure_gradients()
    net.advance("body")
    net.tick()
    return unlike_birth(net)


class Plain(Host):
    """The same, copied as torch copies."""

    __deepcopy__ = None


def test_attributes_and_methods_are_the_hosts():
    net = grown()
    assert net.config is net.host.config
    assert (net.width, net.shared) == (3, "of the class")
    assert net.counter is net.host.counter
    assert {"logits", "config", "germinate", "host"} <= set(dir(net))
    shown = net.logits(X)
    assert torch.equal(shown, net(X))
    with net.bare():
        assert not torch.equal(net.logits(X), shown), "a method of the host runs it with what grows in it"
    # What both have is the Growable's; the host's is one step away. What is set on a Growable stays there.
    assert list(net.slots) == ["body"]
    assert net.host.slots == "the host's own"
    net.config, net.note = {"layers": 2}, "mine"
    assert net.host.config == {"layers": 1}
    assert not hasattr(net.host, "note")


def test_an_attribute_that_nobody_has_is_told_with_both_names():
    net = grown()
    with pytest.raises(AttributeError, match="GrowablePlain has no attribute 'confg', and neither has its host, Plain"):
        net.confg  # noqa: B018
    assert not hasattr(net, "__len__")


def test_the_signature_of_forward_is_the_hosts_on_class_and_instance():
    net, narrow = grown(), esper.Growable(Narrow(), ["body"], X)
    for model, host in ((net, net.host), (narrow, narrow.host)):
        assert inspect.signature(type(model).forward) == inspect.signature(type(host).forward)
        assert inspect.signature(model.forward) == inspect.signature(host.forward)
    assert type(net).__name__ == "GrowablePlain"
    assert type(net) is type(grown())
    assert isinstance(net, esper.Growable)
    assert torch.equal(net(X, scale=2.0), net.forward(X, None, scale=2.0))
    assert list(inspect.signature(esper.Growable).parameters)[:3] == ["model", "slots", "example"]


class Untold:
    """A forward that is not written in Python, as far as anybody can tell."""

    __signature__ = "none"

    def __get__(self, host: Plain | None, owner: type) -> object:
        return self if host is None else lambda x: host.head(host.body(x))

    def __call__(self, host: Plain, x: Tensor) -> Tensor:
        return host.head(host.body(x))


def test_a_host_that_tells_no_signature_takes_what_is_given():
    class Odd(Plain):
        forward = Untold()

    net = esper.Growable(Odd(), ["body"], X)
    assert list(inspect.signature(net.forward).parameters) == ["args", "kwargs"]
    assert torch.equal(net(X), net.host.head(net.host.body(X)))


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "torch.save"])
def test_copies_are_whole_and_of_the_same_class(copied):
    net = grown()
    if copied == "deepcopy":
        other = copy.deepcopy(net)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(net))
    else:
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert type(other) is type(net)
    assert other.host is not net.host
    assert_equal([other(X)], [net(X).detach()], tolerance=0.0)
    other.prune("body")
    assert net.report("body").stage is Stage.HOLDING
    assert other.report("body").stage is Stage.PRUNED
    assert not torch.equal(other(X), net(X)), "each has hooks of its own"


def test_a_hosts_own_way_to_copy_itself_is_not_taken_for_the_models():
    net = esper.Growable(Host(), ["body"], X)
    assert type(copy.deepcopy(net)) is type(net)


def test_a_class_of_ones_own_stays_in_the_family():
    class Mine(esper.Growable):
        """A Growable with a word of its own."""

        def forward(self, *args: Tensor, **kwargs: object) -> Tensor:
            return super().forward(*args, **kwargs) + 1.0

    net = Mine(Plain(), ["body"], X)
    assert (type(net).__name__, isinstance(net, Mine)) == ("MinePlain", True)
    assert torch.equal(net(X), net.host(X) + 1.0)
    assert type(type(net)(Narrow(), ["body"], X)).__name__ == "MineNarrow"


def test_what_is_shown_are_slots_stages_and_parameters():
    assert repr(esper.Growable(Plain(), {"middle": "body"}, X)).splitlines() == [
        "GrowablePlain(",
        "  host: Plain, 63 parameters",
        "  slot middle at body, vector of width 6: DORMANT",
        ")",
    ]
    size = grown().report("body").parameters
    assert f"  slot body, vector of width 6: HOLDING lora8, {size} parameters, alpha 1.00\n" in repr(grown())
    assert "slot body" in repr(nn.Sequential(grown()))


def test_the_growable_is_found_in_what_it_was_wrapped_in():
    net = grown()
    assert growable_in(net) is net
    assert growable_in(nn.Sequential(nn.Linear(2, 2), net)) is net
    assert growable_in(torch.compile(net)) is net
    assert growable_in(nn.ModuleDict({"average": esper.AveragedModel(net), "net": net})) is net
    with pytest.raises(ConfigError, match="found str; wrap the model first"):
        growable_in("net")
    with pytest.raises(ConfigError, match="Linear neither is nor holds one"):
        growable_in(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="Sequential holds 2 of them: 0, 1; expected one"):
        growable_in(nn.Sequential(net, grown()))
