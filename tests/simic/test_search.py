"""Searches of a controller's settings: they find what is better, keep to their budget, go on after a kill, and flatter nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kill import outcome
from esper.cli.main import main
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError
from esper.leyline.events import EpochFinished, HostStarted
from esper.leyline.space import default_space, read_space
from esper.nissa import Hub, read_events
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.plugins import REGISTERS
from esper.simic.runs.compare_config import CompareConfig, contenders
from esper.simic.runs.drawing import optuna_point, random_points
from esper.simic.runs.halving import largest_plan, plan
from esper.simic.runs.runner import resume, start
from esper.simic.runs.search import SearchRun
from esper.simic.runs.search_config import SearchConfig
from esper.tamiyo import CONTROLLERS, FixedConfig, HeuristicConfig
from esper.tolaria.tasks import get as get_task
from tests.simic.runs import HASTY, Crash, CrashAfter

DEAR = {"widths": "[2,2]", "kernel": "3", "train_size": "96", "batch": "48", "rent": "100"}
"""Hosts whose user pays so much for parameters that whoever grows nothing does best."""
SOWER = """\
from dataclasses import dataclass
from typing import Annotated
import esper
from esper.leyline.config import Range, check_ranges
from esper.tamiyo.controllers.baselines import Fixed, FixedConfig

@dataclass(frozen=True, slots=True, kw_only=True)
class SowerConfig:
    seeds: Annotated[int, Range(0, 2)] = 2
    motto: str = "sow"
    def __post_init__(self) -> None:
        check_ranges(self)

esper.controller("sower", SowerConfig, lambda c: Fixed(FixedConfig(first=1, period=1, seeds=c.seeds), "sower"), purpose="sows")
"""
GATES = "--no-training.gates.strict --training.gates.min-training-epochs 1 --training.gates.min-gradient-health 0"
FIX = "--fix widths=[2,2] kernel=3 train_size=96 batch=48 rent=100"


@pytest.fixture(autouse=True)
def registers_as_they_were() -> Iterator[None]:
    before = [dict(register) for register in REGISTERS]
    yield
    for register, entries in zip(REGISTERS, before, strict=True):
        register.clear()
        register.update(entries)


def quick(**values: Any) -> SearchConfig:
    """A search that takes a few seconds: how many seeds to grow, where none is best."""
    usual: dict[str, Any] = {
        "controller": "fixed",
        "fixed": FixedConfig(first=1, period=1, seeds=2),
        "over": {"seeds": "0..3", "tempo": "3,5"},
        "member": "standard",
        "fix": DEAR,
        "epochs": 7,
        "training": HASTY,
        "budget": 240,
        "hosts": 2,
        "fresh": 6,
        "together": 5,
        "workers": 1,
    }
    return SearchConfig(**{**usual, **values})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A search that was left alone."""
    run = tmp_path_factory.mktemp("search") / "run"
    return run, start(quick(), run, "a search")


# What comes out


def test_the_best_is_found_and_holds_on_fresh_hosts(found: tuple[Path, dict[str, Any]]) -> None:
    run, summary = found
    search = summary["search"]
    assert search["best"]["values"]["seeds"] == 0
    assert search["trials"][0]["trial"] == search["best"]["trial"]
    assert search["trials"][0]["growth"] == 1.0
    fresh = search["fresh"]
    assert fresh["difference"]["low"] > 0
    assert fresh["best"]["growth"] == 1.0 < fresh["present"]["growth"]
    assert fresh["flattered_by"] == fresh["in_the_search"]["difference"] - fresh["difference"]["mean"]
    best = load(ControllerRunConfig, run / "best.toml")
    assert best.controller == "fixed"
    assert best.fixed == FixedConfig(first=1, period=1, **search["best"]["values"])
    assert best.training.gates == HASTY.gates, "under which it was found"
    assert (run / "best.toml").read_text().startswith("# From: a search\n")


def test_trials_play_the_same_hosts_and_the_comparison_others(found: tuple[Path, dict[str, Any]]) -> None:
    run, summary = found
    seeds: dict[str, list[int]] = {}
    for envelope in read_events(run / "events.jsonl"):
        if isinstance(envelope.event, HostStarted):
            seeds.setdefault(envelope.event.controller, []).append(envelope.event.seed)
    best, fresh = summary["search"]["best"]["trial"], {row["seed"] for row in summary["search"]["fresh"]["rows"]}
    last = summary["search"]["rungs"][-1]["hosts"]
    assert seeds[f"fixed, trial {best}"] == list(range(last + 6))
    assert sorted(fresh) == list(range(last, last + 6))
    for trial, played in seeds.items():
        assert len(played) == len(set(played)), "no host is played twice"
        searched = [seed for seed in played if seed not in fresh]
        assert searched == list(range(len(searched)))
        assert fresh <= set(played) or not fresh & set(played), trial


