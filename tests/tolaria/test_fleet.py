"""A fleet gives what its hosts give one by one: every report, event, parameter and optimiser state, however differently they grow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, get_args

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.kasmina.blueprints import blueprint as register_blueprint
from esper.kasmina.blueprints import unregister
from esper.kasmina.stacking.errors import Unstackable
from esper.leyline.reports import EpochReport, Isolation, Topology
from esper.tolaria.tasks import Member
from esper.tolaria.training.engine import FleetEngine, SerialEngine
from esper.tolaria.training.fleet import measured_bytes
from esper.tolaria.training.fleet_work import phases_of
from esper.tolaria.training.host import Host
from esper.tolaria.training.stackable import check_fleet
from tests.kasmina import networks
from tests.tolaria.doubles import DoubleDigits, double_host, double_text_host, variant
from tests.tolaria.fleets import (
    GROWTH,
    LEARNED,
    ROOMS,
    SLOW,
    UNSTACKABLE,
    DroppingDigits,
    Step,
    act,
    after,
    assert_close,
    check_alike,
    growing,
    learned,
    records,
    report_of,
)
from tests.tolaria.small import EASY, bits, facts

EPOCHS = 5
kinds = st.fixed_dictionaries(
    {
        "widths": st.sampled_from([(2, 4), (3, 3)]),
        "slots": st.sampled_from(["before", "both"]),
        "optimizer": st.sampled_from(["sgd", "adamw"]),
        "augment": st.booleans(),
    }
)
"""What hosts of one fleet have in common."""
members = st.fixed_dictionaries(
    {
        "train_size": st.sampled_from([96, 96, 70, 40]),
        "momentum": st.sampled_from([0.9, 0.9, 0.5, 0.0]),
        "label_noise": st.sampled_from([0.0, 0.2]),
        "weight_decay": st.sampled_from([0.0, 5e-4]),
        "learning_rate": st.sampled_from([0.02, 0.01]),
    }
)
"""And what each may have of its own."""
steps = st.builds(Step, st.integers(0, 30), st.integers(0, 30), st.sampled_from([""] * 14 + ["host", "seed"]))
histories = st.lists(steps, min_size=EPOCHS, max_size=EPOCHS)


@settings(max_examples=3, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # to shrink an example takes minutes
@given(
    st.tuples(kinds, kinds),
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), members, histories), min_size=2, max_size=3),
    st.fixed_dictionaries(
        {
            "isolation": st.sampled_from(get_args(Isolation)),
            "recalibrate": st.sampled_from([256, 256, 40, 0]),
            "eval_batch": st.sampled_from([2048, 50]),
        }
    ),
    st.sampled_from(["exact", "spare"]),
)
def test_whatever_grows_a_fleet_gives_what_its_hosts_give_one_by_one(
    kinds: tuple[dict[str, Any], ...], fleet: list[tuple[int, dict[str, Any], list[Step]]], training: dict[str, Any], room: str
) -> None:
    config = replace(EASY, **training)

    def build() -> list[Host]:
        return [double_host(seed, config, **{**SLOW, **kinds[kind], **member}) for seed, (kind, member, _) in enumerate(fleet)]

    engine = check_alike(build, [history for *_, history in fleet], ROOMS[room])
    assert engine.notes == []


def test_room_that_seeds_have_left_learns_nothing() -> None:
    later = [[*plan, Step(), Step(1, 1)] for plan in GROWTH]
    check_alike(lambda: growing(replace(EASY, isolation="shadow"), "cpu"), later, ROOMS["spare"])


def test_text_grows_as_it_does_one_by_one() -> None:
    plans = [[Step(1, 13), Step(1, 1), Step(1, 1)], [Step(4, 0), Step(1, 10), Step(1, 1)]]
    engine = check_alike(lambda: [double_text_host(seed, learning_rate=0.01) for seed in range(2)], plans, None)
    assert engine.notes == []


class OddHost(nn.Module):
    """Little of it is an ordinary layer: a parameter of its own, a tuple between its blocks, layers that run through vmap, and a batch norm
    that stays in eval mode while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.bend = nn.PReLU(4)
        self.block = networks.TupleBlock(4)
        self.last = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x, weight = self.block(self.bend(self.norm(self.stem(images)) * self.scale), temperature=0.5)
        logits: Tensor = self.head(self.last((x * weight).mean((2, 3))))
        return logits

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.norm.eval()
        return self


