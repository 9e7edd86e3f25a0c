"""Validation: one stacked pass says what separate passes would, changes nothing, and its cost is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.attach.running import evaluating
from esper.kasmina.blueprints import blueprint as register_blueprint
from esper.kasmina.blueprints import unregister
from esper.kasmina.slot import Form
from esper.leyline.actions import Decision, Op, Style
from esper.leyline.reports import Isolation, Topology
from esper.leyline.stages import Stage
from esper.tolaria.data import Split
from esper.tolaria.data.digits import read_digits
from esper.tolaria.data.formats import Images
from esper.tolaria.tasks import VisionTask, get
from esper.tolaria.training import host as hosts
from esper.tolaria.training.attribution import configurations
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.flops import count, per_sample
from esper.tolaria.training.host import Host
from esper.tolaria.training.validation import evaluate, measured, wanted_of
from tests.tolaria.small import EASY, OPEN, bits, epoch, germinate, grow_to, looked, make_host, plain_score, train_epoch

STAGES = {"r0c0": Stage.FOSSILIZED, "r1c0": Stage.FOSSILIZED, "r0c1": Stage.HOLDING, "r1c1": Stage.BLENDING, "r0c2": Stage.TRAINING}
"""What the grown host has in its slots; the sixth is empty."""


@pytest.fixture(scope="module")
def grown() -> Host:
    """A host with seeds of every style in every stage. Tests may measure it, and nothing else."""
    host = make_host(0, widths=(4, 4, 4), slots="both", epochs=90)
    grow_to(host, Stage.FOSSILIZED, "r0c0", style=Style.LINEAR_MULTIPLY)
    grow_to(host, Stage.FOSSILIZED, "r1c0", "conv_small")
    grow_to(host, Stage.HOLDING, "r0c1", style=Style.GATED)
    grow_to(host, Stage.BLENDING, "r1c1", "conv_heavy", tempo=10, style=Style.SIGMOID_ADD)
    for _ in range(3):
        epoch(host)
    epoch(host, germinate("r0c2", alpha_target=0.5))
    train_epoch(host)
    assert {seed.slot: seed.stage for seed in host.model.reports() if seed.stage is not Stage.DORMANT} == STAGES
    assert 0.1 < host.model.report("r1c1").alpha < 0.9
    return host


def evaluated(host: Host, config: TrainingConfig = EASY, run: Any = None) -> SimpleNamespace:
    """What a report would say of the host's model, its configurations stacked in one pass with running statistics."""
    wanted = wanted_of(host.model)
    found = evaluate(host.model, run or host.model, host.task, host.data.val, config.eval_batch, wanted)
    scores = found.read()
    return SimpleNamespace(**measured(host.model, scores.by), per_class=scores.per_class)


def separately(host: Host, split: Split | None = None) -> tuple[float, float]:
    """Loss and accuracy of the network as it is, in one pass of its own."""
    split = split or host.data.val
    with evaluating(host.model):
        logits = host.model(split.x)
        loss = nn.functional.cross_entropy(logits, split.y)
    return float(loss), 100.0 * float((logits.argmax(-1) == split.y).sum()) / len(split)


def test_the_stacked_pass_equals_separate_passes(grown: Host) -> None:
    model, found = grown.model, evaluated(grown)
    loss, accuracy = separately(grown)
    assert found.val_accuracy == accuracy
    assert found.val_loss == pytest.approx(loss, rel=1e-5)
    for slot in ("r0c0", "r1c0", "r0c1", "r1c1"):
        with model.without(slot):
            assert model.report(slot).contribution == accuracy - separately(grown)[1], slot
    with model.trial("r0c2"):
        assert model.report("r0c2").trial_contribution == separately(grown)[1] - accuracy
    with model.bare():
        assert found.bare_accuracy == separately(grown)[1]
    assert {model.report(slot).contribution for slot in ("r0c2", "r1c2")} == {None}
    assert len({model.report(slot).contribution for slot in STAGES} | {model.report("r0c2").trial_contribution}) > 3, "nothing differs"


