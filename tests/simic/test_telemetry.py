"""What is recorded at each level: all of it, some hosts in full, or the bare course of a run; and a record that reaches its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esper.leyline.events import (
    Decided,
    Envelope,
    EpochFinished,
    GateChecked,
    HostFinished,
    HostStarted,
    HostsTrained,
    Note,
    Observed,
    StageChanged,
)
from esper.leyline.observation import OBSERVATION
from esper.nissa import TelemetryConfig, read_events
from esper.nissa.config import MINIMAL
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import resume, start
from tests.simic.runs import Crash, CrashAfter, opinionated, small


def recorded(path: Path) -> list[Envelope]:
    return list(read_events(path / "events.jsonl"))


def told(events: Sequence[Envelope], kind: type[Any]) -> list[Envelope]:
    return [envelope for envelope in events if isinstance(envelope.event, kind)]


def run(path: Path, **settings: Any) -> list[Envelope]:
    given = {name: settings.pop(name) for name in ("level", "events") if name in settings}
    telemetry = TelemetryConfig(**given, **settings.pop("sampled", {}))
    start(small(**{"epochs": 6, "telemetry": telemetry, **settings}), path, "a test")
    return recorded(path)


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> list[Envelope]:
    return run(tmp_path_factory.mktemp("normal") / "run", hosts=3, sampled={"hosts": 2})


def test_some_hosts_are_recorded_in_full_with_their_twins_and_the_course_of_all(normal: list[Envelope]) -> None:
    assert {envelope.host for envelope in told(normal, EpochFinished)} == {0, 1, 3, 4}
    for kind in (HostStarted, HostFinished):
        assert {envelope.host for envelope in told(normal, kind)} == set(range(6))
    course = told(normal, HostsTrained)
    assert [envelope.epoch for envelope in course] == list(range(1, 7))
    assert all(envelope.event.hosts == (0, 1, 2, 3, 4, 5) for envelope in course)  # type: ignore[attr-defined]
    for envelope in told(normal, EpochFinished):
        event = course[(envelope.epoch or 0) - 1].event
        assert isinstance(event, HostsTrained)
        place = event.hosts.index(envelope.host or 0)
        assert event.val_accuracy[place] == round(envelope.event.val_accuracy, 2)  # type: ignore[attr-defined]
        assert event.parameters[place] == envelope.event.parameters  # type: ignore[attr-defined]


def test_the_lives_in_a_hosts_end_are_those_of_its_stages(normal: list[Envelope]) -> None:
    for ended in told(normal, HostFinished):
        if ended.host not in (0, 1):
            continue
        result = ended.event
        assert isinstance(result, HostFinished)
        stages = [each for each in told(normal, StageChanged) if each.host == ended.host]
        born = [(each.epoch, each.event.slot) for each in stages if each.event.after.name == "GERMINATED"]  # type: ignore[attr-defined]
        assert [(life.born, life.slot) for life in result.seeds] == born
        outcomes = Counter(life.outcome for life in result.seeds)
        assert (len(born), outcomes["fossilized"], outcomes["pruned"]) == (result.germinated, result.fossilized, result.pruned)
        assert all(life.style for life in result.seeds)


def test_a_gate_is_recorded_with_what_it_judged_by(normal: list[Envelope]) -> None:
    seen = {envelope.event.gate.name: set(envelope.event.figures) for envelope in told(normal, GateChecked)}  # type: ignore[attr-defined]
    assert seen["G2"] >= {"epochs_in_stage", "gradient_health", "gradient_ratio"}
    assert "alpha" in seen["G3"]


def test_at_minimal_only_the_course_of_the_run_is_recorded(tmp_path: Path, normal: list[Envelope]) -> None:
    minimal = run(tmp_path / "run", hosts=3, level="minimal")
    assert {type(envelope.event) for envelope in minimal} <= MINIMAL
    assert [envelope.seq for envelope in minimal] == list(range(len(minimal)))
    assert [e.event for e in told(minimal, HostFinished)] == [e.event for e in told(normal, HostFinished)]


def test_at_debug_every_host_is_recorded_with_what_its_decisions_were_made_on(tmp_path: Path) -> None:
    events = run(tmp_path / "run", hosts=3, level="debug", sampled={"hosts": 1})
    assert {envelope.host for envelope in told(events, EpochFinished)} == set(range(6))
    seen = [envelope for envelope in told(events, Observed) if envelope.host == 0]
    assert [envelope.epoch for envelope in seen] == list(range(1, 7))
    assert isinstance(seen[0].event, Observed)
    assert list(seen[0].event.host) == [field.name for field in OBSERVATION.host_fields]
    assert all(isinstance(events[envelope.seq + 1].event, Decided) for envelope in seen), "it comes just before the decision"


def test_off_records_nothing_and_changes_no_figure(tmp_path: Path) -> None:
    off = TelemetryConfig(level="off")
    quiet = start(small(epochs=6, telemetry=off), tmp_path / "off", "a test")
    loud = start(small(epochs=6), tmp_path / "on", "a test")
    assert not (tmp_path / "off" / "events.jsonl").exists()
    assert {**quiet, "run": ""} == {**loud, "run": ""}


def test_a_record_that_reaches_its_size_says_so_once_and_goes_on_with_one_host(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", level="debug")
    thin = run(tmp_path / "thin", level="debug", events=120)
    (note,) = told(thin, Note)
    assert (note.seq, isinstance(note.event, Note) and note.event.text.startswith("the record has reached its 120 events")) == (120, True)
    assert {envelope.host for envelope in told(thin[121:], EpochFinished)} == {0, 2}, "the first host and its twin"
    assert len(thin) < len(whole)
    # The same after a crash: where it thins out depends on nothing but the numbers of the events.
    config = small(epochs=6, telemetry=TelemetryConfig(level="debug", events=120))
    with pytest.raises(Crash):
        start(config, tmp_path / "crashed", "a test", display=CrashAfter(5))
    resume(tmp_path / "crashed")
    assert [each.identity() for each in recorded(tmp_path / "crashed")] == [each.identity() for each in thin]


def test_a_policys_decision_is_recorded_with_what_it_was_drawn_from(tmp_path: Path) -> None:
    config = PPORunConfig(rounds=1, hosts=2, pool=2, examined=2, epochs=5, workers=1, hidden=16, slot_width=8, fix=small().fix)
    start(config, tmp_path / "run", "a test")
    decided = [envelope.event for envelope in told(recorded(tmp_path / "run"), Decided)]
    mine = [event for event in decided if isinstance(event, Decided) and event.probabilities]
    assert mine
    for event in mine:
        assert event.value is not None
        assert list(event.probabilities) == list(event.legal)
        for head, chances in event.probabilities.items():
            assert len(chances) == len(event.legal[head])
            assert sum(chances) == pytest.approx(1.0, abs=1e-4)
        assert event.decision.op.name in event.legal["op"]
    assert any(event.decision.slot in event.legal["slot"] for event in mine if "slot" in event.legal)
    rules = [event for event in decided if isinstance(event, Decided) and event.value is None]
    assert rules
    assert all(event.probabilities == {} for event in rules), "the other arms of the examination are rules"


def test_the_probabilities_are_those_of_the_policys_own_distribution() -> None:
    import torch

    from esper.tamiyo.policy.batch import ObservationBatch
    from tests.tamiyo.samples import SLOTS, report, seed, tracker

    policy = opinionated()
    batch = ObservationBatch.from_observations([tracker().observe(report(*(seed(slot) for slot in SLOTS)))], policy.config.blueprints)
    state, uniforms = policy.initial_state(1), torch.rand(1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    acted = policy.act(batch, state, uniforms)
    _, distribution, _ = policy.choose(batch, state.actor, uniforms)
    scores = distribution.score(acted.actions)
    drawn = acted.chances.gather(-1, acted.actions.unsqueeze(-1)).squeeze(-1)
    chosen = torch.where(scores.matters, drawn, 1.0)
    torch.testing.assert_close(chosen.prod(dim=-1), acted.log_prob.exp())