class OddDigits(DoubleDigits):
    __slots__ = ()

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        return OddHost().double(), {"r0c0": "stem", "r0c1": "block"}


def test_odd_hosts_grow_as_they_do_one_by_one() -> None:
    odd, config = variant(OddDigits, "odd"), replace(EASY, isolation="shadow")
    engine = check_alike(lambda: growing(config, of=odd)[:2], GROWTH[:2], ROOMS["spare"])
    assert engine.notes == []


# Neighbours


def test_what_a_host_learns_does_not_depend_on_its_neighbours() -> None:
    alone, among, turned = growing(), growing(), growing()
    reports = after(FleetEngine(), alone[:1], GROWTH[:1])[0]
    others = after(FleetEngine(), among, GROWTH)[0]
    last = after(FleetEngine(), turned[::-1], GROWTH[::-1])[-1]
    for theirs, host in ((others, among[0]), (last, turned[0])):
        assert_close([report_of(report) for report in reports], [report_of(report) for report in theirs])
        assert_close(learned(alone[0]), learned(host), LEARNED)


@pytest.mark.parametrize(("room", "harm"), [("exact", "seed"), ("spare", "host")])
def test_a_host_that_breaks_changes_nothing_in_the_others(room: str, harm: str) -> None:
    broken = [GROWTH[0], [replace(step, harm=harm if at == 1 else "") for at, step in enumerate(GROWTH[1])], GROWTH[2]]
    well, ill = growing(), growing()
    expected, found = after(FleetEngine(ROOMS[room]), well, GROWTH), after(FleetEngine(ROOMS[room]), ill, broken)
    assert [report.rollbacks for report in found[1]][-1] == (harm == "host")
    for at in (0, 2):
        # Bit for bit while it is there; once it has gone others are fewer in their layers, which are rounded differently.
        assert [facts(report) for report in expected[at][:3]] == [facts(report) for report in found[at][:3]]
        assert_close([report_of(report) for report in expected[at]], [report_of(report) for report in found[at]])
        assert_close(learned(well[at]), learned(ill[at]), LEARNED)
    assert all(p.isfinite().all() for p in ill[1].model.parameters())


def test_a_host_is_rolled_back_in_a_fleet_as_alone() -> None:
    harmed = [[replace(step, harm="host" if at == 2 else "") for at, step in enumerate(plan)] for plan in GROWTH]
    engine = check_alike(growing, harmed, ROOMS["exact"])
    assert engine.notes == []


# Coming and going


@pytest.mark.parametrize("room", ROOMS)
def test_hosts_come_and_go(room: str) -> None:
    """Each is there for some epochs: what it does is what it does alone, and once it has gone nothing touches it."""
    present = [(0, 4), (0, 2), (1, 5), (3, 5)]
    alone, together = ([double_host(seed, **SLOW) for seed in range(4)] for _ in range(2))
    fleet, gone = FleetEngine(ROOMS[room]), {}
    for epoch in range(5):
        now = [at for at, (begin, end) in enumerate(present) if begin <= epoch < end]
        for engine, hosts in ((SerialEngine(), alone), (fleet, together)):
            for at, report in zip(now, engine.run_epoch([hosts[at] for at in now]), strict=True):
                act(hosts[at], GROWTH[at % 3][epoch - present[at][0]])
                if engine is fleet:
                    assert report.epoch == epoch - present[at][0] + 1
        gone.update({at: bits(learned(together[at])) for at, (_, end) in enumerate(present) if end == epoch + 1})
    for at, (host, other) in enumerate(zip(alone, together, strict=True)):
        assert_close(learned(host), learned(other), LEARNED)
        assert_close(records(host), records(other))
        assert gone[at] == bits(learned(other))


def test_engines_can_take_turns() -> None:
    adam = {"optimizer": "adamw", "learning_rate": 0.01}  # which counts its steps
    alone, turns = growing(**adam), growing(**adam)
    after(SerialEngine(), alone, GROWTH)
    for epoch, engine in enumerate([SerialEngine(), FleetEngine(), SerialEngine(), FleetEngine(ROOMS["spare"]), SerialEngine()]):
        after(engine, turns, [plan[epoch : epoch + 1] for plan in GROWTH])
    for host, other in zip(alone, turns, strict=True):
        assert_close(learned(host), learned(other), LEARNED)
        assert_close(records(host), records(other))