def test_harvest_accuracy_is_that_of_the_harvested_network(grown: Host) -> None:
    found = evaluated(grown)
    loss, accuracy = plain_score(grown.model.harvest(), grown.task, grown.data.val)
    assert found.harvest_accuracy == accuracy
    assert found.harvest_loss == pytest.approx(loss, rel=1e-5)
    assert found.harvest_loss != found.val_loss


def test_interactions_of_pairs_follow_from_four_separate_passes() -> None:
    host = make_host(0, widths=(4, 4, 4), epochs=90)
    grow_to(host, Stage.HOLDING, "r0c0")
    grow_to(host, Stage.BLENDING, "r0c1", tempo=10)
    train_epoch(host)
    values = []
    for off in ((), ("r0c0",), ("r0c1",), ("r0c0", "r0c1")):
        with host.model.without(*off):
            values.append(separately(host)[1])
    assert evaluated(host).interactions == {("r0c0", "r0c1"): values[0] - values[1] - values[2] + values[3]}


def test_measuring_changes_nothing(grown: Host) -> None:
    model = grown.model
    modes = [module.training for module in model.modules()]
    forms = [(slot.form, slot.share) for slot in model.slots.values()]
    looked(grown)  # what is recorded about the seeds is the last measurement
    before, stream = bits(grown.state()), torch.get_rng_state()
    evaluate(model, model, grown.task, grown.data.val, 512, configurations([*STAGES][:4], [*STAGES][:2], ["r0c2"]))
    looked(grown)
    assert bits(grown.state()) == before
    assert torch.equal(torch.get_rng_state(), stream)
    assert [module.training for module in model.modules()] == modes
    assert [(slot.form, slot.share) for slot in model.slots.values()] == forms


def test_a_failing_evaluation_leaves_the_model_as_it_was(grown: Host) -> None:
    model, before = grown.model, bits(grown.state())
    forms = [(slot.form, slot.share) for slot in model.slots.values()]

    def fail(*args: Any) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluated(grown, run=fail)
    assert bits(grown.state()) == before
    assert [(slot.form, slot.share) for slot in model.slots.values()] == forms
    assert model.training


def test_accuracy_by_class_is_what_counting_by_hand_gives(grown: Host) -> None:
    split = grown.data.val
    with evaluating(grown.model):
        predicted = grown.model(split.x).argmax(-1).tolist()
    pairs = list(zip(predicted, split.y.tolist(), strict=True))
    by_hand = [100.0 * sum(p == y == k for p, y in pairs) / sum(y == k for _, y in pairs) for k in range(10)]
    assert evaluated(grown).per_class == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("eval_batch", [1, 7, 350])
def test_the_size_of_a_validation_batch_plays_no_part(grown: Host, eval_batch: int) -> None:
    found, expected = evaluated(grown, TrainingConfig(eval_batch=eval_batch)), evaluated(grown, TrainingConfig(eval_batch=4096))
    assert (found.val_accuracy, found.bare_accuracy, found.harvest_accuracy) == (
        expected.val_accuracy,
        expected.bare_accuracy,
        expected.harvest_accuracy,
    )
    assert (found.per_class, found.interactions) == (expected.per_class, expected.interactions)
    assert found.val_loss == pytest.approx(expected.val_loss, rel=1e-5)


def test_the_validation_batch_caps_what_all_configurations_take_together(grown: Host) -> None:
    sizes = []

    def run(x: Tensor) -> Tensor:
        sizes.append(len(x))
        logits: Tensor = grown.model(x)
        return logits

    evaluated(grown, TrainingConfig(eval_batch=100), run)
    assert max(sizes) <= 100
    assert sum(sizes) == len(wanted_of(grown.model)) * 360


