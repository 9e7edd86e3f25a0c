"""Batch norms made anew before a measurement: from what, for which of them, and nothing else is touched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.kasmina.norms import HARVEST_SAMPLES, REFERENCE_SAMPLES, recalibrated, reference_batches, tracked_norms
from esper.leyline.errors import ConfigError
from esper.leyline.stages import Stage
from tests.kasmina.networks import ResidualNet, frozen_norms
from tests.tolaria.small import bits


def images(count: int = 48, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2.0 + 1.0


def statistics(model: nn.Module) -> Any:
    return bits([buffer for norm in tracked_norms(model) for buffer in norm.buffers()])


def settled(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs on x when every batch norm normalises by what it sees of x: the network whose statistics have settled."""
    norms = tracked_norms(model)
    model.eval()
    for norm in norms:
        norm.training = True
    saved = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    with torch.no_grad():
        output: Tensor = model(x)
        for buffer, value in saved:
            buffer.copy_(value)
    return output


class Affine(nn.Module):
    """A single norm, so that its statistics are those of the input."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@given(cuts=st.lists(st.integers(2, 20), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_statistics_are_the_mean_over_batches_weighted_by_their_samples(cuts: list[int], seed: int) -> None:
    x = torch.randn(sum(cuts), 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 3.0 - 1.0
    model, parts = Affine(nn.BatchNorm2d(3)), x.split(cuts)
    with recalibrated(model, tracked_norms(model), parts):
        mean, variance = model.norm.running_mean.clone(), model.norm.running_var.clone()
    weights = torch.tensor(cuts) / sum(cuts)
    assert torch.allclose(mean, x.mean((0, 2, 3)), atol=1e-5)
    by_hand = sum(w * part.var((0, 2, 3)) for w, part in zip(weights, parts, strict=True))
    assert torch.allclose(variance, by_hand, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_whatever_the_statistics_were_the_outputs_are_those_of_the_settled_network(momentum: float | None) -> None:
    model, x = ResidualNet(), images()
    for norm in tracked_norms(model):
        norm.momentum = momentum
        norm.running_mean.fill_(torch.nan)  # type: ignore[union-attr]
        norm.running_var.fill_(1e6)  # type: ignore[union-attr]
    with recalibrated(model, tracked_norms(model), [x]), torch.no_grad():
        found = model.eval()(x)
    # The variance that a batch norm keeps is the unbiased one, n / (n - 1) times what it normalises by.
    assert torch.allclose(found, settled(model, x), rtol=1e-2, atol=1e-2)


def test_everything_is_put_back_whatever_happens_inside() -> None:
    model, x = ResidualNet(), images()
    model.layer1.bn1.eval()
    modes, before = [m.training for m in model.modules()], statistics(model)
    momenta, stream = [norm.momentum for norm in tracked_norms(model)], torch.get_rng_state()

    def same() -> bool:
        hooks = [len(norm._forward_pre_hooks) for norm in tracked_norms(model)]
        now = [norm.momentum for norm in tracked_norms(model)]
        return statistics(model) == before and [m.training for m in model.modules()] == modes and now == momenta and not any(hooks)

    with recalibrated(model, tracked_norms(model), [x]):
        assert statistics(model) != before
        assert [m.training for m in model.modules()] == modes
    assert same()
    with pytest.raises(ZeroDivisionError), recalibrated(model, tracked_norms(model), [x]):
        raise ZeroDivisionError
    assert same()
    with pytest.raises(ConfigError, match="does not run on a batch"), recalibrated(model, tracked_norms(model), [x, images()[:, :2]]):
        pytest.fail("the second batch does not fit")
    assert same()
    assert torch.equal(torch.get_rng_state(), stream)


def test_a_norm_that_is_not_reached_keeps_what_it_has_and_one_that_is_reached_twice_takes_both() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.unused = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(x) + self.twice(x + 4.0) + (self.unused(x) if self.training else 0.0)

    model, x = Odd(), torch.randn(30, 2)
    model(x)
    unused = bits(list(model.unused.buffers()))
    with recalibrated(model, tracked_norms(model), [x]):
        assert torch.allclose(model.twice.running_mean, x.mean(0) + 2.0, atol=1e-5)
        assert bits(list(model.unused.buffers())) == unused


def test_dropout_is_off_and_instance_norms_with_statistics_are_made_anew_too() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.InstanceNorm2d(3, track_running_stats=True))
    x = images()
    with recalibrated(model, tracked_norms(model), x.split(16)):
        assert torch.allclose(model[1].running_mean, x.mean((0, 2, 3)), atol=1e-5)
    without = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.LayerNorm(8))
    assert tracked_norms(without) == []


# In a growing model


def growable(net: nn.Module | None = None) -> esper.Growable:
    torch.manual_seed(0)
    gates = esper.GateConfig(strict=False, min_training_epochs=0)
    return esper.Growable(net or ResidualNet(), ["layer1", "layer2"], images(2), gates=gates)


def trained(model: esper.Growable, steps: int = 3, freeze: tuple[str, ...] = ()) -> optim.Optimizer:
    """A few steps, with some norms kept in eval mode as fine-tuning does."""
    optimizer = optim.SGD(model.parameter_groups(), lr=0.05)
    model.follow(optimizer)
    for step in range(steps):
        model.train()
        for name in freeze:
            model.host.get_submodule(name).eval()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images(16, step)), torch.arange(16) % 5).backward()
        optimizer.step()
    return optimizer


def test_norms_that_stay_in_eval_mode_while_the_host_trains_are_left_alone_even_after_a_validation_of_ones_own() -> None:
    model = growable()
    assert len(model.learning_norms()) == 5
    trained(model, freeze=("stem.1", "layer2.bn2"))
    model.eval()  # what a user's own validation leaves behind
    before = {name: bits(list(model.host.get_submodule(name).buffers())) for name in ("stem.1", "layer2.bn2", "layer1.bn1")}
    assert len(model.learning_norms()) == 3
    with model.recalibrated([images()]):
        now = {name: bits(list(model.host.get_submodule(name).buffers())) for name in before}
        assert [now[name] == before[name] for name in before] == [True, True, False]
    assert growable(frozen_norms()).learning_norms() == [], "before the first step, a model in training mode tells by its modes"


def fossilized(model: esper.Growable, slot: str = "layer1") -> esper.Growable:
    """The model with a kept seed that makes a difference."""
    model.germinate(slot, "conv_light")
    model.tick()
    trained(model)
    model.advance(slot)
    while model.report(slot).stage is not Stage.HOLDING:
        trained(model, 1)
        model.tick()
    trained(model, 1)
    model.record(slot, contribution=1.0)
    model.fossilize(slot)
    with torch.no_grad():
        for parameter in model.slots[slot].parameters():
            parameter.add_(0.3)  # weights jump, and the running statistics know nothing of it
    return model


@pytest.mark.parametrize("as_pairs", [True, False])
def test_a_harvested_network_has_settled_statistics_and_the_model_keeps_its_own(as_pairs: bool) -> None:
    model, x = fossilized(growable()), images(64)
    loader = [(part, None) for part in x.split(16)] if as_pairs else list(x.split(16))
    before = statistics(model)
    plain = model.harvest(recalibrate=loader).eval()
    lagging = model.harvest().eval()
    assert statistics(model) == before
    expected = settled(model.harvest(), x)
    with torch.no_grad():
        found, late = plain(x), lagging(x)
    assert (found - expected).abs().max() < 0.1 * (late - expected).abs().max()
    state = dict(plain.state_dict())
    with model.recalibrated(list(x.split(16))):
        assert bits(dict(model.harvest().state_dict())) == bits(state), "the same passes give the same bits"
    model.reference = loader
    assert bits(dict(model.harvest().state_dict())) == bits(state), "a Gardener's loader is the default"


def test_statistics_are_those_of_what_is_harvested_not_of_the_model_with_its_live_seeds() -> None:
    model, x = fossilized(growable()), images(64)
    model.germinate("layer2", "conv_light", tempo=3)
    model.tick()
    trained(model)
    model.advance("layer2")
    with torch.no_grad():
        model.slots["layer2"].alpha.fill_(0.5)
        for parameter in model.slots["layer2"].parameters():
            parameter.add_(0.5)
    dropped = model.harvest(recalibrate=[x])
    with model.without("layer2"), model.recalibrated([x]):
        assert bits(dict(dropped.state_dict())) == bits(dict(model.harvest().state_dict()))
    kept = model.harvest("keep", recalibrate=[x])
    with torch.no_grad():
        assert not torch.allclose(kept.eval()(x), dropped.eval()(x))


# Loaders


def test_a_harvest_is_made_from_more_samples_than_a_look() -> None:
    read = []

    class Loader:
        def __iter__(self) -> Iterator[Tensor]:
            for number in range(1000):
                read.append(number)
                yield images(64, number)

    model = growable()
    trained(model)
    model.harvest(recalibrate=Loader())
    assert len(read) == HARVEST_SAMPLES // 64
    assert len(model.reference_inputs(Loader())) == REFERENCE_SAMPLES // 64


def test_as_many_batches_are_taken_as_it_needs_and_moved_to_the_model() -> None:
    read = []

    class Loader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for number in range(1000):
                read.append(number)
                yield images(64, number), torch.zeros(64)

    batches = reference_batches(Loader(), torch.device("meta"), REFERENCE_SAMPLES)
    assert len(read) == len(batches) == REFERENCE_SAMPLES // 64
    assert {batch.device.type for batch in batches} == {"meta"}  # type: ignore[union-attr]


def test_keyword_arguments_and_a_last_batch_of_one_are_understood() -> None:
    batches = reference_batches([({"x": images(3)}, None), ({"x": images(1)}, None)], torch.device("cpu"), REFERENCE_SAMPLES)
    assert len(batches) == 1
    assert isinstance(batches[0], dict)
    assert len(reference_batches([images(1)], torch.device("cpu"), REFERENCE_SAMPLES)) == 1, "there is nothing else"


@pytest.mark.parametrize("own", [True, False])
def test_reading_a_loader_draws_no_random_number(own: bool) -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return (super().__getitem__(index)[0] + random.random() + np.random.rand() + torch.rand(()),)

    generator = torch.Generator().manual_seed(3) if own else None
    loader = DataLoader(Noisy(images(64)), batch_size=16, shuffle=True, generator=generator)
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), generator and generator.get_state()]
    reference_batches(loader, torch.device("cpu"), REFERENCE_SAMPLES)
    now = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), generator and generator.get_state()]
    assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(states, now, strict=True))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ((x for x in [images(2)]), "recalibrate is read anew before each measurement, and a generator can be read once"),
        (iter([images(2)]), "a list_iterator can be read once"),
        (images(2), "recalibrate is a loader of training batches, such as a DataLoader or a list, found Tensor"),
        (3, "found int"),
        ([], "recalibrate gave no batch"),
        (["a"], "found a batch of type str"),
    ],
)
def test_what_is_no_loader_gets_one_sentence(loader: Any, message: str) -> None:
    model = growable()
    with pytest.raises(ConfigError, match=message):
        model.harvest(recalibrate=loader)


def test_a_network_without_batch_norms_does_not_look_at_the_loader() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    model = esper.Growable(net, ["1"], images(2))
    plain = model.harvest(recalibrate=[])
    assert bits(dict(plain.state_dict())) == bits(dict(net.state_dict()))
