"""Stacking: many modules of one structure as one compute what each computes alone, or it is said why they cannot."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations

from esper.kasmina.blueprints import SlotShape, build, names
from esper.kasmina.hosts import ConvHost, GPTHost
from esper.kasmina.norms import tracked_norms
from esper.kasmina.stacking import rules
from esper.kasmina.stacking.check import check_stackable
from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.rows import Rows, stacked
from esper.kasmina.stacking.rules import RULES, stacking_rule
from esper.kasmina.stacking.stacked import StackedModule, Streams
from esper.leyline.reports import Topology
from tests.kasmina import networks

SAMPLES = 4
CPU = torch.device("cpu")
few = settings(max_examples=6)
sizes = st.integers(1, 4)


def moved(module: nn.Module, by: int) -> nn.Module:
    """A copy in double precision, with weights of its own."""
    other = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(by)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.3)
    return other


def outcome(module: nn.Module, x: Tensor, values: list[Tensor]) -> list[Tensor]:
    """What the module gives, and the gradients of a loss in which every feature weighs differently."""
    out = module(x)
    loss = (out * torch.linspace(-1, 1, out[0].numel(), dtype=out.dtype).view(out.shape[1:])).sum()
    into = [x, *values] if x.requires_grad else values
    return [out, *torch.autograd.grad(loss, into, allow_unused=True, materialize_grads=True)]


def check_agreement(module: nn.Module, *shape: int, hosts: int = 3, tokens: int = 0, training: bool = True, **settings: Any) -> None:
    """Outputs, gradients and buffers of some hosts with weights and inputs of their own, together and one by one, twice.

    shape: of one sample. tokens: how many there are to draw inputs from; 0 for numbers. settings: of StackedModule.
    """
    modules = [moved(module, host).train(training) for host in range(hosts)]
    together = StackedModule(modules[0], **settings)
    rows = stacked([copy.deepcopy(each) for each in modules])
    together.module.train(training)
    with torch.random.fork_rng(devices=[]):
        streams, own = Streams(range(hosts), CPU), Streams(range(hosts), CPU)
        for batch in range(2):
            generator = torch.Generator().manual_seed(batch)
            if tokens:
                x = torch.randint(tokens, (SAMPLES, hosts, *shape), generator=generator)
            else:
                x = torch.randn(SAMPLES, hosts, *shape, generator=generator, dtype=torch.float64).requires_grad_()
            values = rows.values()
            together.bind(values, hosts, streams, range(hosts))
            found = outcome(together.module, x.flatten(0, 1), [values[name] for name in rows.names])
            alone = []
            for host, each in enumerate(modules):
                with own.of(host):
                    alone.append(outcome(each, x[:, host].contiguous(), [p for p in each.parameters() if p.requires_grad]))
            by_row = 1 if tokens else 2  # the output, and the gradient of the input
            expected = [torch.stack(parts, 1).flatten(0, 1) for parts in zip(*(each[:by_row] for each in alone), strict=True)]
            expected += [torch.stack(parts) for parts in zip(*(each[by_row:] for each in alone), strict=True)]
            for name, mine, theirs in zip((*("output", "input")[:by_row], *rows.names), found, expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9, msg=f"{name} of batch {batch} differs")
    for name, value in rows.fixed.items():
        tensors = [{**dict(each.named_buffers()), **dict(each.named_parameters())}[name] for each in modules]
        torch.testing.assert_close(value, torch.stack(tensors), msg=f"{name} differs")


# Layers with a rule


@few
@given(st.booleans(), sizes, sizes, st.lists(sizes, max_size=2), st.integers(1, 4))
def test_linear_layers(bias: bool, inputs: int, outputs: int, between: list[int], hosts: int) -> None:
    check_agreement(nn.Linear(inputs, outputs, bias=bias), *between, inputs, hosts=hosts)


@settings(max_examples=12)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    dimensions, groups, kernel = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3]))
    kinds: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    mode = data.draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    stride, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    padding = data.draw(st.sampled_from([0, 1, "same"] if stride == 1 else [0, 1]))
    layer = kinds[dimensions - 1](
        groups * data.draw(sizes),
        groups * data.draw(sizes),
        kernel,
        stride=stride,
        dilation=dilation,
        groups=groups,
        padding=padding,
        padding_mode=mode,
        bias=data.draw(st.booleans()),
    )
    check_agreement(layer, layer.in_channels, *[6] * dimensions, hosts=data.draw(st.integers(1, 3)))


@settings(max_examples=12)
@given(st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.1, 0.5, 1.0]))
def test_batch_norms(trailing: int, affine: bool, tracks: bool, training: bool, momentum: float) -> None:
    kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[trailing]
    norm = kind(3, affine=affine, track_running_stats=tracks, momentum=momentum)
    check_agreement(nn.Sequential(nn.Linear(5, 5), norm) if trailing else norm, 3, *[5] * trailing, training=training)


@few
@given(sizes, sizes, st.booleans(), st.integers(0, 2))
def test_group_norms(groups: int, each: int, affine: bool, trailing: int) -> None:
    check_agreement(nn.GroupNorm(groups, groups * each, affine=affine), groups * each, *[3] * (trailing or 1))


@few
@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.lists(sizes, max_size=2), st.booleans(), st.booleans())
def test_layer_norms(normalised: list[int], before: list[int], affine: bool, bias: bool) -> None:
    for norm in (nn.LayerNorm(normalised, elementwise_affine=affine, bias=bias), nn.RMSNorm(normalised, elementwise_affine=affine)):
        check_agreement(nn.Sequential(nn.Linear(normalised[-1], normalised[-1]), norm), *before, *normalised)


@few
@given(sizes, sizes, st.lists(sizes, max_size=2))
def test_embeddings(known: int, width: int, shape: list[int]) -> None:
    check_agreement(nn.Embedding(known, width), *shape, tokens=known)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_every_host_drops_what_it_would_drop_alone(kind: Callable[[float], nn.Module]) -> None:
    check_agreement(nn.Sequential(nn.Conv2d(2, 3, 3), kind(0.4), nn.Conv2d(3, 2, 1), nn.Dropout(0.2)), 2, 5, 5)


SLOTS = {
    Topology.MAP2D: (SlotShape(Topology.MAP2D, 6), (6, 4, 4)),
    Topology.MAP1D: (SlotShape(Topology.MAP1D, 6), (6, 5)),
    Topology.TOKENS: (SlotShape(Topology.TOKENS, 8), (5, 8)),
    Topology.VECTOR: (SlotShape(Topology.VECTOR, 8), (8,)),
}


@pytest.mark.parametrize(("topology", "blueprint"), [(topology, name) for topology in Topology for name in names(topology)])
def test_seeds_of_every_blueprint(topology: Topology, blueprint: str) -> None:
    shape, features = SLOTS[topology]
    for checkpoint in (False, True):
        check_agreement(build(blueprint, shape, checkpoint=checkpoint), *features, hosts=2)


def test_attention_that_may_look_ahead() -> None:
    check_agreement(build("attention", SlotShape(Topology.TOKENS, 8, causal=False)), 5, 8)


def test_the_hosts_of_the_tasks() -> None:
    check_agreement(ConvHost(1, 3, (2, 4), depth=2), 1, 8, 8)
    for dropout, checkpoint in ((0.0, False), (0.3, False), (0.0, True)):
        host = GPTHost(7, block=6, width=8, heads=2, layers=2, dropout=dropout, checkpoint=checkpoint)
        check_agreement(host, 5, tokens=7, hosts=2)
        check_agreement(host, 5, tokens=7, hosts=2, training=False)
    check_agreement(GPTHost(7, block=6, width=8, heads=2, layers=2, parts=("mlp", "attention")), 5, tokens=7, hosts=2)


# Layers without one, through vmap


class Scale(nn.Module):
    """A user's own layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.linspace(0, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.ConvTranspose2d(3, 2, 2, stride=2), (3, 4, 4)),
        (nn.Sequential(nn.Conv2d(2, 3, 1), nn.PReLU(3)), (2, 4, 4)),
        (nn.Bilinear(4, 4, 3), None),
        (networks.EncoderBlock(8), (5, 8)),
        (nn.Sequential(nn.Linear(4, 5), Scale(5)), (3, 4)),
        (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU()), (4,)),
        (nn.Sequential(nn.Conv2d(2, 4, 1), nn.InstanceNorm2d(4, affine=True)), (2, 3, 3)),
        (networks.SqueezeNet(), (1, 6, 6)),
        (networks.Mixer(), (3, 8, 8)),
        (networks.UNet(), (2, 8, 8)),
        (networks.ResidualNet(), (3, 4, 4)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_without_a_rule(module: nn.Module, shape: tuple[int, ...] | None, training: bool) -> None:
    if shape is None:
        module, shape = Twice(module), (4,)
    check_agreement(module, *shape, training=training)
    check_stackable(module, torch.randn(6, *shape))


class Twice(nn.Module):
    """Gives a layer its input twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, torch.tanh(x))
        return out


class Tied(nn.Module):
    """A head that is another layer's weight, and a weight that is read by hand as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.mix(self.embedding(tokens))))
        return out


def test_tied_weights() -> None:
    check_agreement(Tied(), 5, tokens=7)
    check_agreement(networks.TiedNet(), 5, tokens=7)


class Patches(nn.Module):
    """A vision transformer in small: a token and positions of its own, beside blocks that carry slots."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.position = nn.Parameter(torch.zeros(1, 5, 8))
        self.scale = nn.Parameter(torch.ones(5, 8))
        self.register_buffer("mask", torch.linspace(0, 1, 8))
        self.embed = nn.Linear(3, 8)
        self.block = networks.MixerBlock(5, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.cls.expand(len(x), -1, -1), self.embed(x)), 1) + self.position
        out: Tensor = self.head(self.block(x * self.scale + self.mask)[:, 0])
        return out


def test_parameters_of_a_container_with_slots_inside() -> None:
    check_agreement(Patches(), 4, 3, kept=["block"])
    check_stackable(Patches(), torch.randn(6, 4, 3), ["block"])
    check_agreement(Patches(), 4, 3)  # without a slot inside, vmap does for the whole


class Scaled(nn.Module):
    """A residual block with a scale of its own and a batch norm inside."""

    def __init__(self, *scale: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(scale))
        self.body = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.body(x)


def test_batch_norms_stay_reachable_beside_parameters_of_a_container() -> None:
    check_agreement(Scaled(3, 1, 1), 3, 4, 4)
    host = StackedModule(Scaled(3, 1, 1))
    host.bind(stacked([Scaled(3, 1, 1), Scaled(3, 1, 1)]).values(), 2)
    (norm,) = tracked_norms(host.module)
    assert norm.running_mean is not None
    assert norm.running_mean.shape == (2, 3)
    with pytest.raises(Unstackable):
        check_stackable(Scaled(4), torch.randn(6, 3, 4, 4))  # along the columns: nothing says so


class Positions(nn.Module):
    """Positions by an embedding that is called with what is the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.position = nn.Embedding(24, 4)
        self.head = nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device)))
        return out