def test_several_tasks_take_turns(tmp_path: Path) -> None:
    summary = start(quick(task=("digits", "stdlib"), fix={"train_size": "64"}, epochs=4, budget=150, fresh=2), tmp_path / "run", "a search")
    assert summary["task"] == ["digits", "stdlib"]
    hosts = [e.event for e in read_events(tmp_path / "run" / "events.jsonl") if isinstance(e.event, HostStarted)]
    assert {host.seed % 2: host.task for host in hosts} == {0: "digits", 1: "stdlib"}
    assert len({(host.seed, host.task) for host in hosts}) == len({host.seed for host in hosts})
    with pytest.raises(ConfigError, match="'task' is empty"):
        quick(task=())


def test_the_budget_is_counted_epoch_by_epoch_and_never_exceeded(found: tuple[Path, dict[str, Any]]) -> None:
    run, summary = found
    epochs = sum(isinstance(envelope.event, EpochFinished) for envelope in read_events(run / "events.jsonl"))
    assert epochs == summary["search"]["spent"] <= summary["search"]["budget"]
    assert summary["search"]["spent"] == 7 * sum(trial["hosts"] for trial in summary["search"]["trials"]) + 7 * 2 * 6


def test_the_test_split_is_never_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from esper.tolaria.data import Data, FinalEvaluation

    def refuse(self: Data, ticket: object) -> None:
        raise AssertionError("the test split was read")

    monkeypatch.setattr(Data, "test", refuse)
    search = start(quick(budget=150, epochs=3), tmp_path / "run", "a search")["search"]
    fresh = 2 * search["fresh"]["hosts"] if search["fresh"] else 0
    assert search["spent"] == 3 * (sum(trial["hosts"] for trial in search["trials"]) + fresh) > 0
    with pytest.raises(AssertionError, match="was read"):  # what is watched here is what reading it goes through
        get_task("digits").load(None, torch.device("cpu")).test(FinalEvaluation(asked_by="a test"))


def test_a_search_that_finds_nothing_better_says_so(tmp_path: Path) -> None:
    config = quick(fixed=FixedConfig(first=1, period=1, seeds=0), over={"seeds": "1,2"}, budget=200)
    search = start(config, tmp_path / "run", "a search")["search"]
    assert search["best"] == {"trial": 0, "values": {}}
    assert search["fresh"] is None
    assert search["trials"][0]["trial"] == 0
    assert load(ControllerRunConfig, tmp_path / "run" / "best.toml").fixed == config.fixed


def test_a_controller_of_a_plug_in_is_searched_and_its_best_settings_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sower.py").write_text(SOWER)
    common = ["--epochs", "7", "--plugins", "sower.py", "--quiet", *GATES.split(), *FIX.split()]
    arguments = "--member standard --budget 150 --hosts 2 --fresh 6 --workers 1 --run found --json figures.json"
    assert main(["tune", "sower", *arguments.split(), *common]) == 0
    told = capsys.readouterr().out
    assert "it does better than the present settings" in told
    assert "best settings: found/best.toml" in told
    assert json.loads(Path("figures.json").read_text()) == json.loads(Path("found/summary.json").read_text())
    assert json.loads(Path("figures.json").read_text())["search"]["space"] == {"seeds": "0..2"}
    assert '[settings]\nseeds = "0"\nmotto = "\\"sow\\""\n' in Path("found/best.toml").read_text()
    assert main(["train", "heuristic", "--config", "found/best.toml", "--hosts", "1", "--no-control", "--run", "grown", *common]) == 0
    (host,) = json.loads(Path("grown/summary.json").read_text())["hosts"]
    assert (host["controller"], host["germinated"]) == ("sower", 0)
    (compared,) = contenders(CompareConfig(policies=("found",)))
    assert (compared.controller, compared.settings.seeds) == ("sower", 0)
    assert main(["runs", "."]) == 0
    assert "gained" in capsys.readouterr().out


# Going on


@pytest.mark.parametrize("method", ["random", "optuna"])
def test_a_search_that_crashes_again_and_again_ends_as_one_left_alone(method: Any, tmp_path: Path) -> None:
    if method == "optuna":
        pytest.importorskip("optuna")
    alone, config = tmp_path / "alone", quick(method=method, epochs=2, budget=90)
    start(config, alone, "a search")
    with pytest.raises(Crash):
        start(config, tmp_path / "crashed", "a search", display=CrashAfter(1))
    for round in (2, 4):
        with pytest.raises(Crash):
            resume(tmp_path / "crashed", display=CrashAfter(round))
    resume(tmp_path / "crashed")
    left, crashed = outcome(alone), outcome(tmp_path / "crashed")
    assert [name for name in left if left[name] != crashed[name]] == []
    assert (alone / "best.toml").read_text() == (tmp_path / "crashed" / "best.toml").read_text()


def test_how_many_hosts_are_played_together_changes_nothing(tmp_path: Path) -> None:
    few, many = (start(quick(epochs=2, budget=90, together=count), tmp_path / str(count), "a search")["search"] for count in (3, 16))
    assert few == many


# The plan


