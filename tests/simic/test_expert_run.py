"""The run of forked search: rounds of hosts and forks, learning, examination, and going on after a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.cli.scenes import scene_of
from esper.karn.record import Record
from esper.karn.views.overview import overview
from esper.leyline.config import load
from esper.leyline.errors import ConfigError
from esper.leyline.events import Decided, HostFinished, HostStarted, PolicyUpdated, RunStarted
from esper.leyline.score import score
from esper.nissa import Hub, read_events
from esper.nissa.config import TelemetryConfig
from esper.simic.growth.recording import read_episodes
from esper.simic.learning.forks import ForkDecider
from esper.simic.runs.expert import ExpertRun
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.runner import Interrupted, resume, start
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.policy.policy_file import save_policy
from esper.tamiyo.policy.policy_header import read_header
from esper.tolaria.storage.runs import read_summary
from tests.karn.copies import cut_short
from tests.simic.runs import Crash, CrashAfter, StopAfter, keep_to, opinionated, policy_of
from tests.simic.tiny import uneven_task

TINY = ExpertRunConfig(
    rounds=3,
    hosts=3,
    moments=2,
    alternatives=2,
    examined=2,
    epochs=5,
    workers=1,
    fix={"widths": "[2, 2]", "train_size": "100"},
    hidden=16,
    slot_width=16,
)
EACH = 1 + TINY.moments * TINY.alternatives
"""Episodes of a host and its forks."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_to(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_to(folder, monkeypatch)
        start(TINY, folder / "run", "test")
    return folder / "run"


