"""What the probe says of a host: how far one position of its input reaches, and how much of it lies before each slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.kasmina.attach import reach
from esper.kasmina.attach.survey import probe
from esper.kasmina.hosts import BlockParts, ConvHost, GPTHost
from tests.kasmina.zoo import ZOO, Specimen


def reaches(model: nn.Module, example: Any, *paths: str) -> list[int]:
    """The reach at these paths, or those of a host's own slots."""
    chosen = paths or tuple(model.slot_paths().values())  # type: ignore[operator]
    return [place.reach for place in probe(model, example, chosen, causal=True, topology={}).values()]


def capacities(model: nn.Module, example: Any, *paths: str) -> list[int]:
    """The capacity at these paths."""
    return [place.capacity for place in probe(model, example, paths, causal=True, topology={}).values()]


def images(size: int = 32, channels: int = 1) -> Tensor:
    return torch.zeros(2, channels, size, size)


class Named(nn.Module):
    """A convolution over `pixels`, which are given by name beside numbers that nobody looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, *, pixels: Tensor, weights: Tensor) -> Tensor:
        return self.head(self.convolution(pixels).relu().mean((2, 3)))


# Reach


@pytest.mark.parametrize(("kernel", "expected"), [(1, [1, 1, 1]), (3, [9, 25, 49]), (5, [25, 81, 169])])
def test_a_convolution_reaches_as_far_as_its_kernel_and_those_before_it(kernel: int, expected: list[int]) -> None:
    assert reaches(ConvHost(1, 10, (4, 4, 4), kernel=kernel, pools=[False] * 3), images()) == expected


def test_a_pool_halves_the_reach() -> None:
    # Of 16 pixels to a side the one at (8, 8) reaches rows 7 to 9, which a pool makes 3 and 4, and those reach 2 to 5.
    paths = ("blocks.0.features", "blocks.0", "blocks.1.features")
    assert reaches(ConvHost(1, 10, (4, 4)), images(16), *paths) == [9, 4, 16]


def test_the_features_of_a_host_that_sees_no_shapes_are_reached_by_one_pixel_whatever_its_weights() -> None:
    for seed in range(20):
        torch.manual_seed(seed)  # of so narrow hosts many are born with every ReLU of a layer closed
        assert reaches(ConvHost(3, 10, (1, 2, 4), kernel=1), images(8, 3)) == [1, 1, 1]
        assert reaches(ConvHost(3, 10, (1, 2, 4), kernel=3), images(32, 3))[0] == 9


def test_norms_that_have_learned_and_activations_with_an_upper_end_hide_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6(), nn.Conv2d(4, 4, 3, padding=1), nn.Hardtanh())
    assert isinstance(model[1], nn.BatchNorm2d)
    model[1].running_mean.fill_(1e4)  # type: ignore[union-attr]
    nn.init.zeros_(model[3].weight)  # type: ignore[arg-type]
    assert reaches(model, images(), "2", "4") == [9, 25]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(["mlp", "mlp"], [1, 1]), (["mlp", "attention"], [1, 8]), (["both", "mlp"], [8, 8])],
)
def test_causal_attention_reaches_the_later_half_and_an_mlp_one_token(parts: Sequence[BlockParts], expected: list[int]) -> None:
    host = GPTHost(11, block=16, width=16, heads=2, layers=2, parts=parts)
    assert reaches(host, torch.zeros(2, 16, dtype=torch.int64)) == expected


def test_a_convolution_along_a_sequence_reaches_as_many_of_its_places() -> None:
    model = nn.Sequential(nn.Conv1d(2, 6, 5, padding=2), nn.ReLU(), nn.Conv1d(6, 6, 3, padding=2, dilation=2), nn.ReLU())
    assert reaches(model, torch.randn(2, 2, 40), "1", "3") == [5, 9]


def test_a_layer_over_features_of_a_sequence_reaches_one_place_of_it() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    assert reaches(model, torch.randn(2, 5, 6), "1", "3") == [1, 1], "channels are told by the layer, not by what is longer"


def test_vectors_have_no_positions() -> None:
    assert reaches(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 6), "1") == [0]


def test_inputs_by_name_and_several_of_them_are_told_apart() -> None:
    assert reaches(Named(), {"pixels": images(8), "weights": torch.ones(2, 8, 8)}, "convolution") == [9]


def test_a_single_sample_is_enough_where_the_model_takes_two() -> None:
    assert reaches(Named(), {"pixels": images(8)[:1], "weights": torch.ones(1)}, "convolution") == [9]


def test_whatever_goes_wrong_only_leaves_the_reach_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moody(nn.Module):
        """Takes no other weights than its own."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 4, 3, padding=1)
            self.first = self.convolution.weight.detach().clone()

        def forward(self, x: Tensor) -> Tensor:
            assert torch.equal(self.convolution.weight, self.first)
            return self.convolution(x).mean((2, 3))

    assert reaches(Moody(), images(8), "convolution") == [0]
    monkeypatch.setattr(reach, "_stand_in", lambda *_: 1 / 0)
    assert reaches(ConvHost(1, 10, (4,)), images(8)) == [0]


