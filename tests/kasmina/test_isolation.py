"""Who learns from what: isolation while a seed trains, blending afterwards, clipping apart, and shadow passes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.kasmina.blending import Gating, Graft, combine, isolated
from esper.kasmina.layout import named_layout
from esper.leyline.actions import Style
from esper.leyline.reports import Topology
from tests.kasmina.growing import STYLES, gradients, grow, identical, registered, to_blending, to_fossil, to_training, unlike_birth
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen, loss_of, run

everyone = pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)
ADDING = [Style.LINEAR_ADD, Style.SIGMOID_ADD]


# Blending by numbers


@pytest.mark.parametrize("style", ADDING)
@given(alpha=st.floats(0.0, 1.0, width=32), h=st.floats(-8, 8, width=32), s=st.floats(-8, 8, width=32))
def test_adding_shares_the_gradient_between_host_and_seed(style: Style, alpha: float, h: float, s: float) -> None:
    host, seed = torch.tensor(h, requires_grad=True), torch.tensor(s, requires_grad=True)
    out = combine(style, host, seed, torch.tensor(alpha))
    out.backward()
    torch.testing.assert_close(out.detach(), torch.tensor((1 - alpha) * h + alpha * s), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(host.grad, torch.tensor(1 - alpha))
    torch.testing.assert_close(seed.grad, torch.tensor(alpha))


def test_multiplying_gives_the_numbers_worked_out_by_hand() -> None:
    host, seed = torch.tensor(2.0, requires_grad=True), torch.tensor(2.5, requires_grad=True)
    out = combine(Style.LINEAR_MULTIPLY, host, seed, torch.tensor(0.5))
    out.backward()
    assert out.item() == pytest.approx(2.4621172)  # 2 (1 + 0.5 tanh 0.5)
    assert seed.grad.item() == pytest.approx(0.7864477)  # type: ignore[union-attr]  # 2 * 0.5 * (1 - tanh(0.5)^2)
    assert host.grad.item() == pytest.approx(1.2310586 - 0.7864477)  # type: ignore[union-attr]  # 1 + 0.5 tanh 0.5, less that


@pytest.mark.parametrize("topology", list(Topology))
def test_a_gate_scales_alpha_at_each_position(topology: Topology) -> None:
    shape = {Topology.MAP2D: (1, 2, 2, 1), Topology.MAP1D: (1, 2, 2), Topology.TOKENS: (1, 2, 2), Topology.VECTOR: (1, 2)}[topology]
    gating = Gating(topology, 2)
    with torch.no_grad():
        for parameter in gating.parameters():
            parameter.zero_()
        gating.score.bias.fill_(math.log(3.0))  # type: ignore[operator]
    graft = Graft(_Plus(0.5), gating, Style.GATED, 0.5, named_layout(topology))
    h = torch.full(shape, 2.0)
    assert gating(h).unique().item() == pytest.approx(0.75)
    torch.testing.assert_close(graft(h), torch.full(shape, 2.1875))  # 2 + 0.5 * 0.75 * 0.5


def test_the_gate_learns_how_far_to_open() -> None:
    gating = Gating(Topology.VECTOR, 2)
    Graft(_Plus(0.5), gating, Style.GATED, 1.0, named_layout("vector"))(torch.ones(3, 2)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gating.parameters())


class _Plus(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def test_straight_through_is_the_host_with_the_gradient_of_both() -> None:
    h, s = torch.tensor([-0.0, 3.0], requires_grad=True), torch.tensor([math.nan, 7.0], dtype=torch.float64, requires_grad=True)
    out = isolated(h, s, pull=False)
    assert identical(out, h)
    assert out.data_ptr() != h.data_ptr(), "a host that works in place may not overwrite what the seed has seen"
    out.backward(torch.tensor([2.0, -1.0]))
    assert h.grad.tolist() == [2.0, -1.0]  # type: ignore[union-attr]
    assert s.grad.tolist() == [2.0, -1.0]  # type: ignore[union-attr]
    assert s.grad.dtype is torch.float64  # type: ignore[union-attr]


# Gradients that reach the host


def with_seed_by_hand(specimen: Specimen, net: Growable, blend: Callable[[Tensor, nn.Module], Tensor]) -> dict[str, Tensor]:
    """The host's gradients when its first slot computes `blend(h, seed)`, without any of the machinery."""
    model, seed = specimen.model(), copy.deepcopy(next(iter(net.slots.values())).seed)
    assert seed is not None
    model.get_submodule(specimen.slots[0]).register_forward_hook(lambda module, args, output: blend(output, seed))
    torch.manual_seed(0)
    loss_of(run(model, specimen.example())).backward()
    return gradients(model)


