"""The governor in live hosts: whatever breaks is put back as it was when it was healthy, and training goes on."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import nn

from esper.kasmina.blueprints import blueprint as register_blueprint
from esper.kasmina.blueprints import unregister
from esper.leyline.actions import Decision, Op
from esper.leyline.events import Event, RolledBack, StageChanged
from esper.leyline.reports import Isolation, LifecycleConfig, Topology
from esper.leyline.stages import Stage
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.governor import GovernorConfig
from esper.tolaria.training.host import Host
from tests.tolaria.small import EASY, OPEN, bits, epoch, facts, germinate, grow_to, make_host, train_epoch


def poison(module: nn.Module) -> None:
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)


def seed_of(host: Host, slot: str) -> nn.Module:
    seed = host.model.slots[slot].seed
    assert seed is not None
    return seed


def rollbacks(events: list[Event]) -> list[RolledBack]:
    return [event for event in events if isinstance(event, RolledBack)]


def restored(host: Host) -> bool:
    """Whether host and fossils, and their momentum, are those of the snapshot, and all of it finite."""
    state, kept = host.model.host.state_dict(), host.snapshot
    found = {f"host.{name}": value for name, value in state.items()}
    fossils = [report.slot for report in host.model.reports() if report.stage is Stage.FOSSILIZED]
    for slot in fossils:
        found.update({f"{slot}/seed.{name}": value for name, value in seed_of(host, slot).state_dict().items()})
    parameters = dict(host.model.host.named_parameters(prefix="host"))
    parameters.update({f"{slot}/seed.{name}": p for slot in fossils for name, p in seed_of(host, slot).named_parameters()})
    momentum = {name: dict(host.optimizer.state[p]) for name, p in parameters.items() if p in host.optimizer.state}
    finite = all(value.isfinite().all() for part in (found, *momentum.values()) for value in part.values())
    return finite and bits(found) == bits(dict(kept.tensors)) and bits(momentum) == bits(dict(kept.momentum))


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state)


def with_fossil(config: TrainingConfig | None = None, **member: Any) -> Host:
    host = make_host(1, config or TrainingConfig(gates=OPEN), epochs=60, **member)
    grow_to(host, Stage.FOSSILIZED, "r0c0")
    return host


def goes_on(host: Host) -> bool:
    """Whether the next epochs are ordinary and learn."""
    reports = [epoch(host)[0] for _ in range(4)]
    return all(report.anomaly == "" for report in reports) and reports[-1].train_loss < reports[0].train_loss


def test_a_rollback_brings_back_what_adam_knows_of_each_parameter_too() -> None:
    host = with_fossil(optimizer="adamw", learning_rate=0.01)
    grow_to(host, Stage.BLENDING, "r0c1")
    poison(host.model.host)
    assert "train loss is nan" in train_epoch(host).anomaly
    assert restored(host)
    kept = [state for name, state in host.snapshot.momentum.items() if name.startswith("host.")]
    assert {key for state in kept for key in state} == {"step", "exp_avg", "exp_avg_sq"}
    host.end_epoch()
    assert goes_on(host)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_nan_in_the_host_rolls_it_back_and_prunes_what_is_alive(stage: Stage) -> None:
    host = with_fossil()
    grow_to(host, stage, "r0c1", tempo=7)
    taken, epochs = host.snapshot.epoch, host.epoch
    poison(host.model.host)
    report = train_epoch(host)
    assert "train loss is nan" in report.anomaly
    assert math.isnan(report.train_loss)
    assert math.isfinite(report.val_loss)
    assert report.rollbacks == 1
    assert restored(host)
    assert {seed.slot: seed.stage for seed in report.seeds} == {"r0c0": Stage.FOSSILIZED, "r0c1": Stage.PRUNED, "r0c2": Stage.DORMANT}
    events = host.end_epoch()
    assert rollbacks(events) == [RolledBack(reason=report.anomaly, to_epoch=taken, pruned=("r0c1",))]
    assert (host.epoch, host.pruned) == (epochs + 1, 1), "the budget goes on"
    assert goes_on(host)


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING])
def test_nan_in_a_blended_seed_rolls_back_and_prunes_it(stage: Stage) -> None:
    host = with_fossil()
    grow_to(host, stage, "r0c2", tempo=5)
    poison(seed_of(host, "r0c2"))
    report, events = epoch(host)
    assert report.anomaly
    assert len(rollbacks(events)) == 1
    assert rollbacks(events)[0].pruned == ("r0c2",)
    assert restored(host)
    assert goes_on(host)


def test_nan_in_a_fossil_rolls_back_and_the_fossil_stays() -> None:
    host = with_fossil()
    epoch(host)
    poison(seed_of(host, "r0c0"))
    report, events = epoch(host)
    assert report.anomaly
    assert len(rollbacks(events)) == 1
    assert rollbacks(events)[0].pruned == ()
    assert host.model.report("r0c0").stage is Stage.FOSSILIZED
    assert restored(host)
    assert goes_on(host)


@pytest.mark.parametrize("isolation", get_args(Isolation)[:3])
@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_nan_in_an_isolated_seed_prunes_it_alone(stage: Stage, isolation: Isolation) -> None:
    lifecycle = LifecycleConfig(auto_advance=stage is Stage.TRAINING)
    poisoned, sound = (make_host(1, TrainingConfig(gates=OPEN, isolation=isolation, lifecycle=lifecycle)) for _ in range(2))
    for host in (poisoned, sound):
        epoch(host, germinate("r0c1"))
        assert host.model.report("r0c1").stage is stage
    poison(seed_of(poisoned, "r0c1"))
    report, events = epoch(poisoned)
    expected, _ = epoch(sound)
    pruned = [(e.slot, e.cause) for e in events if isinstance(e, StageChanged) and e.after is Stage.PRUNED]
    assert pruned == [("r0c1", "governor: not finite")]
    assert rollbacks(events) == []
    assert (report.anomaly, report.rollbacks) == ("", 0)
    assert (report.train_loss, report.val_loss) == (expected.train_loss, expected.val_loss)
    assert bits(dict(poisoned.model.host.state_dict())) == bits(dict(sound.model.host.state_dict())), "the host never felt it"


QUICK = GovernorConfig(warmup=2, patience=2, sigmas=1.0, factor=1.5, learned_below=0.9, snapshot_every=1)


def learned(governor: GovernorConfig) -> Host:
    host = make_host(0, TrainingConfig(gates=OPEN, governor=governor), widths=(8, 8, 8), train_size=400, epochs=60)
    for _ in range(4):
        epoch(host)
    return host


def test_divergence_rolls_back_after_its_patience_and_no_snapshot_is_taken_on_the_way() -> None:
    host = learned(QUICK)
    loss = epoch(host)[0].val_loss
    kept = host.snapshot
    assert kept.epoch == host.epoch
    with torch.no_grad():
        host.model.host.head.weight.mul_(1000.0)  # type: ignore[union-attr, operator]
    first, _ = epoch(host)
    assert first.anomaly == ""
    assert first.val_loss > 10 * loss
    assert not host.governor.healthy
    assert host.snapshot is kept
    second, events = epoch(host)
    assert "diverged" in second.anomaly
    assert rollbacks(events)[0].to_epoch == kept.epoch
    assert second.val_loss < 2 * loss
    assert restored(host)
    assert goes_on(host)


def collapse(host: Host) -> None:
    """Switch the last block off for good: behind a ReLU at zero nothing learns, and every class is as likely as the others."""
    norm = host.model.host.blocks[-1].features[1]  # type: ignore[index, union-attr]
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    nn.init.zeros_(host.model.host.head.bias)  # type: ignore[union-attr, arg-type]
    host.optimizer.state.clear()  # momentum would carry it away from there


@pytest.mark.parametrize(("chance_band", "why"), [(1.5, "chance"), (1.0, "uniform")])
def test_collapse_rolls_back(chance_band: float, why: str) -> None:
    host = learned(replace(QUICK, chance_band=chance_band))
    assert host.governor.has_learned
    collapse(host)
    report, events = epoch(host)
    assert why in report.anomaly
    assert len(rollbacks(events)) == 1
    assert report.val_loss < 0.9 * math.log(10)
    assert restored(host)
    assert goes_on(host)


def test_a_host_that_is_rolled_back_to_its_beginning_is_not_judged_as_one_that_had_learned() -> None:
    slow = GovernorConfig(warmup=2, learned_below=0.9, uniform_band=0.08, snapshot_every=50)
    host = make_host(0, TrainingConfig(governor=slow), widths=(4, 4, 8), epochs=60, learning_rate=0.01, schedule="constant")
    while not host.governor.has_learned:
        epoch(host)
        assert host.epoch < 30
    collapse(host)
    assert "uniform" in epoch(host)[0].anomaly
    reports = [epoch(host)[0] for _ in range(3)]
    assert abs(reports[0].val_loss - math.log(10)) < 0.08 * math.log(10), "else this shows nothing"
    assert [report.anomaly for report in reports] == ["", "", ""]


def test_a_host_is_put_back_to_the_same_snapshot_once_unless_it_is_not_finite() -> None:
    host = learned(QUICK)
    collapse(host)
    assert "chance" in epoch(host)[0].anomaly
    kept = host.snapshot
    assert kept.restored
    collapse(host)
    for _ in range(3):
        assert epoch(host)[0].anomaly == ""
        assert host.snapshot is kept, "no snapshot of a host that has collapsed"
    poison(host.model.host)
    assert "nan" in epoch(host)[0].anomaly
    assert restored(host)
    assert goes_on(host)


def test_the_first_healthy_epoch_after_a_rollback_is_one_to_go_back_to() -> None:
    host = learned(replace(QUICK, snapshot_every=50))
    for _ in range(2):
        collapse(host)
        assert "chance" in epoch(host)[0].anomaly
        assert epoch(host)[0].anomaly == ""
        assert (host.snapshot.epoch, host.snapshot.restored) == (host.epoch, False)


LEANS: dict[str, Any] = {"widths": (4, 4, 8), "kernel": 1, "train_size": 600, "epochs": 60}
"""A host that is nothing without its first seed."""


@cache
def leaning_state() -> dict[str, Any]:
    """That of a host with a seed in HOLDING that is worth 60 points to it."""
    host = make_host(0, **LEANS)
    grow_to(host, Stage.HOLDING, "r0c0", "conv_heavy")
    report = [epoch(host)[0] for _ in range(20)][-1]
    assert report.val_accuracy > 80.0
    assert report.seeds[0].contribution is not None
    assert report.seeds[0].contribution > 60.0
    assert report.rollbacks == 0
    return host.state()


def leaning() -> Host:
    host = make_host(0, **LEANS)
    host.load_state(copied(leaning_state()))
    return host


TAKING = [
    Decision(op=Op.PRUNE, slot="r0c0"),
    Decision(op=Op.PRUNE, slot="r0c0", alpha_speed=3),
    Decision(op=Op.SET_ALPHA_TARGET, slot="r0c0", alpha_target=0.25),
]


@pytest.mark.parametrize("taking", TAKING, ids=["at once", "by a ramp", "in part"])
def test_what_a_decision_takes_from_a_host_is_no_anomaly_and_the_host_learns_without_it(taking: Decision) -> None:
    host = leaning()
    train_epoch(host)
    host.model.act(taking)
    events = host.end_epoch()
    assert (host.governor.best_accuracy < 30.0, len(host.governor.losses)) == (True, 0), "what it was measured to be without the seed"
    accuracies = []
    for _ in range(8):
        accuracies.append(train_epoch(host).val_accuracy)
        events += host.end_epoch()
    assert rollbacks(events) == []
    assert accuracies[-1] > max(20.0, min(accuracies))
    assert host.pruned == (taking.op is Op.PRUNE)


def test_a_rollback_to_a_host_that_is_nothing_without_its_seeds_is_not_repeated() -> None:
    host = leaning()
    collapse(host)
    report = epoch(host)[0]
    assert report.anomaly
    assert report.val_accuracy < 20.0, "the snapshot's host leans on the seed that was pruned"
    after = [epoch(host)[0] for _ in range(8)]
    assert {each.anomaly for each in after} == {""}
    assert after[-1].val_accuracy > 20.0


@pytest.mark.parametrize("breaks", [collapse, lambda host: poison(host.model.host)], ids=["collapse", "nan"])
def test_a_host_that_breaks_as_a_seed_leaves_that_it_did_not_need_is_rolled_back(breaks: Any) -> None:
    host = learned(QUICK)
    grow_to(host, Stage.HOLDING, "r0c1", "norm")
    epoch(host, Decision(op=Op.PRUNE, slot="r0c1"))
    assert host.governor.losses == deque()
    breaks(host)
    report, events = epoch(host)
    assert report.anomaly
    assert len(rollbacks(events)) == 1
    assert goes_on(host)


def test_the_governor_goes_on_where_seeds_come_in_or_leave_without_influence() -> None:
    host = make_host(1, EASY, epochs=60)
    epoch(host, germinate("r0c1"), germinate("r0c2"))
    epoch(host, Decision(op=Op.PRUNE, slot="r0c2"))
    epoch(host, Decision(op=Op.ADVANCE, slot="r0c1"))
    while host.model.report("r0c1").stage is not Stage.HOLDING:
        epoch(host)
    epoch(host, Decision(op=Op.FOSSILIZE, slot="r0c1"))
    epoch(host)
    assert len(host.governor.losses) == host.epoch


@pytest.mark.parametrize("broken", [False, True])
def test_a_host_saved_after_a_prune_or_a_rollback_goes_on_as_the_original_would(broken: bool) -> None:
    host = make_host(1, EASY, epochs=60)
    grow_to(host, Stage.HOLDING, "r0c1")
    if broken:
        poison(host.model.host)
    train_epoch(host)
    if not broken:
        host.model.act(Decision(op=Op.PRUNE, slot="r0c1"))
    host.end_epoch()
    assert host.snapshot.restored is broken
    other = make_host(1, EASY, epochs=60)
    other.load_state(copied(host.state()))
    for _ in range(3):
        assert facts(train_epoch(host)) == facts(train_epoch(other))
        assert host.end_epoch() == other.end_epoch()
    assert bits(host.state()) == bits(other.state())


def test_a_fossil_from_unhealthy_times_survives_a_rollback() -> None:
    host = make_host(1, TrainingConfig(gates=OPEN), epochs=60)
    grow_to(host, Stage.HOLDING, "r0c0")
    train_epoch(host)
    before, host.governor.streak = host.snapshot, 1
    host.model.act(Decision(op=Op.FOSSILIZE, slot="r0c0"))
    host.end_epoch()
    kept = bits(dict(seed_of(host, "r0c0").state_dict()))
    same_host = {name: value for name, value in host.snapshot.tensors.items() if name.startswith("host.")}
    assert bits(same_host) == bits({n: v for n, v in before.tensors.items() if n.startswith("host.")}), "the host's part stays healthy"
    poison(seed_of(host, "r0c0"))
    report, _ = epoch(host)
    assert report.anomaly
    assert math.isfinite(report.val_loss)
    assert bits(dict(seed_of(host, "r0c0").state_dict())) == kept
    assert goes_on(host)


def test_the_running_statistics_of_a_fossil_are_restored_too() -> None:
    register_blueprint("normed", Topology.MAP2D, purpose="has running statistics")(lambda shape: nn.BatchNorm2d(shape.width))
    try:
        host = make_host(1, epochs=60)
        grow_to(host, Stage.FOSSILIZED, "r0c0", "normed")
        poison(host.model.host)
        report, _ = epoch(host)
        assert report.anomaly
        assert math.isfinite(report.val_loss)
        assert restored(host)
        assert goes_on(host)
    finally:
        unregister("normed", Topology.MAP2D)


def test_a_saved_host_rolls_back_as_the_original_would() -> None:
    host = with_fossil()
    grow_to(host, Stage.BLENDING, "r0c1", tempo=10)
    other = make_host(1, epochs=60)
    other.load_state(copied(host.state()))
    for each in (host, other):
        poison(each.model.host)
    assert facts(train_epoch(host)) == facts(train_epoch(other))
    assert host.end_epoch() == other.end_epoch()
    assert bits(host.state()) == bits(other.state())


def test_the_snapshot_of_a_new_host_is_the_host_as_it_is():
    host = make_host(0)
    taken = host._snapshot()
    assert host.snapshot.epoch == taken.epoch == 0
    assert host.snapshot.governor == taken.governor
    assert host.snapshot.momentum == taken.momentum == {}
    assert host.snapshot.tensors.keys() == taken.tensors.keys()
    for name, value in host.snapshot.tensors.items():
        assert torch.equal(value, taken.tensors[name])
        assert value.data_ptr() != host.model.state_dict()[name].data_ptr(), "a copy"