def test_nothing_is_stacked_while_nothing_grows() -> None:
    host = make_host()
    report = train_epoch(host)
    assert report.bare_accuracy is None
    assert (report.harvest_accuracy, report.harvest_loss) == (report.val_accuracy, report.val_loss)
    assert report.flops["counterfactual"] == 0


CONV = 2 * 64 * 9 * 3
"""A 3x3 convolution from one channel to three on 8 x 8 pixels: a multiplication and an addition for each weight and pixel."""
HEAD = 2 * 3 * 10
SEED = 2 * 64 * 9 * 3 * 3
"""A conv_light seed at the slot before the pool."""
LOOK = 360 + 50
"""Samples that a look at one network takes: the val split, and the whole training set of 50 for its batch norm."""


def one_block(config: TrainingConfig = EASY, **member: Any) -> Host:
    """Conv, norm, pool, linear, and a slot: small enough to count by hand."""
    return make_host(0, config, widths=(3,), train_size=50, epochs=60, **member)


def test_operations_of_a_bare_host_are_those_of_a_count_by_hand() -> None:
    host = one_block()
    report = train_epoch(host)
    # Backward: the head's gradients for weights and features, the convolution's for its weights alone, as images need none.
    expected = {"forward": 50 * (CONV + HEAD), "backward": 50 * (CONV + 2 * HEAD), "validation": LOOK * (CONV + HEAD), "counterfactual": 0}
    assert report.flops == host.flops == expected


def test_operations_follow_a_seed_through_its_life() -> None:
    host = one_block()
    grow_to(host, Stage.TRAINING, "r0c0")
    training = train_epoch(host).flops
    # The seed runs and learns; its input is detached, but its norm in front of the convolution needs the features' gradient.
    assert training["forward"] == 50 * (CONV + HEAD + SEED)
    assert training["backward"] == 50 * (CONV + 2 * HEAD + 2 * SEED)
    assert training["validation"] == LOOK * (CONV + HEAD), "it has no influence yet"
    # The trial beside it: the network with the seed, with statistics of its own.
    assert training["counterfactual"] == LOOK * (CONV + HEAD + SEED)
    host.model.act(Decision(op=Op.ADVANCE, slot="r0c0"))
    host.end_epoch()
    blending = train_epoch(host).flops
    assert blending["validation"] == LOOK * (CONV + HEAD + SEED)
    assert blending["counterfactual"] == LOOK * (CONV + HEAD), "the network without it"
    assert blending["forward"] == 50 * (CONV + HEAD + SEED)
    # Now the host learns through the seed, so its convolution gets the features' gradient as well; the images still need none.
    assert blending["backward"] == 50 * (CONV + 2 * HEAD + 2 * SEED)
    assert host.flops["counterfactual"] == sum(part["counterfactual"] for part in (training, blending))


def test_operations_of_a_stacked_pass_are_counted_as_it_runs() -> None:
    host = one_block(TrainingConfig(gates=OPEN, recalibrate=0))
    grow_to(host, Stage.TRAINING, "r0c0")
    training = train_epoch(host).flops
    assert training["validation"] == 360 * (CONV + HEAD)
    # The network as it is and the one with the seed, stacked, take twice the host and twice the seed.
    assert training["counterfactual"] == 360 * (CONV + HEAD + 2 * SEED)
    host.model.act(Decision(op=Op.ADVANCE, slot="r0c0"))
    host.end_epoch()
    assert train_epoch(host).flops["counterfactual"] == 360 * (CONV + HEAD + SEED)


def test_a_shadow_pass_is_counted() -> None:
    host = one_block(TrainingConfig(gates=OPEN, isolation="shadow"))
    grow_to(host, Stage.TRAINING, "r0c0")
    flops = train_epoch(host).flops
    assert flops["forward"] == 50 * (CONV + HEAD + (CONV + HEAD + SEED))