def host_gradients(net: Growable, specimen: Specimen) -> dict[str, Tensor]:
    net.zero_grad()
    torch.manual_seed(0)
    loss_of(run(net, specimen.example())).backward()
    return gradients(net.host)


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.allclose(found[name], expected[name], atol=1e-5, rtol=1e-4), name


def far(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether some gradients differ by far more than rounding."""
    return any(float((a[name] - b[name]).abs().max()) > 1e-3 * float(b[name].abs().max()) for name in a)


def one_slot(specimen: Specimen, **settings: Any) -> Growable:
    """A seed in TRAINING at the first slot alone, far from the identity."""
    single = Specimen(name=specimen.name, factory=specimen.factory, inputs=specimen.inputs, slots=specimen.slots[:1])
    return unlike_birth(to_training(grow(single, **settings), specimen))


SINGLE = [s for s in ZOO if s.name in ("residual", "mlp", "sound", "mixer", "in_place")]
several = pytest.mark.parametrize("specimen", SINGLE, ids=lambda s: s.name)


@several
def test_without_isolation_the_host_learns_from_a_seed_in_training(specimen: Specimen) -> None:
    net = one_slot(specimen, isolation="none")
    bare = with_seed_by_hand(specimen, net, lambda h, seed: h)
    open_ = with_seed_by_hand(specimen, net, lambda h, seed: h + (seed(h) - seed(h).detach()))
    found = host_gradients(net, specimen)
    assert_near(found, open_)
    assert far(found, bare)
    isolated = host_gradients(one_slot(specimen), specimen)
    assert all(identical(isolated[name], bare[name]) for name in bare)


@several
def test_from_blending_on_the_host_learns_through_the_seed(specimen: Specimen) -> None:
    net = one_slot(specimen)
    to_blending(net, specimen)
    alpha = net.report(specimen.slots[0]).alpha
    assert alpha == pytest.approx(0.25)
    found = host_gradients(net, specimen)
    assert_near(found, with_seed_by_hand(specimen, net, lambda h, seed: h + alpha * (seed(h) - h)))
    assert far(found, with_seed_by_hand(specimen, net, lambda h, seed: h + alpha * (seed(h.detach()) - h)))
    to_fossil(net, specimen)
    assert_near(host_gradients(net, specimen), with_seed_by_hand(specimen, net, lambda h, seed: seed(h)))


# Clipping


def exploding(specimen: Specimen) -> Growable:
    net = to_training(grow(specimen), specimen)
    with torch.no_grad():
        for slot in net.slots.values():
            slot.seed.gamma.fill_(1e6)  # type: ignore[union-attr]
    torch.manual_seed(0)
    loss_of(run(net, specimen.example())).backward()
    return net


def clipped_bare(specimen: Specimen, max_norm: float) -> dict[str, Tensor]:
    model = specimen.model()
    torch.manual_seed(0)
    loss_of(run(model, specimen.example())).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return gradients(model)


@everyone
def test_clipping_apart_keeps_the_host_from_an_exploding_seed(specimen: Specimen) -> None:
    expected = clipped_bare(specimen, 0.1)
    together, apart = exploding(specimen), exploding(specimen)
    nn.utils.clip_grad_norm_(together.parameters(), 0.1)
    assert far(gradients(together.host), expected), "clipped together, the seed should scale the host's step"
    apart.clip_gradients(0.1)
    assert all(identical(grad, expected[name]) for name, grad in gradients(apart.host).items())
    for slot in apart.slots.values():
        norm = torch.stack([p.grad.norm() for p in slot.seed_parameters() if p.grad is not None]).norm()
        assert norm.item() <= 0.1 * (1 + 1e-4)
        assert apart.report(slot.id).gradients.peak > 10.0  # type: ignore[union-attr]  # measured before it was clipped


# Shadow passes


@everyone
def test_a_shadow_pass_gives_seeds_the_gradient_of_the_blended_network(specimen: Specimen) -> None:
    net = unlike_birth(to_training(grow(specimen, isolation="shadow"), specimen, STYLES, alpha_target=0.75))
    reference = copy.deepcopy(net)
    torch.manual_seed(4)
    for norm in reference.host.modules():  # a seed learns under the statistics that a trial will judge it by
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.eval()
    with reference.trial(*reference.slot_ids):
        reference.host.requires_grad_(False)
        expected_loss = loss_of(run(reference, specimen.example()))
        expected_loss.backward()
    torch.manual_seed(4)
    loss = net.shadow_backward(lambda: loss_of(run(net, specimen.example())))
    assert loss is not None
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected_loss.detach())
    for slot, other in zip(net.slots.values(), reference.slots.values(), strict=True):
        for (name, found), expected in zip(_named(slot), _named(other), strict=True):
            assert found.grad is not None, name
            assert expected[1].grad is not None
            assert found.grad.stride() == found.stride(), name
            torch.testing.assert_close(found.grad, expected[1].grad, atol=1e-6, rtol=1e-4)


def _named(slot: Any) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in slot.named_parameters() if p.requires_grad]


@everyone
def test_a_shadow_pass_leaves_the_host_alone(specimen: Specimen) -> None:
    net = to_training(grow(specimen, isolation="shadow"), specimen)
    loss_of(run(net, specimen.example())).backward()
    buffers = {name: (id(buffer), buffer.clone()) for name, buffer in net.host.named_buffers()}
    before, random = gradients(net.host), torch.get_rng_state()
    assert all(p.grad is None for slot in net.slots.values() for p in slot.parameters()), "an ordinary pass has no seed in it"
    net.shadow_backward(lambda: loss_of(run(net, specimen.example())))
    once = [p.grad.clone() for slot in net.slots.values() for p in slot.parameters() if p.grad is not None]
    net.shadow_backward(lambda: loss_of(run(net, specimen.example())))
    twice = [p.grad for slot in net.slots.values() for p in slot.parameters() if p.grad is not None]
    assert once
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * a, b)
    after = gradients(net.host)
    assert after.keys() == before.keys()
    assert all(identical(after[name], before[name]) for name in after)
    assert all(id(buffer) == buffers[name][0] and identical(buffer, buffers[name][1]) for name, buffer in net.host.named_buffers())
    assert torch.equal(torch.get_rng_state(), random)


def test_gradients_of_a_shadow_pass_have_the_layout_of_their_parameters() -> None:
    specimen = BY_NAME["channels_last"]
    with registered("raw_conv", lambda shape: nn.Conv2d(shape.width, shape.width, 3, padding=1)) as name:
        net = grow(specimen, isolation="shadow")
        net.germinate("layer1", name)
    net.advance("layer1")
    optimizer = torch.optim.SGD(net.parameter_groups(), lr=0.1, momentum=0.9, fused=True)
    net.follow(optimizer)
    before = [p.detach().clone() for p in net.slots.parameters()]
    net.shadow_backward(lambda: loss_of(run(net, specimen.example())))
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in net.slots.parameters())
    optimizer.step()  # the fused one refuses other layouts
    assert not any(torch.equal(a, b) for a, b in zip(before, net.slots.parameters(), strict=True))


def test_a_shadow_pass_without_seeds_in_training_does_nothing() -> None:
    net = grow(BY_NAME["mlp"])

    def closure() -> Tensor:
        raise AssertionError("there is nothing to run")

    assert net.shadow_backward(closure) is None


def test_a_shadow_pass_that_raises_leaves_the_seeds_isolated() -> None:
    specimen = BY_NAME["residual"]
    net = unlike_birth(to_training(grow(specimen, isolation="shadow"), specimen))

    def closure() -> Tensor:
        run(net, specimen.example())
        raise RuntimeError("out of memory")

    buffers = [b.clone() for b in net.host.buffers()]
    with pytest.raises(RuntimeError, match="out of memory"):
        net.shadow_backward(closure)
    assert all(identical(a, b) for a, b in zip(buffers, net.host.buffers(), strict=True))
    assert identical(run(net.eval(), specimen.example()), run(specimen.model().eval(), specimen.example()))


def test_the_gate_of_a_seed_in_a_shadow_pass_is_clipped_with_it() -> None:
    specimen = BY_NAME["mlp"]
    net = unlike_birth(to_training(grow(specimen, isolation="shadow"), specimen, [Style.GATED]))
    net.shadow_backward(lambda: 1e4 * loss_of(run(net, specimen.example())))
    net.clip_gradients(0.1)
    for slot in net.slots.values():
        assert slot.gating is not None
        norm = torch.stack([p.grad.norm() for p in slot.seed_parameters() if p.grad is not None]).norm()
        assert 0.09 < norm.item() <= 0.1001
