"""Fleets that grow, and how what became of their hosts is compared with what becomes of them one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.blueprints import names
from esper.leyline.actions import Curve, Decision, Op, Style
from esper.leyline.events import Event, GateChecked
from esper.leyline.reports import EpochReport
from esper.leyline.stages import Stage
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.tasks import Member
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import Engine, FleetEngine, SerialEngine
from esper.tolaria.training.fleet import Fleet
from esper.tolaria.training.host import Host
from tests.tolaria.doubles import DoubleDigits, double_host
from tests.tolaria.small import EASY, bits, facts

ROOMS = {"exact": False, "spare": True}
"""Whether storage has room to spare."""
REPORTED = 5e-6
"""How far figures may differ: losses are summed in single precision, and a seed's worth is the difference of two."""
LEARNED = 1e-7
"""How far parameters in double precision may differ: norms of gradients, which clip them, are in single precision."""
SLOW = {"learning_rate": 0.02, "train_size": 96, "batch": 32}
"""Larger learning rates make seeds chaotic, and what is rounding at first then grows."""


UNSTACKABLE = "mixing"
"""A blueprint that is registered for a while."""


@dataclass(frozen=True)
class Step:
    """What is done to one host after one epoch: numbers, read by the stage that a slot is in, so that everything is allowed."""

    first: int = 0
    second: int = 0
    """What is done at its first and at its second slot; 0 is nothing."""
    harm: str = ""
    """What is made NaN before the next epoch: nothing, the host, or a seed."""


STYLES = tuple(Style)


def decision(host: Host, slot: str, number: int) -> Decision | None:
    """What a number means for a slot as it is."""
    report, choice = host.model.report(slot), number - 1
    if number == 0:
        return None
    style = STYLES[choice % 4]
    match report.stage:
        case Stage.DORMANT:
            values = {"style": style, "tempo": 1 + choice % 3, "alpha_target": (1.0, 0.5, 0.75)[choice % 3]}
            known = [name for name in names(report.topology) if name != UNSTACKABLE]
            return Decision(op=Op.GERMINATE, slot=slot, blueprint=known[choice % len(known)], **values)
        case Stage.TRAINING:
            return Decision(op=Op.PRUNE if choice % 5 == 4 else Op.ADVANCE, slot=slot)
        case Stage.BLENDING if not report.pruning and choice % 3 == 2:
            return Decision(op=Op.PRUNE, slot=slot, alpha_speed=choice % 2 * 2)
        case Stage.HOLDING if choice % 3 == 0:
            return Decision(op=Op.FOSSILIZE, slot=slot)
        case Stage.HOLDING if choice % 3 == 1:
            values = {"style": style, "alpha_target": 0.5, "alpha_speed": choice % 3, "alpha_curve": Curve.COSINE}
            return Decision(op=Op.SET_ALPHA_TARGET, slot=slot, **values)
        case Stage.HOLDING:
            return Decision(op=Op.PRUNE, slot=slot, alpha_speed=2)
    return None


def act(host: Host, step: Step) -> list[Event]:
    """Do it, and end the epoch."""
    for slot, number in zip(host.model.slots, (step.first, step.second), strict=False):
        if (decided := decision(host, slot, number)) is not None:
            host.model.act(decided)
    events = host.end_epoch()
    seeds = [slot.seed for slot in host.model.slots.values() if slot.state.stage is Stage.TRAINING]
    if step.harm == "host":
        poison(host.model.host)
    elif step.harm == "seed" and seeds:
        poison(seeds[0])
    return events


def poison(module: nn.Module | None) -> None:
    assert module is not None
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)


def run(engine: Engine, hosts: Sequence[Host], plans: Sequence[Sequence[Step]]) -> Iterator[list[tuple[EpochReport, list[Event]]]]:
    """Epoch by epoch, what each host reports, and what happened to it then."""
    for steps in zip(*plans, strict=True):
        reports = engine.run_epoch(hosts)
        yield [(report, act(host, step)) for host, report, step in zip(hosts, reports, steps, strict=True)]


# Comparing


def told(event: Event) -> dict[str, Any]:
    """An event, without the figures that a gate judged by, which differ by rounding."""
    return {name: value for name, value in asdict(event).items() if name != "figures"}  # type: ignore[call-overload]