@pytest.mark.parametrize(
    ("room", "member"), [("spare", {}), ("exact", {"optimizer": "adamw", "learning_rate": 0.01})], ids=["sgd", "adamw"]
)
def test_a_saved_fleet_goes_on_bit_for_bit(room: str, member: dict[str, Any]) -> None:
    straight, saved = growing(**member), growing(**member)
    first, rest = [plan[:3] for plan in GROWTH], [plan[3:] for plan in GROWTH]
    expected = after(FleetEngine(ROOMS[room]), straight, GROWTH)
    after(FleetEngine(ROOMS[room]), saved, first)
    fresh = growing(**member)
    for host, before in zip(fresh, saved, strict=True):
        host.load_state(copy.deepcopy(before.state()))
    found = after(FleetEngine(ROOMS[room]), fresh, rest)
    for reports, mine, host, other in zip(expected, found, straight, fresh, strict=True):
        assert [facts(report) for report in reports[3:]] == [facts(report) for report in mine]
        assert bits(learned(host)) == bits(learned(other))


def test_a_state_loaded_into_a_host_that_is_in_a_fleet_is_taken_in() -> None:
    hosts, engine = growing(), FleetEngine()
    after(engine, hosts, [plan[:2] for plan in GROWTH])
    states = [copy.deepcopy(host.state()) for host in hosts]
    expected = after(engine, hosts, [plan[2:] for plan in GROWTH])
    for host, state in zip(hosts, states, strict=True):
        host.load_state(state)
    found = after(engine, hosts, [plan[2:] for plan in GROWTH])
    for reports, again in zip(expected, found, strict=True):
        assert_close([report_of(report) for report in reports], [report_of(report) for report in again])


def test_a_fleet_tells_its_progress_and_reports_in_order() -> None:
    hosts = [double_host(0, epochs=5, **SLOW), double_host(1, epochs=7, widths=(3,), **SLOW), double_host(2, epochs=6, **SLOW)]
    told: list[int] = []
    reports = FleetEngine().run_epoch(hosts, told.append)
    assert [report.budget for report in reports] == [5, 7, 6]
    assert told == [2, 3]
    assert FleetEngine().run_epoch([]) == []


# What cannot be in a fleet


