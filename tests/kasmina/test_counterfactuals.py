"""What the network would compute with other seeds: without some, with those on trial, or several such networks in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.leyline.actions import Style
from esper.leyline.errors import TransitionError, UnknownNameError
from esper.leyline.stages import Stage
from tests.kasmina.growing import grow, identical, measure, to_training, unlike_birth
from tests.kasmina.networks import plain_mlp
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen, leaves, run

everyone = pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)


def mixed(specimen: Specimen) -> Growable:
    """Seeds in different stages and styles, the first still in TRAINING, the last a fossil where there is a third."""
    net = unlike_birth(to_training(grow(specimen), specimen, [Style.LINEAR_ADD, Style.LINEAR_MULTIPLY, Style.GATED], alpha_target=1.0))
    measure(net, specimen)
    for slot in net.slot_ids[1:]:
        net.advance(slot)
    net.tick()
    for slot in net.slot_ids[2:]:
        while net.report(slot).stage is not Stage.HOLDING:
            net.tick()
        measure(net, specimen)
        net.record(slot, contribution=1.0)
        net.fossilize(slot)
    assert len({net.report(slot).stage for slot in net.slot_ids}) >= 2
    return net.eval()


def repeated(example: Any, times: int) -> Any:
    if isinstance(example, dict):
        return {name: repeated(value, times) for name, value in example.items()}
    return tuple(repeated(value, times) for value in example) if isinstance(example, tuple) else torch.cat([example] * times)


def outputs(net: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad():
        return leaves(run(net, example))


@pytest.mark.parametrize("specimen", [s for s in ZOO if s.batch_axis == 0], ids=lambda s: s.name)
def test_stacked_configurations_equal_separate_passes(specimen: Specimen) -> None:
    net = mixed(specimen)
    everything = frozenset(net.slot_ids)
    configurations = [frozenset[str](), everything, *(everything - {slot} for slot in net.slot_ids), *({slot} for slot in net.slot_ids)]
    sets = [frozenset(c) for c in configurations]
    example = specimen.example(9)
    batch = len(leaves(list(example.values()) if isinstance(example, dict) else example)[0])
    with net.stacked(sets, batch):
        stacked = outputs(net, repeated(example, len(sets)))
    for i, chosen in enumerate(sets):
        training = [slot for slot in chosen if net.report(slot).stage is Stage.TRAINING]
        with net.without(*(everything - chosen)), net.trial(*training):
            separate = outputs(net, example)
        for a, b in zip(stacked, separate, strict=True):
            torch.testing.assert_close(a[i * batch : (i + 1) * batch], b, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(stacked[0][:batch], stacked[0][batch : 2 * batch], atol=1e-4), "the seeds should make a difference"


@everyone
def test_without_its_seeds_the_network_is_the_bare_one(specimen: Specimen) -> None:
    net = mixed(specimen)
    model = specimen.model().eval()
    model.load_state_dict(net.host.state_dict())
    bare, full = outputs(model, specimen.example(9)), outputs(net, specimen.example(9))
    with net.bare():
        assert all(identical(a, b) for a, b in zip(bare, outputs(net, specimen.example(9)), strict=True))
    with net.without(*net.slot_ids):
        assert all(identical(a, b) for a, b in zip(bare, outputs(net, specimen.example(9)), strict=True))
    assert all(identical(a, b) for a, b in zip(full, outputs(net, specimen.example(9)), strict=True))
    assert not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(full, bare, strict=True))


@pytest.mark.parametrize("target", [0.25, 1.0])
def test_a_trial_shows_the_seed_at_its_target(target: float) -> None:
    specimen = BY_NAME["mlp"]
    net = unlike_birth(to_training(grow(specimen), specimen, alpha_target=target))
    slot, example, layers = list(net.slots.values())[1], specimen.example(9), plain_mlp()
    layers.load_state_dict(net.host.state_dict())
    features = layers[:3](example)
    assert slot.seed is not None
    with torch.no_grad():
        expected = layers[3:](features + target * (slot.seed(features) - features))
    with net.trial(slot.id):
        torch.testing.assert_close(outputs(net, example)[0], expected)


def test_counterfactuals_nest_and_are_undone_when_the_body_raises() -> None:
    specimen = BY_NAME["residual"]
    net, example = mixed(specimen), specimen.example(9)
    first, second, third = net.slot_ids
    full = outputs(net, example)[0]
    with net.without(second):
        less = outputs(net, example)[0]
    with net.trial(first):
        more = outputs(net, example)[0]
    ways: list[Callable[[], Any]] = [
        lambda: net.without(third),
        net.bare,
        lambda: net.trial(first),
        lambda: net.stacked([frozenset({first, second, third})], len(example)),
    ]

    def interrupted(way: Callable[[], Any]) -> None:
        with way():
            assert not torch.equal(outputs(net, example)[0], less)
            raise RuntimeError("stop")

    for way in ways:
        with net.without(second):
            with pytest.raises(RuntimeError, match="stop"):
                interrupted(way)
            assert torch.equal(outputs(net, example)[0], less)
        assert torch.equal(outputs(net, example)[0], full)
    with net.trial(first):
        with net.bare():
            pass
        assert torch.equal(outputs(net, example)[0], more)
    assert torch.equal(outputs(net, example)[0], full)


def test_a_counterfactual_that_makes_no_sense_is_refused_and_changes_nothing() -> None:
    specimen = BY_NAME["residual"]
    net, example = mixed(specimen), specimen.example(9)
    full = outputs(net, example)[0]
    attempts: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (UnknownNameError, "unknown slot 'layer3'; did you mean 'layer", lambda: net.without("stem", "layer3")),
        (UnknownNameError, "unknown slot 'layer3'", lambda: net.stacked([frozenset({"stem", "layer3"})], 3)),
        (UnknownNameError, "unknown slot 'layer3'", lambda: net.trial("stem", "layer3")),
        (TransitionError, "'layer2' is FOSSILIZED; a trial is for a seed in TRAINING", lambda: net.trial("stem", "layer2")),
    ]
    for error, words, attempt in attempts:
        with pytest.raises(error, match=words), attempt():
            pytest.fail("the body may not run")
        assert torch.equal(outputs(net, example)[0], full)
    net.prune("stem")
    with pytest.raises(TransitionError, match="'stem' is PRUNED; it has nothing to switch on"), net.stacked([frozenset({"stem"})], 3):
        pytest.fail("the body may not run")
    assert torch.equal(outputs(net, example)[0], full)


def test_a_seed_that_moves_on_inside_a_counterfactual_is_shown_as_it_is_afterwards() -> None:
    specimen = BY_NAME["residual"]
    net, example = mixed(specimen), specimen.example(9)
    with net.without("layer1"):
        expected = outputs(net, example)[0]
    with net.bare(), net.without("layer1"):
        net.prune("layer1")
    assert torch.equal(outputs(net, example)[0], expected)