@pytest.mark.parametrize("length", [5, SAMPLES, SAMPLES * 3])
def test_positions_are_no_samples(length: int) -> None:
    """However many there are: as many as samples of a host, or of all hosts together."""
    checked = check_stackable(Positions(), torch.randint(7, (6, length)))
    check_agreement(Positions(), length, tokens=7, batchless=checked.batchless)


def test_a_user_s_own_rule_takes_the_place_of_vmap() -> None:
    hosts = []

    @stacking_rule(Scale)
    def scale(layer: Scale, x: Tensor) -> Tensor:
        hosts.append(x.shape[1])
        return x * layer.weight + layer.shift  # (S, N, d) by (N, d)

    try:
        check_agreement(nn.Sequential(nn.Linear(4, 5), Scale(5)), 4)
    finally:
        del RULES[Scale]
    assert hosts == [3, 3]


def test_a_rule_is_not_for_those_who_compute_otherwise() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    class Renamed(nn.Linear):
        pass

    check_agreement(nn.Sequential(Doubled(3, 3), Renamed(3, 2)), 3)


# What cannot be stacked


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class Choosing(nn.Module):
    """Looks at the values, which no stacked layer can."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if float(x.detach().sum()) > 0 else x


class Counting(nn.Module):
    """A container whose own buffer follows the training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().mean()
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Mixing())), "module '1.1' gives other outputs .* mix the samples"),
        (nn.Sequential(nn.Linear(4, 4), Noisy()), "module '1' gives other outputs for two hosts"),
        (nn.Sequential(nn.Linear(4, 4), Functional()), "module '1' gives other outputs for two hosts"),
        (nn.Sequential(nn.Linear(4, 4), Mean()), "its output has no row for each sample"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), r"module '1' \(BatchNorm1d\): .*momentum=None"),
        (nn.Sequential(nn.Linear(4, 4), Choosing()), r"module '1' \(Choosing\): it does not run for several hosts at once"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float64)), "several types"),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)), r"module .1. \(InstanceNorm1d\): its"),
        (nn.Identity(), "its output does not depend on its parameters"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_cannot_be_stacked_is_told_with_its_place_and_reason(module: nn.Module, reason: str) -> None:
    module.train()
    with pytest.raises(Unstackable, match=reason) as caught:
        check_stackable(module, torch.randn(6, 4))
    assert "\n" not in str(caught.value)


def test_a_recurrent_layer_is_refused_by_its_place() -> None:
    with pytest.raises(Unstackable, match=r"module 'lstm' \(LSTM\): "):
        check_stackable(networks.LSTMNet(), torch.randn(6, 5, 4))


def test_an_embedding_with_more_than_a_table_is_refused() -> None:
    with pytest.raises(Unstackable, match=r"module '0' \(Embedding\): .*padding_idx"):
        check_stackable(nn.Sequential(nn.Embedding(5, 4, padding_idx=0)), torch.randint(5, (6, 3)))


def test_a_buffer_that_follows_the_training_cannot_be_a_container_s() -> None:
    with pytest.raises(Unstackable, match="the buffer 'seen' of a module with others inside is not a constant"):
        check_stackable(Counting(), torch.randn(6, 4), ["layer"])


def test_a_check_leaves_the_module_and_the_random_stream_alone() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5))
    before, stream = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    checked = check_stackable(module, torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(0)))
    assert not checked.unused
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_parameters_without_a_gradient_are_found() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    assert check_stackable(Unused(), torch.randn(6, 3)).unused == {"left.weight", "left.bias"}


