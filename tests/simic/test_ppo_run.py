"""The run of PPO: rounds, learning, examination, and going on after a stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.leyline.actions import Op
from esper.leyline.config import load
from esper.leyline.errors import ConfigError, EsperError, PolicyError, RunError, UnknownNameError
from esper.leyline.events import Decided, HostFinished, HostStarted, RoundFinished, RunStarted
from esper.leyline.seeds import Purpose, purpose_of
from esper.nissa import Hub, read_events
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.simic.growth.recording import read_episodes, rules_of
from esper.simic.learning.ppo_config import PPOConfig
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import Interrupted, resume, start
from esper.tamiyo import make
from esper.tamiyo.policy.policy_header import read_header
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run, read_summary
from tests.simic.runs import StopAfter, keep_to, policy_of, small
from tests.simic.tiny import uneven_task

TINY = PPORunConfig(
    rounds=3,
    hosts=3,
    pool=3,
    examined=2,
    epochs=7,
    workers=1,
    fix={"widths": "[2, 2]", "train_size": "100"},
    hidden=16,
    slot_width=16,
    ppo=PPOConfig(decay_updates=9, entropy_updates=9),
)

ARMS = ("policy", "policy-drawn", "wait", "random", "fixed", "heuristic")


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


def test_a_run_that_was_stopped_learns_the_same(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="--resume"):
        start(TINY, tmp_path / "stopped", "test", display=StopAfter(1))
    resume(tmp_path / "stopped")
    assert read_summary(tmp_path / "stopped") == read_summary(whole)
    first, second = policy_of(whole), policy_of(tmp_path / "stopped")
    assert all(torch.equal(first[name], second[name]) for name in first)
    events = [[each.identity() for each in read_events(run / "events.jsonl")] for run in (whole, tmp_path / "stopped")]
    assert events[0] == events[1]
    assert (whole / "policy.safetensors").is_file()
    episodes, _ = read_episodes([tmp_path / "stopped"])
    assert len(episodes) == TINY.rounds * TINY.hosts
    assert all(episode.about["rules"] == rules_of(TINY) for episode in episodes)
    with pytest.raises(RunError, match="finished"):
        resume(whole)


def test_every_host_of_the_record_can_be_told_from_every_other(whole: Path) -> None:
    envelopes = list(read_events(whole / "events.jsonl"))
    started = {each.host: each.event for each in envelopes if isinstance(each.event, HostStarted)}
    ended = [each.host for each in envelopes if isinstance(each.event, HostFinished)]
    assert len(started) == len(ended) == len(set(ended)) == 3 * 3 + 6 * 2
    assert [host.round for host in started.values()] == [1] * 3 + [2] * 3 + [3] * 15
    assert [host.arm for host in started.values()] == [""] * 9 + [arm for arm in ARMS for _ in range(2)]
    assert all(host.seed >= 1_000_000 for host in started.values() if not host.arm)
    assert sorted({host.seed for host in started.values() if host.arm}) == [0, 1], "the examination is on hosts that nobody trained on"
    last = {each.host: each.epoch for each in envelopes if each.host is not None}
    assert set(last.values()) == {7}


def test_the_policy_is_examined_by_its_likeliest_decisions_and_by_drawn_ones(whole: Path) -> None:
    examination = read_summary(whole)["examination"]
    assert tuple(examination["arms"]) == ARMS
    assert set(examination["policy_against"]) == set(PPORun.RIVALS), "it is no rival of itself"
    decided: dict[str, list[bool]] = {}
    arms = {each.host: each.event.arm for each in read_events(whole / "events.jsonl") if isinstance(each.event, HostStarted)}
    for each in read_events(whole / "events.jsonl"):
        if isinstance(each.event, Decided) and arms[each.host].startswith("policy"):
            chances = dict(zip(each.event.legal["op"], each.event.probabilities["op"], strict=True))
            decided.setdefault(arms[each.host], []).append(chances[each.event.decision.op.name] == max(chances.values()))
    assert all(decided["policy"])
    assert not all(decided["policy-drawn"])
    drawing = PPORun(replace(TINY, deterministic=False), Hub())
    assert drawing.arm_names[:2] == ("policy", "policy-likeliest")


def test_a_round_tells_rewards_by_op_and_seeds_by_blueprint(whole: Path) -> None:
    ended = [each.event for each in read_events(whole / "events.jsonl") if isinstance(each.event, HostFinished)]
    for number, figures in enumerate(read_summary(whole)["rounds"]):
        hosts = ended[3 * number : 3 * number + 3]
        seeds = Counter(seed.blueprint for host in hosts for seed in host.seeds)
        kept = Counter(seed.blueprint for host in hosts for seed in host.seeds if seed.outcome == "fossilized")
        for blueprint, count in seeds.items():
            assert (figures[f"germinated/{blueprint}"], figures[f"fossilized/{blueprint}"]) == (count, kept[blueprint])
        assert sum(value for name, value in figures.items() if name.startswith("germinated/")) == sum(host.germinated for host in hosts)
        # Weighed by how often each op was decided, what they earned is what the hosts earned.
        earned = sum(figures[f"actions/{op.name.lower()}"] * figures.get(f"reward_by_op/{op.name.lower()}", 0.0) for op in Op)
        assert earned == pytest.approx(sum(host.reward for host in hosts), abs=1e-4)


def test_a_finished_run_goes_on_for_more_rounds_and_ends_as_one_that_was_longer_from_the_start(whole: Path, tmp_path: Path) -> None:
    start(replace(TINY, rounds=2), tmp_path / "run", "test")
    resume(tmp_path / "run", settings={"rounds": 3})
    assert read_summary(tmp_path / "run") == read_summary(whole)
    told = (RunStarted, RoundFinished)  # these say how many rounds there were to be
    records = [
        [e.identity() for e in read_events(run / "events.jsonl") if not isinstance(e.event, told)] for run in (tmp_path / "run", whole)
    ]
    assert records[0] == records[1]
    with pytest.raises(RunError, match="finished"):
        resume(tmp_path / "run", settings={"rounds": 3})


def test_a_stopped_run_goes_on_with_other_settings_of_learning_and_no_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        start(TINY, run, "test", display=StopAfter(1))
    for wrong in ("hosts", "task", "ppo.prior.wait", "training.clip"):
        with pytest.raises(ConfigError, match=f"'{wrong}' cannot change when a run goes on; what can: rounds, "):
            resume(run, settings={wrong: 3})
    with pytest.raises(ConfigError, match="entropy_start"):
        resume(run, settings={"ppo.entropy_start": -1.0})
    summary = resume(run, settings={"ppo.entropy_start": 0.5, "ppo.entropy_end": 0.5, "ppo.weight_decay": 0.25, "rounds": 2})
    assert [each["train/entropy_coefficient"] for each in summary["rounds"]] == [TINY.ppo.entropy_start, 0.5]
    config = load(PPORunConfig, run / "config.toml")
    assert config == replace(TINY, rounds=2, ppo=replace(TINY.ppo, entropy_start=0.5, entropy_end=0.5, weight_decay=0.25))
    assert "changed: ppo.entropy_start is 0.5, " in (run / "log.txt").read_text()
    newest = CheckpointStore(run / "checkpoints", run=read_run(run).id).latest()
    assert newest is not None
    assert [group["weight_decay"] for group in newest.state["work"]["learner"]["optimizer"]["param_groups"]] == [0.0, 0.25]


def test_a_run_under_a_controller_goes_on_as_it_began(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        start(small(), tmp_path / "run", "test", display=StopAfter(2))
    with pytest.raises(ConfigError, match="'epochs' cannot change when a run goes on; what can: engine, device, devices, threads"):
        resume(tmp_path / "run", settings={"epochs": 20})


def test_workers_play_what_one_process_plays(tmp_path: Path) -> None:
    config = replace(TINY, rounds=2)
    alone, several = PPORun(config, Hub()), PPORun(replace(config, workers=2), Hub())
    try:
        for run in (alone, several):
            for _ in range(3):  # the second round and the examination begin while the round before is learned from
                run.run_round()
        assert alone.history == several.history
        assert alone.arms == several.arms
        for one, other in zip(alone.policy.parameters(), several.policy.parameters(), strict=True):
            assert torch.equal(one, other)
    finally:
        alone.close()
        several.close()


def test_a_policy_is_carried_on_and_its_heads_can_be_made_new(whole: Path) -> None:
    file = whole / "policy.safetensors"
    same = PPORun(replace(TINY, from_policy=str(file)), Hub())
    fresh = PPORun(replace(TINY, from_policy=str(file), reset_heads=("blueprint",)), Hub())
    assert PPORun(TINY, Hub()).learner.reference is None
    for run in (same, fresh):
        reference = run.learner.reference
        assert reference is not None
        assert all(map(torch.equal, reference.parameters(), run.policy.parameters())), "it is held near what it starts from"
        assert not any(parameter.requires_grad for parameter in reference.parameters())
    different = [name for name, p in same.policy.named_parameters() if not torch.equal(p, dict(fresh.policy.named_parameters())[name])]
    assert different, "nothing was reset"
    assert all("blueprint" in name for name in different), "and nothing else was"
    assert PPORun(replace(TINY, from_policy=str(file), hidden=None, slot_width=None), Hub()).policy.config.hidden == 16
    with pytest.raises(ConfigError, match=r"policy\.safetensors has a hidden of 16, which cannot become 32; leave the setting out"):
        PPORun(replace(TINY, from_policy=str(file), hidden=32), Hub())
    learned = read_header(file).trained
    assert "from" not in learned
    assert same.trained()["from"] == learned, "its own file tells what it went on from"


def drawn(rounds: int, **settings: Any) -> list[list[Start]]:
    """The hosts of each round of a run with these settings."""
    run = PPORun(replace(TINY, rounds=rounds, **settings), Hub())
    return [run._drawn(number) for number in range(rounds)]


def test_without_a_pool_every_round_has_hosts_that_no_other_has() -> None:
    rounds = drawn(5, pool=0, hosts=1024)
    starts = [start for each in rounds for start in each]
    assert len(set(starts)) == 5 * 1024
    assert {purpose_of(start.seed) for start in starts} == {Purpose.TRAINING}
    assert drawn(2, pool=0, hosts=1024) == rounds[:2], "they depend on nothing but seed and round"
    assert set(starts).isdisjoint(start for each in drawn(5, pool=0, hosts=1024, seed=1) for start in each)
    with pytest.raises(ConfigError, match="practice takes training seeds"):
        drawn(1, pool=0, seed=1999)


def test_a_run_on_new_hosts_that_was_stopped_goes_on_with_those_that_it_would_have_had(tmp_path: Path) -> None:
    config = replace(TINY, rounds=2, hosts=2, pool=0, epochs=2, control=False)
    with pytest.raises(Interrupted):
        start(config, tmp_path / "run", "test", display=StopAfter(1))
    resume(tmp_path / "run")
    hosts = [each.event for each in read_events(tmp_path / "run" / "events.jsonl") if isinstance(each.event, HostStarted)]
    assert [host.seed for host in hosts if not host.arm] == [1_000_000, 1_000_001, 1_000_002, 1_000_003]


@pytest.mark.parametrize("pool", [0, 5])
def test_tasks_may_take_turns_by_rounds(pool: int) -> None:
    rounds = drawn(6, pool=pool, hosts=3, task=("digits", "stdlib"), turns="rounds")
    assert [[start.task for start in each] for each in rounds] == [["digits"] * 3, ["stdlib"] * 3] * 3
    if pool:
        # Digits has three hosts of the five, so that each of its rounds has all; stdlib has two, and goes through them again and again.
        assert all({start.seed for start in each} == {1_000_000, 1_000_002, 1_000_004} for each in rounds[::2])
        seeds = [start.seed for each in rounds[1::2] for start in each]
        assert all({seeds[at], seeds[at + 1]} == {1_000_001, 1_000_003} for at in range(0, 8, 2))
    else:
        assert len({start.seed for each in rounds for start in each}) == 18


@pytest.mark.parametrize("pool", [0, 5])
def test_every_round_holds_all_tasks_in_equal_parts(pool: int) -> None:
    even = drawn(10, pool=pool, hosts=4, task=("digits", "stdlib"))
    assert all(sorted(start.task for start in each) == ["digits"] * 2 + ["stdlib"] * 2 for each in even)
    odd = drawn(2, pool=pool, hosts=3, task=("digits", "stdlib"))
    assert [[start.task for start in each].count("digits") for each in odd] == [2, 1], "the odd one goes round"
    if pool:
        # Of five hosts digits has three and stdlib two; each task goes through its own before one comes again.
        own = [start for each in even for start in each if start.task == "digits"]
        assert all(len(set(own[first : first + 3])) == 3 for first in range(0, 18, 3))
        assert {start.seed for each in even for start in each if start.task == "stdlib"} == {1_000_001, 1_000_003}


def test_advantages_are_told_which_task_each_host_is_of() -> None:
    with uneven_task() as name:
        run = PPORun(replace(TINY, rounds=1, task=("digits", name), epochs=2, control=False), Hub())
        run.run_round()
        assert run.buffer.task.tolist() == [0, 1, 0]


def test_room_is_made_for_the_largest_host_of_the_family() -> None:
    with uneven_task() as name:
        buffer = PPORun(replace(TINY, task=(name,), epochs=None, fix={}), Hub()).buffer
    assert (buffer.steps, buffer.observations.slot_count) == (5, 3)


def test_an_episode_is_recorded_with_the_steps_and_slots_that_its_host_has(tmp_path: Path) -> None:
    with uneven_task() as name:
        config = replace(TINY, rounds=1, hosts=6, pool=0, task=(name,), epochs=None, fix={}, control=False)
        run = PPORun(config, Hub(), folder=tmp_path)
        run.run_round()
        hosts = [run.playing.environment.hosts[place].host for place in range(6)]  # type: ignore[attr-defined]
        episodes, _ = read_episodes([tmp_path])
    shapes = [tuple(episode.batch.costs.shape[:2]) for episode in episodes]
    assert shapes == [(host.member.epochs, len(host.model.slot_ids)) for host in hosts]
    assert {slots for _, slots in shapes} == {2, 3}


def test_mistakes_are_found_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="digits"):
        PPORun(replace(TINY, task=("digit",)), Hub())
    with pytest.raises(ConfigError, match="from-policy"):
        PPORun(replace(TINY, reset_heads=("slot",)), Hub())
    damaged = tmp_path / "policy.safetensors"
    damaged.write_bytes(b"not a policy")
    with pytest.raises(PolicyError):
        PPORun(replace(TINY, from_policy=str(damaged)), Hub())
    with pytest.raises(ConfigError, match="rounds"):
        replace(TINY, rounds=0)
    with pytest.raises(ConfigError, match="'pool' is 1; expected a host for each of 2 tasks, or 0"):
        replace(TINY, task=("digits", "stdlib"), pool=1)


def test_a_mistake_that_only_the_hosts_find_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(EsperError, match="brings its own data"):
        start(replace(TINY, data=tmp_path), tmp_path / "run", "test")
    assert not (tmp_path / "run").exists()


def test_settings_that_cannot_be_leave_a_finished_run_finished(whole: Path) -> None:
    with pytest.raises(ConfigError, match="entropy_start"):
        resume(whole, settings={"rounds": 4, "ppo.entropy_start": -1.0})
    assert read_run(whole).status == "finished"


def test_a_random_legal_episode_on_the_default_task_often_ends_with_a_fossil() -> None:
    config = replace(PPORunConfig(), control=False, fix={"train_size": "400"})  # its smaller hosts, for time
    fossils, seed = 0, 0
    while fossils < 2:
        assert seed < 8, "with nothing to learn from, nothing is learned"
        (played,) = Play(Growth(config), ControllerDecider([make("random")]), [Start("digits", seed)]).through()
        fossils, seed = fossils + (played.fossilized > 0), seed + 1