class Mixing(nn.Module):
    """Mixes the samples of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.1 * x.mean(0)


class MixingDigits(DoubleDigits):
    __slots__ = ()

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        host, slots = DoubleDigits.make_host(self, member, classes)
        host.head = nn.Sequential(Mixing(), host.get_submodule("head"))
        return host, slots


class LookingDigits(DoubleDigits):
    """Its loss looks at the values."""

    __slots__ = ()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        loss = DoubleDigits.loss(self, logits, y)
        return loss if float(loss.detach()) < 1e6 else loss * 0.0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(MixingDigits, "module 'head.0' gives other outputs"), (LookingDigits, "the task's loss does not run for several hosts at once")],
)
def test_hosts_that_cannot_be_stacked_are_trained_one_by_one_and_that_is_told_once(kind: type[DoubleDigits], reason: str) -> None:
    odd = variant(kind, "odd")
    engine = check_alike(lambda: [double_host(seed, of=odd, **SLOW) for seed in range(2)], [plan[:2] for plan in GROWTH[:2]], None)
    (note,) = engine.notes
    assert note.startswith("hosts of task 'odd' are trained one by one: ")
    assert reason in note
    assert "\n" not in note


def test_compiled_hosts_are_trained_one_by_one() -> None:
    with pytest.raises(Unstackable, match=r"training\.compile is set, and a fleet runs as written"):
        check_fleet(double_host(0, replace(EASY, compile="eager")))


@pytest.mark.parametrize(("room", "isolation"), [("exact", "shadow"), ("spare", "boost")])
def test_hosts_with_dropout_drop_what_they_drop_alone(room: str, isolation: Isolation) -> None:
    dropping, config = variant(DroppingDigits, "dropping"), replace(EASY, isolation=isolation)
    engine = check_alike(lambda: growing(config, of=dropping), [plan[:4] for plan in GROWTH], ROOMS[room])
    assert engine.notes == []


@pytest.mark.parametrize(
    ("isolation", "member"),
    [("shadow", {}), ("boost", {"optimizer": "adamw", "learning_rate": 0.01}), ("none", {"of": variant(DroppingDigits, "dropping")})],
)
def test_hosts_with_different_amounts_of_data_are_in_one_fleet_where_room_is_spare(isolation: Isolation, member: dict[str, Any]) -> None:
    amounts = (120, 30, 97)  # batches of 48, 48, 24; of 30; of 48 and 49

    def build() -> list[Host]:
        config = replace(EASY, isolation=isolation, recalibrate=64)
        return [double_host(seed, config, **{**SLOW, "train_size": size, **member}) for seed, size in enumerate(amounts)]

    engine = check_alike(build, GROWTH, ROOMS["spare"])
    assert engine.notes == []
    ((fleet,),) = engine._fleets.values()
    assert len(fleet.row_of) == len(amounts)


def test_an_epoch_is_taken_in_as_few_steps_as_its_batches_allow() -> None:
    found = phases_of({0: (48, 48, 24), 1: (30,), 2: (48, 49), 4: (48, 48, 24)})
    assert [(each.size, each.steps, sorted(each.rows)) for each in found] == [
        (48, 1, [0, 2, 4]),
        (49, 1, [2]),
        (48, 1, [0, 4]),
        (30, 1, [1]),
        (24, 1, [0, 4]),
    ]


@contextmanager
def unstackable_blueprint() -> Iterator[None]:
    @register_blueprint(UNSTACKABLE, Topology.MAP2D, purpose="mixes the samples of a batch")
    def build(shape: Any) -> nn.Module:
        return nn.Sequential(Mixing(), nn.Conv2d(shape.width, shape.width, 1))

    try:
        yield
    finally:
        unregister(UNSTACKABLE, Topology.MAP2D)


@pytest.mark.parametrize("room", ROOMS)
def test_a_host_leaves_the_fleet_only_while_it_holds_what_cannot_be_stacked(room: str) -> None:
    engine, alone, hosts = FleetEngine(ROOMS[room]), growing()[:2], growing()[:2]
    trained: list[list[Host]] = []
    engine.serial = Spy(trained)
    with unstackable_blueprint():
        for epoch in range(5):
            del trained[:]
            for each, mine in ((SerialEngine(), alone), (engine, hosts)):
                each.run_epoch(mine)
                if epoch == 1:
                    mine[0].model.germinate("r0c0", UNSTACKABLE)
                if epoch == 3:
                    mine[0].model.prune("r0c0")
                for host in mine:
                    host.end_epoch()
            assert trained == ([[hosts[0]]] if epoch in (2, 3) else [])
            scores = [each.score(mine, lambda host: host.data.val) for each, mine in ((SerialEngine(), alone), (engine, hosts))]
            assert_close([score.loss for score in scores[0]], [score.loss for score in scores[1]])
    for host, other in zip(alone, hosts, strict=True):
        assert_close(learned(host), learned(other), LEARNED)
    (note,) = engine.notes
    assert "are trained one by one while they hold the blueprint 'mixing' at slot 'r0c0': module 'branch.0' gives other outputs" in note


class Spy(SerialEngine):
    """Notes what is trained serially."""

    def __init__(self, trained: list[list[Host]]) -> None:
        self.trained = trained

    def run_epoch(self, hosts: Sequence[Host], progress: Callable[[int], None] | None = None) -> list[EpochReport]:
        self.trained.append(list(hosts))
        return super().run_epoch(hosts, progress)


def test_what_is_measured_lies_where_it_lay_so_that_what_was_captured_reads_it_there() -> None:
    engine, hosts = FleetEngine(spare=True), growing()
    places = []
    for step in (Step(1, 1), Step(), Step()):
        engine.run_epoch(hosts)
        for host in hosts:
            act(host, step)
        (fleet,) = (fleet for kept in engine._fleets.values() for fleet in kept)
        views = [each.view for each in fleet._measurements.values()]
        tensors = [values for view in views for values in (view.values, *(bound.values for bound in view.bounds.values()))]
        places.append([(name, each.data_ptr()) for values in tensors for name, each in values.items()])
    assert places[1] == places[2]


def test_a_measurement_counts_with_what_tokens_become_and_not_with_their_few_bytes() -> None:
    text, digits = double_text_host(0), double_host(0)
    assert text.split.x.shape[1:] == (64,)
    assert digits.split.x.shape[1:] == (1, 8, 8)
    # 64 tokens of eight bytes; eight features of eight bytes for each, and 98 logits of four bytes.
    assert measured_bytes(text) == max(32 * 64 * 8, 8 * 64 * 8 * 8, 4 * 64 * 98 * 4) == 100_352
    # 64 pixels of eight bytes; two channels of as many; ten logits.
    assert measured_bytes(digits) == max(32 * 64 * 8, 8 * 2 * 64 * 8, 4 * 10 * 4) == 16_384