# Storage


def layers(count: int = 3) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)) for _ in range(count)]


def stepped(module: nn.Module, kind: type[optim.Optimizer] = optim.SGD) -> optim.Optimizer:
    """An optimiser of the module that has taken a step."""
    optimizer = optim.SGD(module.parameters(), lr=0.1, momentum=0.9) if kind is optim.SGD else optim.AdamW(module.parameters())
    step(module, optimizer)
    return optimizer


def step(module: nn.Module, optimizer: optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.linspace(-1, 1, 8).view(4, 2)).pow(2).sum().backward()
    optimizer.step()


def contents(module: nn.Module, optimizer: optim.Optimizer) -> list[Tensor]:
    kept = [value for p in module.parameters() for value in optimizer.state[p].values()]
    return [value.detach().clone() for value in (*module.state_dict().values(), *kept)]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_module_in_a_row_is_a_view_of_it_and_goes_on_learning(kind: type[optim.Optimizer]) -> None:
    module, alike, like = *[copy.deepcopy(layers()[0]) for _ in range(2)], layers()[1]
    optimizers = [stepped(each, kind) for each in (module, alike)]
    rows = Rows(like, 3, optimizers[0])
    rows.put(1, module, optimizers[0])
    assert same(contents(module, optimizers[0]), contents(alike, optimizers[1]))
    for each, optimizer in zip((module, alike), optimizers, strict=True):
        step(each, optimizer)
    assert same(contents(module, optimizers[0]), contents(alike, optimizers[1]))
    assert torch.equal(rows.learned["0.weight"][1], module.get_parameter("0.weight"))
    for each in rows.learned.values():
        each[1].zero_()
    assert not any(p.any() for p in module.parameters())


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_module_that_is_taken_out_has_tensors_of_its_own(kind: type[optim.Optimizer]) -> None:
    module, like = layers(2)
    optimizer = stepped(module, kind)
    rows = Rows(like, 2, optimizer)
    empty = rows.flat.clone()
    rows.put(0, module, optimizer)
    before = contents(module, optimizer)
    rows.take_out(0)
    assert torch.equal(rows.flat, empty)
    assert not any(state.any() for state in rows.states.values())
    for each in (rows.flat, *rows.states.values(), *rows.fixed.values()):
        each.fill_(7)
    assert same(contents(module, optimizer), before)
    step(module, optimizer)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_tensors_put_in_the_place_of_views_are_taken_in(kind: type[optim.Optimizer]) -> None:
    first, second, like = layers()
    optimizers = [stepped(each, kind) for each in (first, second)]
    rows = Rows(like, 2, optimizers[0])
    for row, each in enumerate((first, second)):
        rows.put(row, each, optimizers[row])
    saved = copy.deepcopy((second.state_dict(), optimizers[1].state_dict()))
    step(second, optimizers[1])
    for p in second.parameters():
        p.data = torch.zeros_like(p)
    second.load_state_dict(saved[0])
    optimizers[1].load_state_dict(saved[1])
    before = [contents(each, optimizer) for each, optimizer in zip((first, second), optimizers, strict=True)]
    rows.adopt()
    assert [same(contents(each, o), b) for each, o, b in zip((first, second), optimizers, before, strict=True)] == [True, True]
    rows.flat.zero_()
    for state in rows.states.values():
        state.zero_()
    assert not any(p.any() for p in second.parameters())
    assert not any(optimizers[1].state[p][key].any() for p in second.parameters() for key in rows.kept)


