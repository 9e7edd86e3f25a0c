"""Fleets on a GPU, where steps and measurements are captured and replayed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from esper.leyline.reports import Isolation
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.training.captured import Captured, GraphPool
from esper.tolaria.training.engine import FleetEngine, SerialEngine
from esper.tolaria.training.host import Host
from tests.tolaria.doubles import double_host, variant
from tests.tolaria.fleets import (
    GROWTH,
    LEARNED,
    SLOW,
    DroppingDigits,
    Step,
    after,
    assert_close,
    check_alike,
    check_that_it_goes_on,
    growing,
    learned,
    on_cpu,
    records,
    report_of,
)
from tests.tolaria.small import EASY, bits, facts, make_host

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

LONG = [[*plan, Step(), Step(), Step(1, 1), Step()] for plan in GROWTH]
"""Epochs in which nothing changes are there too, so that measurements are captured and replayed."""
ADAM = {"optimizer": "adamw", "learning_rate": 0.01}


def captured(engine: FleetEngine) -> list[Captured]:
    """All work that was done more than once."""
    fleets = [fleet for kept in engine._fleets.values() for fleet in kept]
    steps = [step.work for fleet in fleets for step in fleet._steps.values()]
    measurements = [measurement for fleet in fleets for measurement in fleet._measurements.values()]
    passes = [each.work for measurement in measurements for each in measurement.passes.values()]
    return [work for work in (*steps, *passes, *(each.prepare for each in measurements)) if work.graph is not None]


@pytest.mark.parametrize("isolation", get_args(Isolation))
@pytest.mark.parametrize("member", [{}, ADAM], ids=["sgd", "adamw"])
def test_a_fleet_gives_what_its_hosts_give_one_by_one(isolation: Isolation, member: dict[str, object]) -> None:
    config = replace(EASY, isolation=isolation)
    engine = check_alike(lambda: growing(config, "cuda", **member), LONG, None)
    assert engine.notes == []
    assert captured(engine)


def test_validation_in_many_parts_is_right_though_it_is_captured_before_what_prepares_it() -> None:
    config = replace(EASY, eval_batch=64)
    alone, together = ([double_host(seed, config, "cuda") for seed in range(3)] for _ in range(2))
    engine = FleetEngine()
    for _ in range(4):
        expected, found = SerialEngine().run_epoch(alone), engine.run_epoch(together)
        for host in (*alone, *together):
            host.end_epoch()
        assert_close([report_of(each) for each in expected], [report_of(each) for each in found])
    assert captured(engine)


def test_hosts_of_a_usual_size_become_as_good_as_one_by_one() -> None:
    def ended(engine: FleetEngine | SerialEngine) -> float:
        hosts = [make_host(seed, device="cuda", widths=(8, 8, 8), kernel=3, train_size=0, batch=64) for seed in range(13)]
        for _ in range(5):
            reports = engine.run_epoch(hosts)
            for host in hosts:
                host.end_epoch()
        return sum(report.val_accuracy for report in reports) / len(hosts)

    assert ended(FleetEngine()) == pytest.approx(ended(SerialEngine()), abs=2.0)


def test_hosts_break_and_are_rolled_back_as_alone_and_the_others_go_on() -> None:
    harmed = [LONG[0], [replace(step, harm={1: "seed", 4: "host"}.get(at, "")) for at, step in enumerate(LONG[1])], LONG[2]]
    engine = check_alike(lambda: growing(EASY, "cuda"), harmed, None)
    assert captured(engine)


def test_hosts_with_dropout_drop_what_they_drop_alone() -> None:
    dropping = variant(DroppingDigits, "dropping")
    engine = check_alike(lambda: growing(EASY, "cuda", of=dropping), GROWTH, None)
    assert engine.notes == []


def test_the_same_fleet_twice_gives_the_same_numbers() -> None:
    runs = []
    for _ in range(2):
        hosts = growing(EASY, "cuda")
        reports = after(FleetEngine(), hosts, LONG)
        runs.append(([[facts(each) for each in mine] for mine in reports], bits([on_cpu(learned(host)) for host in hosts])))
    assert runs[0] == runs[1]


def test_a_fleet_on_a_gpu_gives_what_hosts_on_a_cpu_give() -> None:
    there, here = growing(EASY, "cuda"), growing(EASY, "cpu")
    after(FleetEngine(), there, GROWTH)
    after(SerialEngine(), here, GROWTH)
    for host, other in zip(there, here, strict=True):
        assert_close(on_cpu(learned(host)), learned(other), LEARNED)
        assert_close(records(host), records(other))


@pytest.mark.parametrize("cut", [1, 3, 6])
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_what_is_saved_goes_on_bit_for_bit(double: bool, cut: int, tmp_path: Path) -> None:
    config = replace(EASY, isolation="shadow")
    few = [[LONG[0], LONG[1][:5], LONG[2]], *([plan[at:] for plan in LONG] for at in (1, 2))]
    plans = [plan for some in few for plan in some]

    def build() -> list[Host]:
        if double:
            return [double_host(seed, config, "cuda", **SLOW) for seed in range(len(plans))]
        return [make_host(seed, config, device="cuda", **{**SLOW, "widths": (2, 4)}) for seed in range(len(plans))]

    check_that_it_goes_on(build, plans, None, cut, CheckpointStore(tmp_path))


@pytest.mark.parametrize("member", [{}, ADAM], ids=["sgd", "adamw"])
def test_what_is_saved_on_a_gpu_goes_on_on_a_cpu(member: dict[str, object]) -> None:
    straight, saved, fresh = growing(EASY, "cuda", **member), growing(EASY, "cuda", **member), growing(EASY, "cpu", **member)
    after(FleetEngine(), straight, GROWTH)
    after(FleetEngine(), saved, part(0, 3))
    for host, before in zip(fresh, saved, strict=True):
        host.load_state(on_cpu(copy.deepcopy(before.state())))
    after(SerialEngine(), fresh, part(3, 5))
    for host, other in zip(straight, fresh, strict=True):
        assert_close(on_cpu(learned(host)), learned(other), LEARNED)


def test_memory_for_what_is_captured_serves_again_when_all_of_it_was_dropped() -> None:
    pool, x = GraphPool(), torch.zeros(3, device="cuda")
    for done in (3, 6):
        with torch.cuda.stream(torch.cuda.Stream()):
            work = Captured(lambda: x.copy_(x + 1), pool)
            for _ in range(3):
                work()
        torch.cuda.synchronize()
        assert x.tolist() == [done] * 3
        del work
        gc.collect()
        torch.cuda.empty_cache()


def part(begin: int, end: int) -> Sequence[Sequence[Step]]:
    """Some epochs of the growth."""
    return [plan[begin:end] for plan in GROWTH]