def judged(events: Sequence[Event]) -> dict[str, Any]:
    """What gates judged by."""
    return {f"gate {number}": event.figures for number, event in enumerate(events) if isinstance(event, GateChecked)}


def assert_close(first: Any, second: Any, rel: float = REPORTED, path: str = "") -> None:
    """Assert that two values are the same but for rounding, whatever is in them."""
    if isinstance(first, dict):
        assert list(first) == list(second), path
        for key in first:
            assert_close(first[key], second[key], rel, f"{path}.{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), path
        for at, pair in enumerate(zip(first, second, strict=True)):
            assert_close(*pair, rel, f"{path}[{at}]")
    elif isinstance(first, Tensor):
        say = partial("{}: {}".format, path)
        torch.testing.assert_close(first, second, rtol=rel, atol=rel, equal_nan=True, check_device=False, msg=say)
    elif isinstance(first, float):
        near = math.isclose(first, second, rel_tol=rel, abs_tol=rel) or (math.isnan(first) and math.isnan(second))
        assert near, f"{path}: {first} is not {second}"
    else:
        assert first == second, path


def learned(host: Host) -> dict[str, Any]:
    """All that a host has learned, and what its optimiser keeps."""
    state = {name: value for name, value in host.model.state_dict().items() if not name.endswith("_extra_state")}
    return {"model": {name: value for name, value in state.items() if "meter" not in name}, "optimizer": kept(host)}


def records(host: Host) -> dict[str, Any]:
    """What is noted of a host and its slots, whose records are saved as text."""
    state = host.model.state_dict()
    slots = {name: json.loads(bytes(value.tolist())) for name, value in state.items() if name.endswith("_extra_state")}
    counters = {name: getattr(host, name) for name in Host._COUNTERS}
    return {"slots": slots, "governor": host.governor.state(), "flops": host.flops, **counters}


def is_double(host: Host) -> bool:
    return next(host.model.parameters()).dtype is torch.float64


def kept(host: Host) -> list[dict[str, Any]]:
    """What the optimiser keeps of each parameter. A momentum of zeros is none."""
    states = [host.optimizer.state.get(p, {}) for group in host.optimizer.param_groups for p in group["params"]]
    return [{name: value for name, value in sorted(state.items()) if isinstance(value, Tensor) and value.any()} for state in states]


def report_of(report: EpochReport) -> dict[str, Any]:
    values = asdict(report)
    return {**values, "interactions": {str(key): value for key, value in values["interactions"].items()}}


def check_alike(build: Callable[[], list[Host]], plans: Sequence[Sequence[Step]], spare: bool | None, rel: float = REPORTED) -> FleetEngine:
    """Hosts under the fleet do what they do one by one; returns the fleet's engine.

    rel: how far figures may differ.
    """
    alone, together = build(), build()
    serial, fleet = SerialEngine(), FleetEngine(spare)
    for epoch, (expected, found) in enumerate(zip(run(serial, alone, plans), run(fleet, together, plans), strict=True)):
        for at, ((report, events), (other, same)) in enumerate(zip(expected, found, strict=True)):
            where = f"epoch {epoch}, host {at}: "
            assert_close(report_of(report), report_of(other), rel, where)
            assert [told(event) for event in events] == [told(event) for event in same], where
            assert_close(judged(events), judged(same), rel, where)
    for at, (host, other) in enumerate(zip(alone, together, strict=True)):
        assert_close(learned(host), learned(other), min(rel, LEARNED) if is_double(host) else rel, f"host {at}")
        assert_close(records(host), records(other), rel, f"host {at}")
    scores = [engine.score(hosts, lambda host: host.data.val) for engine, hosts in ((serial, alone), (fleet, together))]
    for score, other_score in zip(*scores, strict=True):
        assert_close([score.loss, score.accuracy], [other_score.loss, other_score.accuracy], rel, "score")
    return fleet


GROWTH = [
    [Step(1, 13), Step(1, 1), Step(0, 0), Step(1, 6), Step(3, 3)],
    [Step(4, 0), Step(1, 10), Step(1, 2), Step(2, 1), Step(1, 1)],
    [Step(0, 7), Step(6, 1), Step(1, 2), Step(1, 1), Step(9, 6)],
]
"""Three hosts that grow differently."""


def growing(config: TrainingConfig = EASY, device: str = "cpu", **member: Any) -> list[Host]:
    """Hosts for these."""
    return [double_host(seed, config, device, **{**SLOW, **member}) for seed in range(len(GROWTH))]


def after(engine: Engine, hosts: Sequence[Host], plans: Sequence[Sequence[Step]]) -> list[list[EpochReport]]:
    """The reports of each host, once all is done."""
    epochs = [[report for report, _ in epoch] for epoch in run(engine, hosts, plans)]
    return [list(reports) for reports in zip(*epochs, strict=True)]


# Saving


Shapes = dict[str, Any]
"""How much room there is in a fleet, and what is where in it."""


def check_that_it_goes_on(
    build: Callable[[], list[Host]], plans: Sequence[Sequence[Step]], spare: bool | None, cut: int, store: CheckpointStore
) -> None:
    """Hosts that are saved after some epochs go on in another engine bit for bit, in storage of the same shapes.

    plans: for as many epochs as each host is there.
    """
    engine, hosts = FleetEngine(spare), build()
    straight = []
    for epoch in range(max(map(len, plans))):
        if epoch == cut:
            store.save(cut, {"engine": engine.state(hosts), "hosts": [host.state() for host in hosts]})
        straight.append(_epoch(engine, hosts, plans, epoch))
    other, fresh, saved = FleetEngine(spare), build(), store.load(cut)
    for host, state in zip(fresh, saved["hosts"], strict=True):
        host.load_state(state)
    other.load_state(saved["engine"], fresh)
    for epoch in range(cut, len(straight)):
        (reports, fleets), (expected, before) = _epoch(other, fresh, plans, epoch), straight[epoch]
        assert reports == expected, f"epoch {epoch}"
        for fleet, same in zip(fleets, before, strict=True):
            # A measurement of many in several parts leaves views that a smaller one has no need of.
            same["views"] = {name: same["views"][name] for name in fleet["views"]}
            assert fleet == same, f"epoch {epoch}"
    for at, (host, again) in enumerate(zip(hosts, fresh, strict=True)):
        assert bits(on_cpu(learned(host))) == bits(on_cpu(learned(again))), f"host {at}"
    assert other.state(fresh) == engine.state(hosts)


def _epoch(engine: FleetEngine, hosts: Sequence[Host], plans: Sequence[Sequence[Step]], epoch: int) -> tuple[list[Any], list[Shapes]]:
    """What the hosts report whose plan is not at its end, and how they were trained."""
    now = [(host, plan[epoch]) for host, plan in zip(hosts, plans, strict=True) if epoch < len(plan)]
    reports = engine.run_epoch([host for host, _ in now])
    found = [facts(report) for report in reports], [shapes(fleets[0], hosts) for fleets in engine._fleets.values() if fleets[0].row_of]
    for host, step in now:
        act(host, step)
    return found


def shapes(fleet: Fleet, hosts: Sequence[Host]) -> Shapes:
    """The shapes of a fleet in its last epoch, and the row of each of these hosts and of its seeds."""
    views = {"training": fleet._view, "shadows": fleet._shadow, **{key: each.view for key, each in fleet._measurements.items()}}
    return {
        "hosts": (len(fleet.hosts), {number: fleet.row_of[host] for number, host in enumerate(hosts) if host in fleet.row_of}),
        "seeds": [(key.name, len(seeds.rows), sorted(seeds.row_of.items())) for key, seeds in fleet.stack.seeds.items()],
        "views": {name: (each.needs.rows, each.needs.seeds, each.needs.kinds) for name, each in views.items() if each is not None},
    }


def on_cpu(tree: Any) -> Any:
    """The same with its tensors on the CPU."""
    return pytree.tree_map_only(Tensor, lambda each: each.cpu(), tree)


class DroppingDigits(DoubleDigits):
    """Its hosts drop features at random."""

    __slots__ = ()

    def make_host(self, member: Member, classes: int) -> tuple[nn.Module, dict[str, str]]:
        host, slots = DoubleDigits.make_host(self, member, classes)
        host.head = nn.Sequential(nn.Dropout(0.3), host.get_submodule("head"))
        host.get_submodule("blocks").append(nn.Dropout2d(0.2))
        return host, slots