def test_the_better_third_goes_on_to_three_times_as_many_hosts() -> None:
    found = plan(20, 8, 10, lambda number: 5)
    assert [(rung.trials, rung.hosts) for rung in found.rungs] == [(20, 8), (6, 24), (2, 72)]
    assert found.fresh == range(72, 82)
    assert found.searching == 5 * (20 * 8 + 6 * 16 + 2 * 48)
    assert found.comparing == 5 * 2 * 10


@pytest.mark.parametrize("budget", [180, 181, 1000, 4321, 20_000, 99_999])
def test_the_largest_plan_fits_the_budget_and_one_trial_more_does_not(budget: int) -> None:
    def epochs(number: int) -> int:
        return 5

    found = largest_plan(budget, 8, 10, epochs, most_trials=10**6, most_hosts=10**6)
    assert found.cost <= budget < plan(found.trials + 1, 8, 10, epochs).cost
    few = largest_plan(budget, 8, 10, epochs, most_trials=3, most_hosts=10**6)
    assert few.trials == min(3, found.trials)
    near = largest_plan(budget, 8, 10, epochs, most_trials=10**6, most_hosts=40)
    assert near.fresh.stop <= 40


def test_a_budget_that_is_too_small_names_the_smallest_that_is_enough() -> None:
    with pytest.raises(ConfigError, match=r"a budget of 179 host epochs is too small: .* take 180; raise --budget"):
        largest_plan(179, 8, 10, lambda number: 5, most_trials=100, most_hosts=100)
    with pytest.raises(ConfigError, match="18 hosts are needed and there are seeds for 17"):
        largest_plan(180, 8, 10, lambda number: 5, most_trials=100, most_hosts=17)


# What is drawn


def test_random_points_are_different_few_settings_at_a_time_and_the_same_again() -> None:
    heuristic = CONTROLLERS["heuristic"]
    space = read_space(heuristic.config(), heuristic.space, "here")
    points = [point for point, _ in zip(random_points(space, 3, 4), range(300), strict=False)]
    assert points == [point for point, _ in zip(random_points(space, 3, 4), range(300), strict=False)]
    assert points != [point for point, _ in zip(random_points(space, 4, 4), range(300), strict=False)]
    assert all(points.count(point) == 1 for point in points)
    assert 3 < sum(map(len, points)) / len(points) < 5
    assert set().union(*points) == set(space), "every setting has its turn"
    for point in points:
        HeuristicConfig(**{**point, "style": 0} if "style" in point else point)


def test_a_small_space_is_used_up_and_then_over() -> None:
    space = read_space(FixedConfig(), {"seeds": "0..3", "tempo": "3,5"}, "here")
    points = list(random_points(space, 0))
    assert len(points) == 8
    assert all(set(point) == {"seeds", "tempo"} for point in points)


def test_every_registered_space_fits_its_controller() -> None:
    spaces = {kind.name: (kind, read_space(kind.config(), kind.space, kind.name)) for kind in CONTROLLERS.values() if kind.space}
    for kind, space in spaces.values():
        assert set(space) == set(kind.space)
        for point in list(islice(random_points(space, 0), 20)):
            replace_fields(kind.config(), point, kind.name)  # every point of the space is a config
    assert all(default_space(kind.config()) for name, kind in CONTROLLERS.items() if name in ("heuristic", "fixed", "random"))


def test_optuna_learns_from_what_it_is_told_and_needs_nothing_else() -> None:
    pytest.importorskip("optuna")
    space = read_space(HeuristicConfig(), {"keep_noise": "0..3", "tempo": "3,5,7", "horizon": "0..8"}, "here")
    told: list[tuple[dict[str, Any], float]] = [({"keep_noise": 9.0, "tempo": 3, "horizon": 3}, 0.0)]  # from outside of the space
    for number in range(1, 30):
        point = optuna_point(space, 0, number, told)
        assert point == optuna_point(space, 0, number, told)
        told.append((point, -abs(point["keep_noise"] - 2.0)))
    late = [abs(point["keep_noise"] - 2.0) for point, _ in told[-8:]]
    assert sum(late) / len(late) < 0.5


# What cannot be searched


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budget": 10}, "a budget of 10 host epochs is too small"),
        ({"over": {"sedes": "0..3"}}, "unknown key 'sedes'; did you mean 'seeds'?"),
        ({"over": {"seeds": "2"}}, "holds the present settings and nothing else"),
        ({"controller": "wait"}, "unknown key 'seeds'"),
        ({"controller": "wait", "over": {}}, "the controller 'wait' has no settings that can be searched"),
        ({"controller": "fixd"}, "unknown controller 'fixd'; did you mean 'fixed'?"),
        ({"controller": "a/policy.safetensors"}, "a trained policy has no settings to search"),
        ({"settings": {"seeds": "1"}}, "'settings' are those of a plug-in's controller; expected 'seeds' as --fixed.seeds"),
        ({"seed": 1_000_000}, "host seed 1000000 is for training; esper tune takes development seeds"),
        ({"seed": 999_995}, "8 hosts are needed and there are seeds for 5"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_played(values: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        SearchRun(replace(quick(), **values), Hub())
