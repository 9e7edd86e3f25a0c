"""Room in fleets: what is saved goes on in storage of the same shapes, bit for bit, and what was forgotten gets its room back."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from esper.kasmina.stacking.room import Room, with_some_to_spare
from esper.leyline.reports import Isolation
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.training import engine as engines
from esper.tolaria.training import stackable
from esper.tolaria.training.engine import FleetEngine, SerialEngine
from esper.tolaria.training.host import Host
from esper.tolaria.training.stackable import fleet_key, kind_of
from tests.tolaria.fleets import GROWTH, LEARNED, SLOW, Step, act, after, assert_close, check_that_it_goes_on, growing, learned, shapes
from tests.tolaria.small import EASY, make_host

EPOCHS = 6
steps = st.builds(Step, st.integers(0, 30), st.integers(0, 30), st.sampled_from([""] * 14 + ["host", "seed"]))


# Room itself


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300)), max_size=20))
def test_room_is_enough_never_shrinks_and_is_the_same_when_it_was_saved(asked: list[tuple[str, int]]) -> None:
    room, found = Room(spare=True).within("here"), {}
    for name, needed in asked:
        found[name] = room.rows(name, needed)
        assert max(needed, found[name]) == found[name] <= max(max(n for other, n in asked if other == name) * 5 // 4 + 1, needed)
        assert with_some_to_spare(found[name]) == found[name]
    again = Room(spare=True, sizes=dict(room.sizes)).within("here")
    assert {name: again.rows(name, 0) for name in found} == {name: room.rows(name, 0) for name in found}
    assert all(Room(spare=True, sizes=room.sizes).within("there").rows(name, 0) == 0 for name in found)


def test_exact_room_is_what_is_needed_and_remembers_nothing() -> None:
    room = Room(spare=False)
    assert [room.rows("a", needed) for needed in (7, 3, 0, 5)] == [7, 3, 0, 5]
    assert room.sizes == {}


# Going on

HOLES = [[Step(1), Step(5)], [Step()], [Step(1)] + [Step()] * 5, [Step(1)] + [Step()] * 5, [Step(), Step(1)] + [Step()] * 4, [Step(2, 2)]]
"""A host ends at once, and a seed is pruned while another one comes: what is left is not in the first rows."""
SHADOW: dict[str, Any] = {"isolation": "shadow", "eval_batch": 2048}


@settings(max_examples=3, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # to shrink an example takes minutes
@example(HOLES, 3, (2, 4), SHADOW, True, 0)
@example(HOLES, 3, (2, 4), SHADOW, True, stackable.SHORT_EPOCH)
@example(HOLES, 3, (2, 4), SHADOW, False, 0)
@given(
    st.lists(st.lists(steps, min_size=2, max_size=EPOCHS), min_size=2, max_size=6),
    st.integers(1, EPOCHS - 1),
    st.sampled_from([(2, 4), (3, 3)]),
    st.fixed_dictionaries({"isolation": st.sampled_from(get_args(Isolation)), "eval_batch": st.sampled_from([2048, 50])}),
    st.sampled_from([True, True, False]),
    st.sampled_from([stackable.SHORT_EPOCH, 0]),
)
def test_saved_at_any_epoch_hosts_go_on_in_the_same_rows_bit_for_bit(
    plans: list[list[Step]], cut: int, widths: tuple[int, ...], training: dict[str, Any], spare: bool, short: int
) -> None:
    config = replace(EASY, **training)
    plans = [plans[0] + [Step()] * (EPOCHS - len(plans[0])), *plans[1:]]

    def build() -> list[Host]:
        """In single precision, which shows any other order of sums; the last of several has an architecture of its own."""
        own = [widths] * (len(plans) - 1) + [(4, 4)]
        return [make_host(seed, config, **{**SLOW, "widths": each}) for seed, each in enumerate(own)]

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(stackable, "SHORT_EPOCH", short)
        check_that_it_goes_on(build, plans, spare, cut, CheckpointStore(Path(folder)))


@pytest.mark.parametrize("spare", [True, False])
def test_the_state_of_another_engine_or_device_leaves_a_fleet_as_it_is(spare: bool) -> None:
    straight, others = growing(), [growing(), growing()]
    after(FleetEngine(spare), straight, GROWTH)
    for hosts, state in zip(others, (SerialEngine().state([]), _elsewhere(spare)), strict=True):
        engine = FleetEngine(spare)
        after(engine, hosts, [plan[:3] for plan in GROWTH])
        engine.load_state(state, hosts)
        after(engine, hosts, [plan[3:] for plan in GROWTH])
        for host, other in zip(straight, hosts, strict=True):
            assert_close(learned(host), learned(other), LEARNED)


def _elsewhere(spare: bool) -> dict[str, Any]:
    """The state of a fleet of other hosts than those of `growing`."""
    engine, hosts = FleetEngine(spare), [make_host(seed, **SLOW) for seed in range(3)]
    after(engine, hosts, GROWTH)
    return engine.state(hosts)


def test_the_name_of_a_kind_is_that_of_what_it_stands_for() -> None:
    kinds = [kind_of(fleet_key(make_host(seed, **{**SLOW, **member}))) for seed, member in enumerate([{}, {}, {"batch": 16}])]
    assert kinds[0] == kinds[1] != kinds[2]


# Fleets that are forgotten


def test_a_fleet_that_was_forgotten_gets_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FLEETS_KEPT", 1)
    monkeypatch.setattr(stackable, "SHORT_EPOCH", 0)
    hosts, engine, seen = [make_host(seed, **SLOW) for seed in range(6)], FleetEngine(spare=True), []
    pruned = Step(5, 5)
    for count, step in ((2, Step(1, 13)), (2, Step()), (6, pruned), (2, Step())):
        engine.run_epoch(hosts[:count])
        ((fleet,),) = engine._fleets.values()
        seen.append((fleet, shapes(fleet, hosts)))
        for host in hosts[:count]:
            act(host, step)
    (kept, there), (_, many), (again, back) = seen[1:]
    assert again is not kept
    assert there["hosts"] == back["hosts"] != many["hosts"]
    assert [each[:2] for each in there["seeds"]] == [each[:2] for each in back["seeds"]]
    assert [all(of for *_, of in each["seeds"]) for each in (there, back)] == [True, False], "room for what is not here now"
    assert there["views"] == back["views"]


def test_unstackable_hosts_are_told_once_though_the_engine_is_another() -> None:
    hosts = [make_host(seed, replace(EASY, compile="eager"), **SLOW) for seed in range(2)]
    first, second = FleetEngine(), FleetEngine()
    with torch.compiler.set_stance("force_eager"):
        first.run_epoch(hosts)
        second.load_state(first.state(hosts), hosts)
        second.run_epoch(hosts)
    assert [len(first.drain_notes()), len(second.drain_notes())] == [1, 0]