def test_a_validation_that_is_repeated_after_a_rollback_is_counted_twice() -> None:
    host = one_block()
    epoch(host)
    with torch.no_grad():
        host.model.host.head.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    report = train_epoch(host)
    assert report.anomaly
    assert report.flops["validation"] == 2 * LOOK * (CONV + HEAD)


def test_hosts_that_differ_in_their_slots_alone_are_counted_apart() -> None:
    found = []
    for layout, slot in (("before", "r0c0"), ("after", "r1c0")):
        host = one_block(slots=layout)
        grow_to(host, Stage.TRAINING, slot)
        found.append(train_epoch(host).flops["forward"])
    assert found == [50 * (CONV + HEAD + SEED), 50 * (CONV + HEAD + SEED // 4)]


@pytest.mark.parametrize("isolation", ["boost", "shadow", "none"])
def test_seeds_that_are_counted_one_by_one_add_up_to_the_whole_network(isolation: Isolation) -> None:
    host = make_host(0, TrainingConfig(gates=OPEN, isolation=isolation), widths=(2, 4, 4), epochs=60)
    grow_to(host, Stage.FOSSILIZED, "r0c0", "conv_heavy")
    grow_to(host, Stage.BLENDING, "r0c2", "depthwise", tempo=10, style=Style.GATED)
    grow_to(host, Stage.TRAINING, "r0c1", "attention")
    x, y = host.split.x[:2], host.split.y[:2]

    def run() -> Tensor:
        return host.task.loss(host.model(x), y)

    for backward in (True, False):
        counting = partial(count, host.model, 2, run, backward)
        forms = {id: slot.form for id, slot in host.model.slots.items()}
        assert per_sample({}, {}, host.model, forms, counting, backward) == counting()
        with host.model.trial("r0c1"):
            expected = counting()
        assert per_sample({}, {}, host.model, {**forms, "r0c1": Form.TRIAL}, counting, backward) == expected


def test_the_counter_runs_no_more_once_every_part_of_a_network_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for slot, blueprint in (("r0c0", "conv_light"), ("r0c1", "conv_small")):
        host = make_host(0, widths=(2, 2, 4), epochs=60)
        grow_to(host, Stage.FOSSILIZED, slot, blueprint)
        epoch(host)
    host = make_host(0, widths=(2, 2, 4), epochs=60)
    monkeypatch.setattr(hosts, "count", None)
    grow_to(host, Stage.FOSSILIZED, "r0c0", "conv_light")
    grow_to(host, Stage.FOSSILIZED, "r0c1", "conv_small")
    assert host.flops["counterfactual"] > 0


def enlarged(source: Path | None) -> Images:
    images = read_digits()
    twice = [np.repeat(np.repeat(x, 2, axis=2), 2, axis=3) for x in (images.x_train, images.x_test)]
    return replace(images, x_train=twice[0], x_test=twice[1])


def test_hosts_of_two_tasks_are_counted_apart() -> None:
    digits = get("digits")
    assert isinstance(digits, VisionTask)
    large = replace(digits, name="large", shape=(1, 16, 16), read=enlarged)
    small = one_block()
    other = Host(large, large.load(None, torch.device("cpu")), small.member, 0, EASY)
    assert train_epoch(small).flops["forward"] == 50 * (CONV + HEAD)
    assert train_epoch(other).flops["forward"] == 50 * (4 * CONV + HEAD)


@contextmanager
def blueprint_with_statistics() -> Iterator[str]:
    register_blueprint("normed", Topology.MAP2D, purpose="has running statistics")(lambda shape: nn.BatchNorm2d(shape.width))
    try:
        yield "normed"
    finally:
        unregister("normed", Topology.MAP2D)


def test_counting_leaves_the_running_statistics_of_seeds_alone() -> None:
    with blueprint_with_statistics() as name:
        host = make_host()
        grow_to(host, Stage.BLENDING, "r0c0", name)
        before = bits(host.state())
        host._count_training()
        assert bits(host.state()) == before