def test_what_runs_in_no_other_precision_than_its_own_is_seen_in_that() -> None:
    class Single(nn.Module):
        """Takes and gives single precision alone."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            assert x.dtype is torch.float32
            return self.convolution(x)

    assert reaches(nn.Sequential(Single(), nn.ReLU()), images(8), "0") == [9]


def test_a_large_network_is_looked_at_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PRECISE", 10)
    assert reaches(ConvHost(1, 10, (4, 4, 4), pools=[False] * 3), images()) == [9, 25, 49]


def test_features_are_those_that_were_returned_whatever_is_done_to_them_later() -> None:
    class Adds(nn.Module):
        """Adds to the first layer's features, in place, what a second makes of them."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h += self.second(h)
            return h

    assert reaches(Adds(), images(8), "first", "second") == [1, 9]


@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_looking_leaves_every_network_and_the_random_stream_as_they_were(specimen: Specimen) -> None:
    model, example = specimen.model(), specimen.example()
    next(model.modules()).train()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    modes, hooks = [m.training for m in model.modules()], [len(m._forward_hooks) for m in model.modules()]
    owners, stream = {name: id(p) for name, p in model.named_parameters()}, torch.get_rng_state()
    places = probe(model, example, specimen.slots, causal=True, topology={})
    assert torch.equal(stream, torch.get_rng_state())
    assert owners == {name: id(p) for name, p in model.named_parameters()}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in values.items())
    assert modes == [m.training for m in model.modules()]
    assert hooks == [len(m._forward_hooks) for m in model.modules()]
    for place in places.values():
        positions = [size for axis, size in enumerate(place.example_shape) if axis not in (place.layout.batch, place.layout.channels)]
        assert (1 if positions else 0) <= place.reach <= torch.tensor(positions).prod() * bool(positions)


class Shared(nn.Module):
    """One module under two names, one weight in two modules, and one parameter under two names of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.alias = self.block
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((1,), 3.0))
        self.same = self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.alias(x))) * self.scale * self.same


def test_what_has_two_names_is_seen_and_keeps_its_values_under_both() -> None:
    model = Shared()
    owners = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    values = {name: value.clone() for name, value in model.state_dict().items()}
    assert reaches(model, images(), "block", "first", "second") == [9, 25, 49]
    assert {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()} == owners
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


# Capacity


def test_capacity_counts_the_layers_from_one_slot_to_the_next() -> None:
    host = ConvHost(1, 10, (4, 6))
    paths = ("blocks.0.features", "blocks.0", "blocks.1.features")
    # A convolution without bias and a norm; nothing in a pool; and the same again. The head lies behind the last slot.
    assert capacities(host, images(16), *paths) == [4 * 9 + 8, 0, 4 * 6 * 9 + 12]
    assert capacities(host, images(16), paths[2], paths[0]) == [4 * 6 * 9 + 12, 4 * 9 + 8], "by the forward pass, not as they are given"


def test_a_parameter_that_is_used_twice_counts_once() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(6, 8), shared, nn.ReLU(), shared, nn.Linear(8, 8), nn.Linear(8, 2))
    model[4].weight = shared.weight
    assert capacities(model, torch.randn(4, 6), "0", "4") == [56, 72 + 8]


def test_a_layer_that_is_read_and_not_called_counts_with_the_one_that_holds_it() -> None:
    class Attends(nn.Module):
        """Attention, whose last projection torch never calls as a module."""

        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    assert capacities(nn.Sequential(nn.Linear(6, 8), Attends(), nn.Linear(8, 2)), torch.randn(2, 5, 6), "1") == [56 + 4 * 72]


# On their way


def test_reports_tell_what_the_probe_found() -> None:
    model = Growable(ConvHost(1, 10, (4, 6)), ["blocks.0.features", "blocks.1.features"], images(16))
    assert [(each.reach, each.capacity) for each in model.reports()] == [(9, 44), (16, 228)]
