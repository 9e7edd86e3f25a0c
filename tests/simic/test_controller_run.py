"""A run of several hosts: what it records, what it compares with, and what it may look at."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.leyline.errors import ConfigError, DeviceError, EsperError, UnknownNameError
from esper.leyline.events import Envelope, EpochFinished, HostFinished, HostStarted, RolledBack, RunStarted, StageChanged
from esper.leyline.stages import Stage
from esper.nissa import Hub
from esper.simic.runs.controller import ControllerRun
from esper.tolaria.data import Data, FinalEvaluation, Split
from esper.tolaria.tasks import get
from esper.tolaria.training.host import Host
from tests.simic.runs import HASTY, small
from tests.tolaria.small import bits, plain_score, train_epoch


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    def write(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def of(self, kind: type) -> list[Envelope]:
        return [envelope for envelope in self.envelopes if isinstance(envelope.event, kind)]


def finished(run: ControllerRun) -> dict[str, Any]:
    run.begin()
    while not run.done:
        run.run_round()
    return run.end()


@pytest.fixture(scope="module")
def ended() -> tuple[ControllerRun, Kept, dict[str, Any]]:
    """A run that came to its end, what it recorded, and its summary."""
    kept = Kept()
    run = ControllerRun(small(), Hub(None, [kept]), "esper train heuristic")
    return run, kept, finished(run)


def test_the_record_begins_with_the_run_and_its_hosts_and_ends_with_theirs(ended: tuple[ControllerRun, Kept, dict[str, Any]]) -> None:
    _run, kept, _ = ended
    events = [envelope.event for envelope in kept.envelopes]
    assert isinstance(events[0], RunStarted)
    assert events[0].command == "esper train heuristic"
    assert all(isinstance(event, HostStarted) for event in events[1:5])
    assert isinstance(events[-1], HostFinished)
    assert [envelope.seq for envelope in kept.envelopes] == list(range(len(events)))
    twins = {e.host: e.event.twin_of for e in kept.of(HostStarted) if isinstance(e.event, HostStarted)}
    assert twins == {0: None, 1: None, 2: 0, 3: 1}, "whose control each host is"
    assert [e.event.controller for e in kept.of(HostStarted) if isinstance(e.event, HostStarted)] == ["fixed"] * 2 + ["wait"] * 2
    assert [e.event.seed for e in kept.of(HostStarted) if isinstance(e.event, HostStarted)] == [0, 1, 0, 1]
    epochs = Counter((envelope.host, envelope.epoch) for envelope in kept.of(EpochFinished))
    assert epochs == Counter({(host, epoch): 1 for host in range(4) for epoch in range(1, 11)})
    assert [envelope.host for envelope in kept.of(HostFinished)] == [0, 1, 2, 3]


def test_the_counts_of_the_summary_are_those_of_the_record(ended: tuple[ControllerRun, Kept, dict[str, Any]]) -> None:
    _, kept, summary = ended
    for number, host in enumerate([*summary["hosts"], *summary["control"]]):
        after = Counter(e.event.after for e in kept.of(StageChanged) if e.host == number and isinstance(e.event, StageChanged))
        assert host["germinated"] == after[Stage.GERMINATED]
        assert host["fossilized"] == after[Stage.FOSSILIZED]
        assert host["pruned"] == after[Stage.PRUNED]
    assert sum(host["fossilized"] for host in summary["hosts"]) > 0
    assert sum(host["germinated"] for host in summary["control"]) == 0


def test_the_figures_are_those_of_the_harvested_network(ended: tuple[ControllerRun, Kept, dict[str, Any]]) -> None:
    run, _, summary = ended
    for place, host in enumerate([*summary["hosts"], *summary["control"]]):
        grown = run.growth.hosts[place].host
        network = grown.model.harvest(recalibrate=grown.reference())
        split = run.data.test(FinalEvaluation(asked_by="a test"))
        assert host["test_accuracy"] == plain_score(network, grown.task, split)[1]
        assert host["val_accuracy"] == plain_score(network, grown.task, run.data.val)[1]
        assert host["parameters"] == sum(p.numel() for p in network.parameters())


def test_the_comparison_pairs_each_host_with_its_own_twin(ended: tuple[ControllerRun, Kept, dict[str, Any]]) -> None:
    _, _, summary = ended
    pairs = list(zip(summary["hosts"], summary["control"], strict=True))
    assert all(host["seed"] == twin["seed"] and host["host_parameters"] == twin["parameters"] for host, twin in pairs)
    difference = summary["against_control"]["test_accuracy"]
    assert difference["mean"] == pytest.approx(sum(host["test_accuracy"] - twin["test_accuracy"] for host, twin in pairs) / 2)
    assert json.loads(json.dumps(summary, allow_nan=False))["against_control"] == summary["against_control"], "figures are finite and plain"


def test_a_twin_is_the_host_alone(ended: tuple[ControllerRun, Kept, dict[str, Any]]) -> None:
    run, _, _ = ended
    course, twin = run.growth.hosts[3].course, run.growth.hosts[3].host
    alone = Host(get("digits"), run.data, twin.member, 1, HASTY)
    accuracies = []
    for _ in range(10):
        accuracies.append(train_epoch(alone).val_accuracy)
        alone.end_epoch()
    assert bits(alone.state()) == bits(twin.state())
    assert course.accuracies == tuple(accuracies)


def test_host_and_twin_are_one_until_something_grows() -> None:
    run = ControllerRun(small(hosts=1), Hub())
    run.run_round()
    courses = [run.growth.hosts[place].course for place in (0, 1)]
    assert courses[0].losses == courses[1].losses
    grown, twin = (run.growth.hosts[place].host for place in (0, 1))
    assert bits(dict(grown.model.host.state_dict())) == bits(dict(twin.model.host.state_dict()))
    for _ in range(3):
        run.run_round()
    assert bits(dict(grown.model.host.state_dict())) != bits(dict(twin.model.host.state_dict())), "growth leaves its mark"


def test_the_test_split_is_not_touched_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    original, looks = Data.test, []
    run = ControllerRun(small(epochs=4), Hub())

    def guarded(self: Data, purpose: FinalEvaluation) -> Split:
        assert run.round == 4, "somebody looked at the test split during training"
        looks.append(purpose.asked_by)
        return original(self, purpose)

    monkeypatch.setattr(Data, "test", guarded)
    finished(run)
    assert looks == ["end of a run"] * 4


def test_members_with_different_budgets_finish_in_their_own_time() -> None:
    kept = Kept()
    fix = {"widths": "[2,2]", "train_size": "50", "batch": "50"}
    run = ControllerRun(small(hosts=3, seed=18, epochs=None, member="family", fix=fix, control=False), Hub(None, [kept]))
    budgets = [host.epochs for host in run.play.started]
    assert budgets == [25, 15, 15]
    assert run.rounds == 25
    summary = finished(run)
    assert [e.epoch for e in sorted(kept.of(HostFinished), key=lambda e: e.host or 0)] == budgets
    assert len(summary["hosts"]) == 3
    assert run.round == 25
    assert len({str(host.member) for host in run.play.started}) > 1


def test_a_controller_that_only_waits_has_no_twin() -> None:
    summary = finished(ControllerRun(small(controller="wait", hosts=1, epochs=2), Hub()))
    assert "control" not in summary
    assert "against_control" not in summary
    assert len(finished(ControllerRun(small(control=False, hosts=1, epochs=2), Hub()))["hosts"]) == 1


def test_without_anybody_to_tell_no_event_is_built_and_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = finished(ControllerRun(small(epochs=3), Hub(None, [Kept()]), "a command"))

    def refuse(*args: object) -> None:
        raise AssertionError("an event was built")

    monkeypatch.setattr("esper.simic.growth.play.epoch_events", refuse)
    monkeypatch.setattr("esper.simic.growth.play.decided", refuse)
    assert finished(ControllerRun(small(epochs=3), Hub(), "a command")) == watched


def test_a_rollback_is_recorded_with_its_host_and_the_run_goes_on() -> None:
    kept = Kept()
    run = ControllerRun(small(epochs=6), Hub(None, [kept]))
    run.begin()
    for _ in range(3):
        run.run_round()
    with torch.no_grad():
        run.growth.hosts[1].host.model.host.get_parameter("head.weight").fill_(torch.nan)
    while not run.done:
        run.run_round()
    assert [(e.host, e.epoch) for e in kept.of(RolledBack)] == [(1, 4)]
    assert run.end()["hosts"][1]["rollbacks"] == 1


def test_only_the_slots_that_were_named_are_used() -> None:
    kept = Kept()
    finished(ControllerRun(small(slots=("r0c1",), max_seeds=1), Hub(None, [kept])))
    assert {e.event.slot for e in kept.of(StageChanged) if isinstance(e.event, StageChanged)} == {"r0c1"}


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"task": "digit"}, UnknownNameError, "unknown task 'digit'; did you mean 'digits'?"),
        ({"controller": "heuristik"}, UnknownNameError, "unknown controller 'heuristik'; did you mean 'heuristic'?"),
        ({"slots": ("r0c9",)}, UnknownNameError, "unknown slot 'r0c9'; did you mean 'r0c"),
        ({"fix": {"kernl": "3"}}, ConfigError, "unknown key 'kernl'; did you mean 'kernel'?"),
        ({"fix": {"kernel": "2"}}, ConfigError, "'kernel' is 2; expected an odd size"),
        ({"fix": {"widths": "[2,2,2,2,2,2]"}}, EsperError, "task 'digits': the host that make_host gives failed: RuntimeError"),
        ({"fix": {"train_size": "5000"}}, EsperError, "asks for 5,000 training images; there are 1,077"),
        ({"device": "cuda:99"}, DeviceError, "cuda:99"),
        ({"device": "gpu"}, DeviceError, "unknown device 'gpu'; expected cpu, cuda or cuda:N"),
        ({"device": "meta"}, EsperError, "'meta' is not supported; expected cpu, cuda or cuda:N"),
        ({"task": "cifar10", "data": Path("/nonexistent")}, EsperError, "no folder /nonexistent; expected one with CIFAR-10"),
        ({"training": {"compile": "no-such-backend"}}, EsperError, "unknown backend of torch.compile 'no-such-backend'; known: "),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(values: dict[str, Any], kind: type[EsperError], words: str) -> None:
    if "training" in values:
        values = {"training": type(HASTY)(**values["training"])}
    with pytest.raises(kind, match=re.escape(words)) as caught:
        ControllerRun(small(**values), Hub())
    assert "\n" not in str(caught.value)
