"""Gradient statistics against numbers worked by hand, when they are measured, and clipping of host and seeds apart."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.kasmina.gradients import MOST_WAITING, GradientMeter, Scale, gradient_ratio, tensor_norms
from esper.leyline.errors import GateError
from esper.leyline.reports import GateConfig, GradientStats, SeedReport, Topology
from esper.leyline.stages import Stage
from tests.kasmina.garden import IMAGES, LABELS, backward, gate_of, grad, gradients_of, grow, lead, reads, seed_of, sgd, step, tiny_host

TRAINING, BLENDING, FOSSILIZED = Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED


def parameter(grad: list[float] | None, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """A parameter with this gradient."""
    made = nn.Parameter(torch.zeros(len(grad) if grad is not None else 2, dtype=dtype))
    made.grad = None if grad is None else torch.tensor(grad, dtype=dtype)
    return made


def measured(*steps: list[list[float] | None]) -> GradientStats:
    meter = GradientMeter()
    for grads in steps:
        meter.add([parameter(grad) for grad in grads])
    stats = meter.read()
    assert stats is not None
    return stats


def stats(norm: float, **fields: Any) -> GradientStats:
    shares = {"vanishing": 0.0, "exploding": 0.0}
    return GradientStats(**{"steps": 1, "norm": norm, "peak": norm, **shares, "finite": True, **fields})


def health(gradients: GradientStats, host: float | None = None) -> float | None:
    """Of a seed with these gradients, in a host whose own have this norm."""
    place: dict[str, Any] = {"slot": "mix", "topology": Topology.VECTOR, "width": 6, "position": 0.5}
    return SeedReport(**place, gradients=gradients, host_gradient=host).gradient_health


# One step, several steps


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e-9])
def test_the_health_of_a_seed_does_not_depend_on_the_scale_of_the_loss(factor: float) -> None:
    net = grow()
    net.germinate("mix", "mlp_small")
    net.advance("mix")
    (factor * F.cross_entropy(net(IMAGES), LABELS)).backward()
    net.measure_gradients()
    host = net.host_gradients()
    assert net.report("mix").gradient_health == 1.0
    assert host is not None
    assert (host.exploding > 0.5, host.vanishing < 0.5) == (factor > 1, True)


def test_beside_a_frozen_host_a_seed_is_not_asked_how_large_its_gradient_is_next_to_the_hosts() -> None:
    net = grow(gates=GateConfig(min_training_epochs=0))
    net.host.requires_grad_(False)
    net.germinate("mix", "mlp_small")
    net.advance("mix")
    F.cross_entropy(net(IMAGES), LABELS).backward()
    net.measure_gradients()
    net.record("mix", trial_contribution=1.0)
    assert (net.report("mix").gradient_ratio, net.report("mix").host_gradient) == (None, None)
    net.advance("mix")
    assert net.at(Stage.BLENDING) == ["mix"]


def test_norm_is_over_all_tensors_and_peak_over_single_ones() -> None:
    found = measured([[3.0, 4.0], [12.0, 0.0]])  # norms 5 and 12: together 13
    assert (found.steps, found.norm, found.peak) == (1, 13.0, 12.0)


def test_norms_are_averaged_over_steps_and_the_peak_is_kept() -> None:
    found = measured([[3.0, 4.0]], [[0.0, 1.0]], [[0.0, 3.0]])
    assert (found.steps, found.norm, found.peak) == (3, 3.0, 5.0)


def test_shares_of_vanishing_and_exploding_tensors_and_the_health_they_give() -> None:
    found = measured([[1e-8], [20.0], [1.0], [1.0]], [[1e-8], [1.0], [1.0], [1.0]])
    assert found.vanishing == pytest.approx(0.25)
    assert found.exploding == pytest.approx(0.125)
    assert health(found) == pytest.approx(1 - 0.5 * 0.25 - 0.8 * 0.125)
    assert health(found, host=2.0) == pytest.approx(1 - 0.5 * 0.25), "20 is not much beside such a host"


def test_a_norm_of_exactly_ten_does_not_explode() -> None:
    found = measured([[10.0], [1.0]])
    assert (found.vanishing, found.exploding, health(found)) == (0.0, 0.0, 1.0)


VANISHING: list[tuple[list[list[float]], float]] = [
    ([[1e-9], [1e-3]], 0.0),  # a millionth of the rest
    ([[1e-11], [1e-3]], 0.5),
    ([[1e-11], [1e-9]], 0.0),  # all alike small; the ratio tells that it is little
    ([[1e-6], [20.0]], 0.5),
    ([[0.0], [1e-20]], 0.5),
    ([[0.0], [0.0]], 1.0),
]


@pytest.mark.parametrize(("tensors", "expected"), VANISHING)
def test_a_gradient_vanishes_beside_the_others(tensors: list[list[float]], expected: float) -> None:
    assert measured(tensors).vanishing == expected


def test_a_tensor_without_gradient_counts_as_vanishing() -> None:
    found = measured([[1.0], None])
    assert (found.norm, found.vanishing, health(found)) == (1.0, 0.5, 0.75)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_one_gradient_that_is_not_finite_takes_all_health_and_leaves_the_other_steps_readable(poison: float) -> None:
    found = measured([[3.0, 4.0]], [[1.0, poison]], [[0.0, 1.0]])
    assert (found.finite, health(found)) == (False, 0.0)
    assert (found.steps, found.norm, found.peak) == (3, 3.0, 5.0)


def test_nothing_measured_reads_as_none() -> None:
    meter = GradientMeter()
    assert meter.read() is None
    assert meter.add([parameter(None), parameter(None)]) is None
    assert meter.add([]) is None
    assert meter.read() is None


def test_reset_forgets_everything() -> None:
    meter = GradientMeter()
    meter.add([parameter([math.nan])])
    meter.reset()
    assert meter.read() is None


def test_adding_gives_tensors_so_that_nothing_waits_for_the_device() -> None:
    meter = GradientMeter()
    norm = meter.add([parameter([3.0, 4.0])])
    assert isinstance(norm, Tensor)
    assert norm.shape == ()
    # On the meta device any read of a value raises, so a whole step of measuring runs there only if it reads none.
    with torch.device("meta"):
        unread = GradientMeter()
        held = nn.Parameter(torch.zeros(3))
        held.grad = torch.ones(3)
        assert isinstance(unread.add([held]), Tensor)
    waits = (".item(", ".tolist(", "float(norm", "bool(")
    assert not any(call in inspect.getsource(GradientMeter.add) + inspect.getsource(tensor_norms) for call in waits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_gradients_of_any_precision_can_be_measured(dtype: torch.dtype) -> None:
    meter = GradientMeter()
    meter.add([parameter([300.0, 400.0], dtype)])  # in half precision the sum of squares alone would overflow
    found = meter.read()
    assert found is not None
    assert found.norm == pytest.approx(500.0, rel=1e-2)


def test_sparse_gradients_can_be_measured() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 2])).sum().backward()  # row 1 gets (2, 2), row 2 gets (1, 1): norm sqrt(10)
    found = GradientMeter()
    found.add(list(table.parameters()))
    read = found.read()
    assert read is not None
    assert read.norm == pytest.approx(math.sqrt(10))


def test_counts_stay_exact_in_a_network_of_half_precision() -> None:
    meter = GradientMeter().to(torch.bfloat16)
    for _ in range(300):  # bfloat16 cannot count beyond 256
        meter.add([parameter([1.0])])
    read = meter.read()
    assert read is not None
    assert (read.steps, read.norm) == (300, 1.0)


# The ratio


def test_the_ratio_is_of_gradients_per_root_of_parameters() -> None:
    assert gradient_ratio(stats(0.2), stats(4.0), 25, 400) == pytest.approx(0.2 / 4.0 * 4.0)


def test_the_ratio_is_clamped_at_ten() -> None:
    assert gradient_ratio(stats(100.0), stats(1.0), 1, 1) == 10.0
    assert gradient_ratio(stats(9.9), stats(1.0), 1, 1) == pytest.approx(9.9)


def test_the_ratio_is_zero_against_a_host_without_gradient() -> None:
    assert gradient_ratio(stats(1.0), stats(0.0), 10, 10) == 0.0
    assert gradient_ratio(stats(1.0), stats(9.9e-9), 10, 10) == 0.0
    assert gradient_ratio(stats(1e-8), stats(1e-8), 10, 10) == pytest.approx(1.0)


# When a network is measured


def by_hand(parameters: list[nn.Parameter]) -> float:
    return math.sqrt(sum(float((p.grad**2).sum()) for p in parameters if p.grad is not None))


def measure(net: Growable) -> None:
    net.measure_gradients()


def clip(net: Growable) -> None:
    net.clip_gradients(1e9)


def nothing(net: Growable) -> None:
    pass


@pytest.mark.parametrize("before_the_step", [nothing, measure, clip])
def test_a_step_is_measured_once_whoever_measures_it(before_the_step: Any) -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", TRAINING, optimizer)
    net.tick()
    expected = []
    for _ in range(3):
        backward(net)
        expected.append(by_hand(list(net.host.parameters())))
        before_the_step(net)
        optimizer.step()
    host = net.host_meter.read()
    assert host is not None
    assert host.steps == 3
    assert host.norm == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert gradients_of(net, "mix").steps == 3


def test_a_step_of_two_optimisers_is_measured_once() -> None:
    net = grow()
    host, seeds = optim.SGD(net.host.parameters(), lr=0.1), optim.SGD(net.parameter_groups()[1:], lr=0.1)
    net.follow(seeds)
    lead(net, "mix", TRAINING, seeds)
    net.tick()
    for _ in range(3):
        backward(net)
        host.step()
        seeds.step()
    assert gradients_of(net, "mix").steps == 3


def test_nothing_is_measured_by_an_optimiser_while_no_seed_is_alive() -> None:
    net = grow()
    optimizer = sgd(net)
    step(net, optimizer)
    assert net.host_meter.read() is None
    lead(net, "mix", FOSSILIZED, optimizer)
    net.tick()
    step(net, optimizer)
    assert net.host_meter.read() is None


# Reading


def full(**settings: Any) -> tuple[Growable, optim.Optimizer]:
    """Three seeds, one in TRAINING, one BLENDING, one HOLDING, with gradients measured."""
    net = grow(**settings)
    optimizer = sgd(net)
    for slot, stage in (("stem.0", Stage.HOLDING), ("mix", BLENDING), ("late", TRAINING)):
        lead(net, slot, stage, optimizer, tempo=4)
    step(net, optimizer)
    return net, optimizer


def test_the_device_is_read_once_for_all_reports_and_once_for_a_tick() -> None:
    net, _ = full()
    with reads() as found:
        reports = net.reports()
    assert found == ["tolist"]
    assert [report.stage for report in reports] == [Stage.HOLDING, BLENDING, TRAINING]
    assert all(report.gradients is not None and report.gradients.steps > 0 for report in reports)
    with reads() as found:
        net.report("mix")
    assert found == ["tolist"]
    with reads() as found:
        net.tick()
    assert found == ["tolist"]


def test_reports_verdicts_and_a_tick_from_figures_that_were_read_before_read_nothing_and_are_the_same() -> None:
    net, _ = full()
    nets = net, copy.deepcopy(net)
    for other in nets:
        seed_of(other, "late").gamma.data[0] = math.nan
    expected = [other.reports() for other in nets]
    verdicts, host = [net.verdict(slot) for slot in net.slot_ids], net.host_meter.read()
    read = torch.cat([other.figures() for other in nets]).tolist()
    each = len(read) // 2
    with reads() as found:
        for i, other in enumerate(nets):
            other.cache_figures(read[i * each : (i + 1) * each])
        reports = [other.reports() for other in nets]
        judged = [net.verdict(slot) for slot in net.slot_ids]
        gradients = net.host_gradients()
        net.tick()
    assert found == []
    assert (reports, judged, gradients) == (expected, verdicts, host)
    assert [report.finite for report in reports[0]] == [True, True, False]
    nets[1].tick()
    assert net.reports() == nets[1].reports()
    assert net.journal == nets[1].journal


def test_cached_figures_know_of_seeds_that_come_and_go_and_end_with_a_step() -> None:
    net, optimizer = full()
    seed_of(net, "late").gamma.data[0] = math.nan
    net.cache_figures()
    with reads() as found:
        assert not net.finite("late")
        net.prune("mix")
        net.prune("late")
        reports = dict(zip(net.slot_ids, net.reports(), strict=True))
    assert found == []
    assert reports["late"].finite
    assert net.figures().tolist() == net._figures
    step(net, optimizer)
    with reads() as found:
        net.reports()
    assert found == ["tolist"]


def test_a_report_holds_the_seeds_norm_and_ratio_as_worked_by_hand() -> None:
    net = grow()
    lead(net, "mix", TRAINING, sgd(net))
    net.tick()
    backward(net)
    net.measure_gradients()
    seed, host = list(seed_of(net, "mix").parameters()), list(net.host.parameters())
    sizes = [sum(p.numel() for p in group) for group in (seed, host)]
    report = net.report("mix")
    assert gradients_of(net, "mix").norm == pytest.approx(by_hand(seed), rel=1e-5)
    assert report.gradient_ratio == pytest.approx(by_hand(seed) / by_hand(host) * math.sqrt(sizes[1] / sizes[0]), rel=1e-5)
    assert (report.parameters, report.host_parameters) == tuple(sizes)


def test_the_tick_starts_the_statistics_anew_and_keeps_the_last_epochs_until_the_next_step() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", TRAINING, optimizer)
    step(net, optimizer)
    last = net.report("mix")
    net.tick()
    assert net.report("mix").gradients == last.gradients
    assert net.report("mix").gradient_ratio == last.gradient_ratio
    step(net, optimizer)
    assert gradients_of(net, "mix").steps == 1
    assert net.report("mix").gradients != last.gradients


def test_a_gate_in_training_learns_nothing_yet_and_does_not_count_as_vanishing() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", TRAINING, optimizer, style="gated")
    step(net, optimizer)
    assert all(p.grad is None for p in gate_of(net, "mix").parameters())
    assert gradients_of(net, "mix").vanishing == 0.0
    net.advance("mix")
    net.tick()
    step(net, optimizer)
    assert all(p.grad is not None for p in gate_of(net, "mix").parameters())


def test_a_nan_gradient_is_refused_by_the_gate_with_its_reason() -> None:
    net = grow(gates=GateConfig(strict=False, min_training_epochs=0))
    optimizer = sgd(net)
    lead(net, "mix", TRAINING, optimizer)
    net.tick()
    backward(net)
    grad(seed_of(net, "mix").gamma)[0] = math.nan
    net.measure_gradients()
    assert not gradients_of(net, "mix").finite
    assert net.report("mix").gradient_health == 0.0
    with pytest.raises(GateError, match=r"gradients are not finite; gradient health 0\.00 below 0\.7"):
        net.advance("mix")


def test_a_float64_network_trains_and_is_measured() -> None:
    net = grow(tiny_host().double(), example=IMAGES.double())
    lead(net, "mix", FOSSILIZED, sgd(net))
    assert gradients_of(net, "mix").norm > 0.0


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("unscale", [True, False])
def test_what_is_measured_under_a_gradient_scaler_is_the_gradient_itself(fused: bool, unscale: bool) -> None:
    expected, net = grow(), grow()
    lead(expected, "mix", TRAINING, sgd(expected, fused=fused))
    optimizer, scaler = sgd(net, fused=fused), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    lead(net, "mix", TRAINING, optimizer)
    for each in (expected, net):
        each.tick()
    backward(expected)
    expected.measure_gradients()
    net.zero_grad()
    scaler.scale(F.cross_entropy(net(IMAGES), LABELS)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert gradients_of(net, "mix").norm == pytest.approx(gradients_of(expected, "mix").norm, rel=1e-4)
    assert gradients_of(net, "mix").peak == pytest.approx(gradients_of(expected, "mix").peak, rel=1e-4)
    assert net.report("mix").gradient_ratio == pytest.approx(expected.report("mix").gradient_ratio, rel=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_a_gradient_scaler_skips_counts_for_nothing(fused: bool) -> None:
    net = grow()
    optimizer, scaler = sgd(net, fused=fused), torch.amp.GradScaler("cpu", init_scale=2.0)
    lead(net, "mix", TRAINING, optimizer)
    net.tick()
    scaler.scale(F.cross_entropy(net(IMAGES), LABELS)).backward()
    grad(net.host.get_parameter("head.bias"))[0] = math.inf
    scaler.step(optimizer)
    assert net.host_meter.read() is None
    scaler.update()
    step(net, optimizer)
    assert (gradients_of(net, "mix").steps, gradients_of(net, "mix").finite) == (1, True)


@pytest.mark.parametrize("by_name", [True, False])
def test_gradients_that_a_closure_makes_are_measured_in_the_step_they_are_for(by_name: bool) -> None:
    expected, net = grow(), grow()
    optimizers = [sgd(each) for each in (expected, net)]
    for each, optimizer in zip((expected, net), optimizers, strict=True):
        lead(each, "mix", TRAINING, optimizer)
        each.tick()
    losses = [step(expected, optimizers[0]) for _ in range(2)]
    given = {"closure": lambda: backward(net)} if by_name else {}
    found = [optimizers[1].step(*(() if by_name else (lambda: backward(net),)), **given) for _ in range(2)]
    assert found == losses
    assert gradients_of(net, "mix") == gradients_of(expected, "mix")
    assert net.host_gradients() == expected.host_gradients()


# Clipping


def test_host_and_each_seed_are_clipped_apart() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", BLENDING, optimizer)
    lead(net, "late", TRAINING, optimizer)
    net.tick()
    backward(net)
    other = copy.deepcopy(net)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        theirs.grad = None if mine.grad is None else mine.grad.clone()
    limit = 1e-3
    net.clip_gradients(limit)
    groups = [other.host, seed_of(other, "mix"), seed_of(other, "late")]
    norms = [float(nn.utils.clip_grad_norm_(list(group.parameters()), limit)) for group in groups]
    assert max(norms) > limit
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        if theirs.grad is None:
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=0.0)
    assert gradients_of(net, "mix").norm == pytest.approx(norms[1], rel=1e-5), "what is measured is the norm before clipping"


def test_a_huge_gradient_of_one_seed_scales_no_other_step() -> None:
    net = grow()
    optimizer = sgd(net)
    lead(net, "mix", TRAINING, optimizer)
    lead(net, "late", TRAINING, optimizer)
    backward(net)
    host = [grad(p).clone() for p in net.host.parameters()]
    late = [grad(p).clone() for p in seed_of(net, "late").parameters()]
    grad(seed_of(net, "mix").gamma).mul_(1e9)
    net.clip_gradients(100.0)
    assert all(torch.equal(grad(p), g) for p, g in zip(net.host.parameters(), host, strict=True))
    assert all(torch.equal(grad(p), g) for p, g in zip(seed_of(net, "late").parameters(), late, strict=True))
    assert by_hand(list(seed_of(net, "mix").parameters())) == pytest.approx(100.0, rel=1e-4)


SIZES = st.sampled_from([1.0, 1e-9, 1e9, math.inf, math.nan])


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), SIZES, st.booleans()), max_size=12))
def test_steps_are_summed_alike_whenever_that_is_done(steps: list[tuple[int, bool, float, bool]]) -> None:
    """(tensors, whether a scaler may skip the step, size of its gradients, whether somebody asks then)"""
    late, early = GradientMeter(), GradientMeter()
    for number, (tensors, scaled, size, asked) in enumerate(steps):
        torch.manual_seed(number)
        skipped = torch.tensor(float(number % 2))
        scale = Scale(torch.tensor(4.0), skipped) if scaled else None
        parameters = [parameter((size * torch.rand(3)).tolist()) for _ in range(tensors)]
        late.add(parameters, scale)
        early.add(parameters, scale)
        early.settle()
        skipped.zero_()  # as a scaler does before its next step
        if asked:
            assert late.state_dict()["sums"].equal(early.sums)
    assert late.settle().equal(early.sums)
    late.add([parameter([1.0])])
    late.reset()
    assert late.read() is None


def test_steps_do_not_wait_without_end() -> None:
    meter = GradientMeter()
    for _ in range(MOST_WAITING + 3):
        meter.add([parameter([1.0])])
    assert len(meter._waiting) == 3
    assert meter.sums[0] == MOST_WAITING
