"""What is measured is the network, not the lag of its batch norms; and measuring leaves no trace in the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.norms import tracked_norms
from esper.leyline.errors import ConfigError
from esper.leyline.stages import BLENDED, Stage
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.host import Host
from tests.tolaria.small import EASY, OPEN, bits, data, epoch, facts, germinate, grow_to, looked, make_host, plain_score, train_epoch

RUNNING = TrainingConfig(gates=OPEN, recalibrate=0)
"""Measures with the running statistics, as torch does by itself."""
ONE_IMAGE = 100.0 / 360


def running_accuracy(host: Host) -> float:
    return plain_score(host.model, host.task, host.data.val)[1]


def settled_accuracy(host: Host, off: tuple[str, ...] = ()) -> float:
    """Val accuracy with statistics taken from the whole training set, by hand."""
    with host.model.without(*off), torch.no_grad():
        host.model.eval()
        for norm in tracked_norms(host.model.host):
            norm.training, norm.momentum = True, 1.0
        host.model(host.split.x)
        found = plain_score(host.model.eval(), host.task, host.data.val)[1]
    for norm in tracked_norms(host.model.host):
        norm.momentum = 0.1
    host.model.train()
    return found


def jump(host: Host) -> None:
    """The first convolution becomes ten times as large. Behind it is a batch norm, so that nothing changes once that has settled."""
    with torch.no_grad():
        host.model.host.get_submodule("blocks.0.features.0").weight.mul_(10.0)


def larger(seed: int = 0, config: TrainingConfig = EASY, **member: Any) -> Host:
    return make_host(seed, config, **{"widths": (4, 8, 8), "train_size": 600, "epochs": 30, **member})


def test_a_host_whose_weights_jump_is_measured_as_the_network_with_settled_statistics() -> None:
    host = larger()
    for _ in range(8):
        report, _ = epoch(host)
    jump(host)
    after = looked(host)
    assert report.val_accuracy > 60.0, "else this shows nothing"
    assert running_accuracy(host) < report.val_accuracy - 30.0, "the running statistics are those of another network"
    assert abs(after.val_accuracy - report.val_accuracy) <= ONE_IMAGE, "and the network is the same as before"
    assert after.val_loss == pytest.approx(report.val_loss, rel=0.01)
    # 256 of 600 training images stand for all of them: within 2 points, two thirds of the standard error that val itself has.
    assert abs(after.val_accuracy - settled_accuracy(host)) <= 2.0
    assert after.val_accuracy == after.harvest_accuracy
    assert abs(host.score(host.data.val).accuracy - settled_accuracy(host)) <= ONE_IMAGE, "what is harvested has them of all"


def test_training_goes_on_with_the_statistics_it_had() -> None:
    measured, plain = larger(1), larger(1, RUNNING)
    for number in range(12):
        jump(measured), jump(plain)  # type: ignore[func-returns-value]
        decisions = [germinate("r0c1")] if number == 1 else []
        told = [epoch(host, *decisions)[0] for host in (measured, plain)]
        assert bits(dict(measured.model.host.state_dict())) == bits(dict(plain.model.host.state_dict()))
        assert [told[0].train_loss, told[0].train_accuracy] == [told[1].train_loss, told[1].train_accuracy]
    assert told[0].val_loss != told[1].val_loss


def test_every_configuration_is_measured_with_statistics_of_its_own() -> None:
    # With as many samples as there are, one batch of them all: what is done by hand, to the last image.
    host = larger(0, replace(EASY, recalibrate=10_000))
    grow_to(host, Stage.HOLDING, "r0c0", "conv_heavy")
    epoch(host, germinate("r0c1"))
    train_epoch(host)
    assert host.model.at(*BLENDED) == ["r0c0"]
    with torch.no_grad():
        for parameter in host.model.slots["r0c0"].parameters():
            parameter.add_(0.2)  # the seed makes a difference at once, and no statistics have followed
    looked(host)
    report, accuracy = host.model.report("r0c0"), settled_accuracy(host)
    assert report.contribution == pytest.approx(accuracy - settled_accuracy(host, ("r0c0",)), abs=1e-4)
    assert abs(report.contribution or 0.0) > 5.0, "else this shows nothing"
    with host.model.trial("r0c1"):
        assert host.model.report("r0c1").trial_contribution == pytest.approx(settled_accuracy(host) - accuracy, abs=1e-4)


def test_hosts_without_batch_norms_are_untouched_bit_for_bit() -> None:
    small = {"task": "stdlib", "train_size": 32, "width": 16, "layers": 2, "epochs": 8}
    hosts = [make_host(3, config, **small) for config in (EASY, RUNNING)]
    assert hosts[0].reference() == []
    for host in hosts:
        grow_to(host, Stage.HOLDING, "r0c0", "mlp_small")
    reports = [train_epoch(host) for host in hosts]
    assert facts(reports[0]) == facts(reports[1])
    assert bits(hosts[0].state()) == bits(hosts[1].state())


def test_the_samples_are_the_same_in_every_epoch_and_for_a_twin_and_others_for_another_host() -> None:
    def inputs(host: Host) -> Tensor:
        return torch.cat(host.reference())

    host, twin, other = larger(0), larger(0), larger(1)
    first = inputs(host)
    epoch(host)
    assert torch.equal(inputs(host), first)
    assert torch.equal(inputs(twin), first)
    assert not torch.equal(inputs(other), first)
    assert len(first) == 256
    rows = {tuple(row) for row in host.split.x.flatten(1).tolist()}
    assert {tuple(row) for row in first.flatten(1).tolist()} <= rows, "training images, never those of val"
    few = replace(EASY, eval_batch=100)
    assert [len(part) for part in larger(0, few).reference()] == [100, 100, 56]
    assert [len(part) for part in larger(0, few, train_size=201).reference()] == [100, 101], "no batch of a single sample"


def test_augmented_hosts_are_measured_on_what_they_train_on() -> None:
    host = larger(0, augment=True)
    first = torch.cat(host.reference())
    epoch(host)
    assert not torch.equal(torch.cat(host.reference()), first)


def test_the_governor_judges_the_network_and_not_the_lag() -> None:
    hosts = [larger(2, config) for config in (EASY, RUNNING)]
    for host in hosts:
        for _ in range(12):
            epoch(host)
    losses = []
    for host in hosts:
        jump(host)
        losses.append((looked(host).val_loss, host.governor._mean()))
    (settled, mean), (lagging, _) = losses
    assert settled < 1.5 * mean
    assert lagging > 3.0 * mean, "which would count as divergence"


def test_norms_that_a_host_freezes_are_part_of_the_network() -> None:
    host = larger()
    norm = host.model.host.get_submodule("blocks.0.features.1")
    original = host.model.train

    def train(mode: bool = True) -> nn.Module:
        original(mode)
        norm.eval()
        return host.model

    host.model.train = train  # type: ignore[method-assign, assignment]
    epoch(host)
    assert norm not in host.model.learning_norms()
    assert len(host.model.learning_norms()) == 2
    before = bits(list(norm.buffers()))
    with host.model.recalibrated(host.reference()):
        assert bits(list(norm.buffers())) == before


def test_a_saved_host_knows_the_statistics_of_its_harvest() -> None:
    host = larger()
    grow_to(host, Stage.FOSSILIZED, "r0c0")
    epoch(host, germinate("r0c1"))
    jump(host)
    network, state = host.model.harvest(), host.state()
    grown = dict(host.model.named_buffers())
    assert set(state["harvest_norms"]) == {name for name in grown if "running_" in name or "num_batches" in name}
    for name, value in state["harvest_norms"].items():
        grown[name].copy_(value)
    exported = host.model.harvest()
    expected = host.score(host.data.val)
    assert plain_score(exported, host.task, host.data.val)[1] == expected.accuracy
    assert plain_score(network, host.task, host.data.val)[1] < expected.accuracy - 10.0
    assert larger(0, RUNNING).state()["harvest_norms"] == {}


def test_standard_errors_say_how_far_measurements_are_off_on_other_samples() -> None:
    """Measured on halves of val, two figures differ by what their errors say: in the mean square, and for contributions as for levels."""
    host = larger(0, train_size=1000, kernel=1)
    grow_to(host, Stage.HOLDING, "r0c0", "conv_heavy")
    train_epoch(host)
    val, slot = data().val, "r0c0"
    assert (host.model.report(slot).contribution or 0.0) > 5.0, "a host that sees single pixels owes much to its seed"
    ratios: dict[str, list[float]] = {"contribution": [], "level": []}
    for draw in range(40):
        order = torch.randperm(360, generator=torch.Generator().manual_seed(draw))
        parts = []
        for index in order.chunk(2):
            host.data.val = replace(val, x=val.x[index], y=val.y[index])
            found = looked(host)
            seed = host.model.report(slot)
            assert seed.contribution_error is not None
            assert found.val_error is not None
            parts.append((seed.contribution, seed.contribution_error, found.val_accuracy, found.val_error))
        host.data.val = val
        (a, ea, la, ela), (b, eb, lb, elb) = parts
        ratios["contribution"].append((a - b) ** 2 / (ea**2 + eb**2))
        ratios["level"].append((la - lb) ** 2 / (ela**2 + elb**2))
    for name, squares in ratios.items():
        # Halves of one split are a little more alike than independent samples; forty of them tell the mean square within a third.
        assert 0.5 < sum(squares) / len(squares) < 1.6, name


def test_a_single_sample_has_no_variance_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="'recalibrate' is 1; expected 0, for never, or at least 2"):
        TrainingConfig(recalibrate=1)
    with pytest.raises(ConfigError, match="recalibrate"):
        TrainingConfig(recalibrate=-1)