def test_tensors_without_elements_are_no_trouble() -> None:
    modules = layers(2)
    for module in modules:
        module.register_buffer("nothing", torch.zeros(0))
        module.register_parameter("none", nn.Parameter(torch.zeros(0, 3)))
    optimizers = [stepped(module) for module in modules]
    rows = Rows(modules[0], 2, optimizers[0])
    for row, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
        rows.put(row, module, optimizer)
    rows.adopt()
    assert check_stackable(modules[0], torch.randn(6, 2)).unused == {"none"}


def test_a_module_of_another_structure_is_refused() -> None:
    rows = Rows(nn.Linear(2, 3), 1)
    with pytest.raises(Unstackable, match="its parameters differ"):
        rows.put(0, nn.Linear(3, 2))
    assert rows.modules == [None]


def test_a_row_that_is_not_finite_stays_alone_and_leaves_nothing_behind() -> None:
    hosts = 3
    modules = [moved(ConvHost(1, 3, (2, 4)), host) for host in range(hosts)]
    with torch.no_grad():
        next(modules[1].parameters()).fill_(float("nan"))
    rows, together = stacked(modules), StackedModule(modules[0])
    x = torch.randn(SAMPLES, hosts, 1, 4, 4, dtype=torch.float64)
    values = rows.values()
    together.bind(values, hosts)
    out, *gradients = outcome(together.module, x.flatten(0, 1), [values[name] for name in rows.names])
    assert [bool(part.isfinite().all()) for part in out.unflatten(0, (-1, hosts)).unbind(1)] == [True, False, True]
    for gradient in gradients:
        assert gradient[[0, 2]].isfinite().all()
    rows.forget(1)
    assert rows.flat.isfinite().all()
    assert all(each.isfinite().all() for each in rows.fixed.values() if each.is_floating_point())


def test_without_a_compiler_torch_computes_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(partial: Tensor, dtype: torch.dtype) -> Tensor:
        raise RuntimeError("Failed to find C compiler\nset CC")

    device = torch.device("cpu")  # of which torch is told that it is a GPU
    monkeypatch.setattr(rules.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "esper.kasmina.stacking.kernels.sums", types.SimpleNamespace(summed=refuse))
    rules._compiles.cache_clear()
    with pytest.warns(UserWarning, match=r"cannot be compiled here \(RuntimeError: Failed to find C compiler\); torch's own are used"):
        assert not rules._compiles(device)
    assert not rules._compiles(device), "it is told once"
    rules._compiles.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not rules._compiles(device)
    rules._compiles.cache_clear()
