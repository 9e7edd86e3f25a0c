"""While no seed is blended in, a wrapped network computes and learns exactly, bit for bit, what the bare one does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.kasmina.blueprints import BLUEPRINTS as REGISTER
from esper.leyline.stages import Stage
from tests.kasmina.growing import BLUEPRINTS, OPEN, gradients, grow, hook_count, identical, to_training
from tests.kasmina.zoo import ZOO, Specimen, leaves, loss_of, run

STEPS = 3

everyone = pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)


def train(model: nn.Module, host: nn.Module, optimizer: optim.Optimizer, specimen: Specimen) -> list[dict[str, Tensor]]:
    """A few steps; for each the outputs, the host's gradients, parameters and buffers, and the state of the random stream."""
    records = []
    for step in range(STEPS):
        torch.manual_seed(step)
        batch = specimen.example(step)
        optimizer.zero_grad()
        output = run(model, batch)
        loss_of(output).backward()
        if isinstance(model, Growable):
            model.shadow_backward(lambda batch=batch: loss_of(run(model, batch)))  # type: ignore[misc]
        record = {f"output {i}": leaf.detach() for i, leaf in enumerate(leaves(output))}
        record |= {f"gradient of {name}": grad for name, grad in gradients(host).items()}
        optimizer.step()
        record |= {f"{name} afterwards": value.clone() for name, value in host.state_dict().items()}
        records.append({**record, "random": torch.get_rng_state()})
    return records


def train_bare(specimen: Specimen) -> list[dict[str, Tensor]]:
    model = specimen.model()
    return train(model, model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9), specimen)


def train_grown(net: Growable, specimen: Specimen) -> list[dict[str, Tensor]]:
    optimizer = optim.SGD(net.parameter_groups(), lr=0.05, momentum=0.9)
    net.follow(optimizer)
    return train(net, net.host, optimizer, specimen)


def differences(expected: list[dict[str, Tensor]], found: list[dict[str, Tensor]]) -> list[str]:
    """What is not bit-identical, in words."""
    named = [f"step {i}: names" for i, (a, b) in enumerate(zip(expected, found, strict=True)) if list(a) != list(b)]
    return named or [
        f"step {i}: {name}" for i, (a, b) in enumerate(zip(expected, found, strict=True)) for name in a if not identical(a[name], b[name])
    ]


@everyone
def test_empty_slots_change_no_bit_of_training(specimen: Specimen) -> None:
    assert differences(train_bare(specimen), train_grown(grow(specimen), specimen)) == []


@everyone
@pytest.mark.parametrize("isolation", ["ste", "shadow"])
def test_seeds_in_training_change_no_bit_of_the_host_and_learn(specimen: Specimen, isolation: Any) -> None:
    net = to_training(grow(specimen, isolation=isolation), specimen)
    before = copy.deepcopy(net.slots)
    found = train_grown(net, specimen)
    assert differences(train_bare(specimen), found) == []
    for slot, old in zip(net.slots.values(), before.values(), strict=True):
        assert slot.state.stage is Stage.TRAINING
        assert any(not torch.equal(a, b) for a, b in zip(slot.parameters(), old.parameters(), strict=True)), slot.id


def test_the_zoo_holds_every_built_in_blueprint() -> None:
    grown = {name for chosen in BLUEPRINTS.values() for name in chosen.values()}
    assert grown == {name for _, name in REGISTER}


@everyone
@pytest.mark.parametrize("with_gradients", [False, True], ids=["no_grad", "grad"])
def test_eval_mode_gives_the_bits_of_the_bare_model(specimen: Specimen, with_gradients: bool) -> None:
    bare = specimen.model().eval()
    dormant, training = grow(specimen).eval(), to_training(grow(specimen), specimen).eval()
    with torch.set_grad_enabled(with_gradients):
        expected = leaves(run(bare, specimen.example(7)))
        for net in (dormant, training):
            assert all(identical(a, b) for a, b in zip(expected, leaves(run(net, specimen.example(7))), strict=True))


@everyone
def test_a_seed_full_of_nan_does_not_reach_the_host(specimen: Specimen) -> None:
    net = to_training(grow(specimen), specimen)
    with torch.no_grad():
        for slot in net.slots.values():
            for parameter in slot.seed_parameters():
                parameter.fill_(torch.nan)
    assert differences(train_bare(specimen), train_grown(net, specimen)) == []


class Signed(nn.Module):
    """Shows the sign of its features, that of zeros included."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.Scale()

    def forward(self, x: Tensor) -> Tensor:
        return torch.copysign(torch.ones(3), self.scale(x))


def test_negative_zero_keeps_its_sign_behind_a_seed_in_training() -> None:
    zeros = torch.tensor([[-0.0, 0.0, -0.0]])
    net = Growable(Signed(), ["scale"], zeros, gates=OPEN)
    net.germinate("scale", "mlp")
    net.advance("scale")
    assert net(zeros).tolist() == [[-1.0, 1.0, -1.0]]
    assert net(zeros).requires_grad, "the seed has to be part of this pass for the test to mean anything"


@everyone
def test_wrapping_keeps_the_names_of_the_host(specimen: Specimen) -> None:
    bare, net = specimen.model(), grow(specimen)
    assert list(net.host.state_dict()) == list(bare.state_dict())
    to_training(net, specimen)
    assert list(net.host.state_dict()) == list(bare.state_dict())
    assert [name.removeprefix("host.") for name in net.state_dict() if name.startswith("host.")] == list(bare.state_dict())


@everyone
def test_a_checkpoint_of_the_bare_model_loads_into_the_host(specimen: Specimen) -> None:
    bare = specimen.model()
    with torch.no_grad():
        for parameter in bare.parameters():
            parameter.add_(1.0)
    net = to_training(grow(specimen), specimen)
    net.host.load_state_dict(bare.state_dict())
    expected, found = (run(model.eval(), specimen.example(2)) for model in (bare, net))
    assert all(identical(a, b) for a, b in zip(leaves(expected), leaves(found), strict=True))


@everyone
def test_a_deep_copy_grows_by_itself(specimen: Specimen) -> None:
    net = to_training(grow(specimen), specimen)
    twin = copy.deepcopy(net)
    for slot in net.slot_ids:
        net.prune(slot)
    assert hook_count(twin.host) == len(specimen.slots)
    assert {twin.report(slot).stage for slot in twin.slot_ids} == {Stage.TRAINING}
    before = [p.detach().clone() for p in twin.slots.parameters()]
    assert differences(train_bare(specimen), train_grown(twin, specimen)) == []
    assert any(not torch.equal(a, b) for a, b in zip(before, twin.slots.parameters(), strict=True))
    assert {net.report(slot).stage for slot in net.slot_ids} == {Stage.PRUNED}