# Going on


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_was_cut_off_learns_the_same(how: str, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    if how == "stopped":
        with pytest.raises(Interrupted, match="--resume"):
            start(TINY, run, "test", display=StopAfter(1))
    else:
        with pytest.raises(Crash):
            start(TINY, run, "test", display=CrashAfter(2))
    resume(run)
    assert read_summary(run) == read_summary(whole)
    first, second = policy_of(whole), policy_of(run)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [each.identity() for each in read_events(run / "events.jsonl")] == [e.identity() for e in read_events(whole / "events.jsonl")]


def test_a_stopped_run_goes_on_with_other_settings_of_searching_and_learning_and_no_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        start(TINY, run, "test", display=StopAfter(1))
    for wrong in ("hosts", "pool", "prior.wait", "training.clip"):
        with pytest.raises(ConfigError, match=f"'{wrong}' cannot change when a run goes on; what can: rounds, .*moments, alternatives"):
            resume(run, settings={wrong: 3})
    summary = resume(run, settings={"rounds": 2, "alternatives": 1, "expert.learning_rate": 0.5, "expert.window": 1})
    assert summary["rounds"][1]["train/learning_rate"] == pytest.approx(0.05), "the last round has a tenth"
    assert summary["rounds"][1]["rollout/host_epochs"] == TINY.hosts * (1 + TINY.moments) * 5
    found = load(ExpertRunConfig, run / "config.toml")
    assert found == replace(TINY, rounds=2, alternatives=1, expert=replace(TINY.expert, learning_rate=0.5, window=1))


def test_workers_play_what_one_process_plays() -> None:
    config = replace(TINY, rounds=2)
    alone, several = ExpertRun(config, Hub()), ExpertRun(replace(config, workers=2), Hub())
    try:
        for run in (alone, several):
            for _ in range(3):  # the second round and the examination begin while the round before is learned from
                run.run_round()
        assert alone.history == several.history
        assert alone.arms == several.arms
        assert all(map(torch.equal, alone.policy.parameters(), several.policy.parameters()))
    finally:
        alone.close()
        several.close()


# The record


def test_hosts_leave_a_record_and_their_forks_none(whole: Path) -> None:
    envelopes = list(read_events(whole / "events.jsonl"))
    started = {each.host: each.event for each in envelopes if isinstance(each.event, HostStarted)}
    assert sorted(started) == list(range(3 * TINY.hosts + 6 * 2)), "no number is left out for a fork"
    assert [host.round for host in started.values()] == [1] * 3 + [2] * 3 + [3] * 15
    assert len({host.seed for host in started.values() if not host.arm}) == 9, "each host once"
    for kind in (HostFinished, Decided):
        assert {each.host for each in envelopes if isinstance(each.event, kind)} == set(started)
    episodes, _ = read_episodes([whole])
    assert [episode.about["controller"] for episode in episodes] == ["expert"] * 9


@pytest.mark.parametrize("level", ["off", "minimal", "debug"])
def test_a_run_learns_the_same_whatever_is_recorded(level: str, whole: Path, tmp_path: Path) -> None:
    summary = start(replace(TINY, rounds=1, telemetry=TelemetryConfig(level=level)), tmp_path / "run", "test")
    assert summary["rounds"] == read_summary(whole)["rounds"][:1]


def test_a_round_tells_what_forks_cost_and_what_they_showed(whole: Path) -> None:
    envelopes = list(read_events(whole / "events.jsonl"))
    (begun,) = [each.event for each in envelopes if isinstance(each.event, RunStarted)]
    assert begun.about["forks"] == TINY.hosts * (EACH - 1)
    rounds = read_summary(whole)["rounds"]
    assert [each.event.metrics for each in envelopes if isinstance(each.event, PolicyUpdated)] == rounds
    scores = [each.event for each in envelopes if isinstance(each.event, HostFinished)]
    for number, figures in enumerate(rounds):
        assert figures["rollout/host_epochs"] == TINY.hosts * EACH * 5
        assert 0 < figures["search/moments"] <= TINY.hosts * TINY.moments
        assert figures["search/moments"] <= figures["search/forks"] <= TINY.hosts * (EACH - 1)
        own = scores[3 * number : 3 * number + 3]
        assert figures["rollout/ep_rew_mean"] == pytest.approx(sum(host.reward for host in own) / 3, abs=1e-4)
        points = [score(host.val_accuracy, host.parameters, host.host_parameters, host.rent) for host in own]
        assert figures["rollout/score"] == pytest.approx(sum(points) / 3)
        assert figures["rollout/ep_len_mean"] == 5
        assert "rollout/against_control" in figures, "hosts have controls, though their forks have none"


def test_progress_counts_an_examination_by_what_trains_side_by_side_in_a_round(whole: Path, tmp_path: Path) -> None:
    record = Record(cut_short(whole, tmp_path / "run", rounds=1))
    (begun,) = [each.event for each in read_events(whole / "events.jsonl") if isinstance(each.event, RunStarted)]
    assert scene_of(begun).total() == 3 + 1, "six arms of two hosts are less than three hosts with twelve forks"
    assert overview(record)["progress"]["share"] == 1 / 4


def test_the_policy_says_how_it_came_about(whole: Path) -> None:
    trained = read_header(whole / "policy.safetensors").trained
    assert (trained["method"], trained["moments"], trained["alternatives"]) == ("expert", 2, 2)
    assert trained["host_epochs"] == 3 * TINY.hosts * EACH * 5


# Hosts


def test_forks_are_the_hosts_of_their_round_once_more_without_controls() -> None:
    run = ExpertRun(TINY, Hub())
    for number in range(2):
        starts, forks = run.starts(number), run.forks(number)
        own = starts[: TINY.hosts]
        assert len(starts) == TINY.hosts * EACH == TINY.side_by_side
        assert [replace(start, control=True) for start in starts[TINY.hosts :]] == [own[fork.host] for fork in forks]
        assert not any(start.control for start in starts[TINY.hosts :])
        assert all(start.control for start in own)
        assert run.forks(number) == forks, "they depend on nothing but seed and round"
    assert run.forks(0) != run.forks(1)
    assert ExpertRun(replace(TINY, seed=1), Hub()).forks(0) != run.forks(0)


def test_hosts_that_differ_in_slots_and_budgets_are_searched_and_learned_from() -> None:
    with uneven_task() as name:
        run = ExpertRun(replace(TINY, task=(name,), rounds=2, hosts=6, epochs=None, fix={}, moments=3, control=False), Hub())
        run.run_round()
        run.run_round()
        for number, search in enumerate(run.learner.searches):
            lengths = search.weight.sum(dim=1)
            assert len(set(lengths.tolist())) > 1
            assert all(fork.step < lengths[fork.host] for fork in run.forks(number))
            host, step = search.where.unbind(dim=1)
            assert (search.weight[host, step] == 1.0).all()
        run.close()


def test_tasks_take_turns_and_forks_are_of_their_hosts_task() -> None:
    with uneven_task() as name:
        run = ExpertRun(replace(TINY, rounds=1, task=("digits", name), epochs=2, control=False), Hub())
        run.run_round()
        assert [start.task for start in run.starts(0)[:3]] == ["digits", name, "digits"]
        assert run.buffer.task.tolist() == [0, 1, 0]
        assert run.history[0]["search/moments"] > 0
        run.close()


def test_one_host_without_held_out_ones_is_enough() -> None:
    run = ExpertRun(replace(TINY, hosts=1, rounds=1, control=False), Hub())
    run.run_round()
    assert "search/gain" not in run.history[0]
    assert run.history[0]["rollout/host_epochs"] == EACH * 5
    run.close()


def test_host_seeds_that_are_for_something_else_are_told_of_before_anything_is_trained() -> None:
    with pytest.raises(ConfigError, match="practice takes training seeds"):
        ExpertRun(replace(TINY, seed=1999, hosts=1024), Hub())


# The policy


def test_a_policy_is_carried_on_with_its_own_prior(tmp_path: Path) -> None:
    given = opinionated()
    save_policy(given, tmp_path / "policy.safetensors", trained={})
    sizes = {"hidden": None, "slot_width": None}
    run = ExpertRun(replace(TINY, rounds=1, from_policy=str(tmp_path / "policy.safetensors"), control=False, **sizes), Hub())
    assert run.policy.config == given.config
    assert run.policy.config.prior is None
    assert all(map(torch.equal, run.policy.parameters(), given.parameters()))
    run.run_round()
    assert not all(map(torch.equal, run.policy.parameters(), given.parameters()))
    run.close()
    wary = Prior(wait=0.99)
    assert ExpertRun(replace(TINY, prior=wary), Hub()).policy.config.prior == wary


def test_heads_are_made_new_when_asked_for(whole: Path) -> None:
    file = str(whole / "policy.safetensors")
    same, fresh = (ExpertRun(replace(TINY, from_policy=file, reset_heads=heads), Hub()).policy for heads in ((), ("slot",)))
    different = [name for name, p in same.named_parameters() if not torch.equal(p, dict(fresh.named_parameters())[name])]
    assert different
    assert all("slot" in name for name in different)


def test_hosts_play_by_the_mode_and_forks_depart_from_it_once() -> None:
    run = ExpertRun(replace(TINY, rounds=1, control=False), Hub())
    decider = run.decider(0)
    assert isinstance(decider, ForkDecider)
    assert decider.deterministic
    assert decider.hosts == TINY.hosts
    assert len(decider.forks) == TINY.hosts * (EACH - 1)
