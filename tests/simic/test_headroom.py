"""The search for headroom, small: its plans, its stages, its figures, a stop and a resume, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.leyline.config import load
from esper.leyline.errors import ConfigError, UnknownNameError
from esper.leyline.seeds import Purpose, purpose_of
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.learning.dataset import read_dataset
from esper.simic.runs.headroom import WAITING, HeadroomRun, described
from esper.simic.runs.headroom_config import HeadroomConfig
from esper.simic.runs.runner import start

TINY = HeadroomConfig(hosts=6, blueprints=("conv_light",), searches=1, proposals=2, repeated=2, repeats=2, epochs=2, together=20, workers=1)


def test_the_basic_plans_wait_or_put_each_blueprint_at_each_place() -> None:
    run = HeadroomRun(replace(TINY, blueprints=("conv_light", "norm")), Hub())
    words = [described(plan) for plan in run.plans]
    assert words[0] == "wait"
    assert {"norm first", "norm middle", "norm last", "norm first+middle+last", "conv_light first"} < set(words)
    assert len(words) == 1 + 2 * 4
    assert {purpose_of(start.seed) for start in run.starts} == {Purpose.DEVELOPMENT}


def test_hosts_with_fewer_slots_get_no_plan_twice() -> None:
    def plans(**changes: Any) -> list[str]:
        return [described(plan) for plan in HeadroomRun(replace(TINY, blueprints=(), **changes), Hub()).plans]

    two = [name for name in plans(task=("stdlib",)) if name.startswith("attention")]
    assert two == ["attention first", "attention last", "attention first+last"]
    assert [name for name in plans(task=("stdlib",), slots=("r0c1",)) if name.startswith("attention")] == ["attention first"]
    assert "norm middle" in plans(task=("stdlib", "digits")), "one of the tasks has three slots"


def test_a_search_ends_with_figures_a_plan_and_the_same_again(tmp_path: Path) -> None:
    found = [start(TINY, tmp_path / name, "again") for name in ("one", "two")]
    for each in found:
        del each["run"]
    assert found[0] == found[1]
    summary = found[0]
    assert len(summary["plans"]) == 1 + 4 + 2
    assert summary["episodes"] == 6 * 7 + 2 * 3
    assert summary["repetitions"]["pairs"] == 6
    plan = load(ControllerRunConfig, tmp_path / "one" / "plan.toml").fixed
    assert described(plan) == summary["best"]["described"]
    assert all(len(row["scores"]) == 7 for row in summary["rows"])


def test_recorded_plans_can_be_learned_from_by_what_was_best_for_each_host(tmp_path: Path) -> None:
    summary = start(replace(TINY, record=True), tmp_path / "search", "esper headroom")
    dataset, _ = read_dataset([tmp_path / "search"])
    assert len(dataset) == 6 * len(summary["plans"]), "and no repetitions"
    told = {(seed, plan): float(score) for (_, seed, plan), score in zip(dataset.sources, dataset.score, strict=True)}
    for row in summary["rows"]:
        assert [told[row["seed"], plan["described"]] for plan in summary["plans"]] == pytest.approx(row["scores"])
    assert dataset.preferring(4.0).share.sum() == pytest.approx(len(dataset))
    start(TINY, tmp_path / "silent", "esper headroom")
    assert not (tmp_path / "silent" / "episodes").exists()


def test_controllers_play_beside_the_plans_on_the_same_hosts(tmp_path: Path) -> None:
    config = replace(TINY, beside=("heuristic", "random"), record=True, searches=0, repeated=0)
    summary = start(config, tmp_path / "search", "esper headroom")
    plans = {plan["described"] for plan in summary["plans"]}
    assert summary["episodes"] == 6 * (len(plans) + 2)
    dataset, _ = read_dataset([tmp_path / "search"])
    recorded: dict[str, dict[int, float]] = {}
    for (_, seed, name), score in zip(dataset.sources, dataset.score.tolist(), strict=True):
        recorded.setdefault(name, {})[seed] = score
    assert recorded.keys() == plans | {"heuristic", "random"}
    heuristic, other = summary["beside"]
    assert (heuristic["name"], other["name"]) == ("heuristic", "random")
    for each in summary["beside"]:
        assert each["score"]["mean"] == pytest.approx(sum(recorded[each["name"]].values()) / 6)
        best = recorded[summary["best"]["described"]]
        assert each["against_best"]["mean"] == pytest.approx(each["score"]["mean"] - sum(best.values()) / 6)
    alone = start(replace(TINY, searches=0, repeated=0), tmp_path / "alone", "esper headroom")
    assert [row["scores"] for row in summary["rows"]] == [row["scores"] for row in alone["rows"]], "plans do as they do by themselves"
    assert summary["adaptivity"] == alone["adaptivity"]


def test_controllers_can_be_recorded_without_plans(tmp_path: Path) -> None:
    summary = start(replace(TINY, beside=("random",), plans=False, record=True), tmp_path / "search", "esper headroom")
    assert [plan["described"] for plan in summary["plans"]] == ["wait"]
    assert {name for _, _, name in read_dataset([tmp_path / "search"])[0].sources} == {"wait", "random"}


def test_repetitions_have_the_member_and_nothing_else_of_a_host() -> None:
    run = HeadroomRun(TINY, Hub())
    from esper.simic.runs.headroom import Job

    first, again = run._start(Job(0, 1)), run._start(Job(0, 1, 1))
    assert again.member_of == first.seed != again.seed
    assert purpose_of(again.seed) is Purpose.DEVELOPMENT
    environment: Any = run.playing.environment
    one, two = environment.make(first), environment.make(again)
    assert one.host.member == two.host.member
    assert any((a != b).any() for a, b in zip(one.host.model.parameters(), two.host.model.parameters(), strict=True))


def test_a_plan_that_waits_is_the_first() -> None:
    assert HeadroomRun(TINY, Hub()).plans[0] == WAITING


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"blueprints": ("conv_lihgt",)}, UnknownNameError, "conv_light"),
        ({"task": ()}, ConfigError, "task"),
        ({"hosts": 5}, ConfigError, "hosts"),
        ({"beside": ("heurisitc",)}, UnknownNameError, "beside 'heurisitc'.*heuristic"),
        ({"beside": ("wait", "wait")}, ConfigError, "'beside' names wait twice"),
    ],
)
def test_what_cannot_be_searched_is_refused(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        HeadroomRun(replace(TINY, **changes), Hub())


def esper(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "esper.cli.main", "headroom", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, **options)


def test_the_command_stops_where_it_is_told_and_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    """Killed in the middle by a signal that nobody can hear, and resumed."""
    flags = ["--hosts", "6", "--blueprints", "conv_light", "--searches", "1", "--proposals", "1", "--repeated", "0"]
    flags += ["--epochs", "2", "--together", "12", "--workers", "1"]
    command = [sys.executable, "-m", "esper.cli.main", "headroom", *flags, "--run", "killed"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith("round 2/"):
                killed.kill()
                break
    went_on = esper(tmp_path, "--resume", "killed", "--together", "7", "--json", "killed.json", "--html", "killed.html")
    whole = esper(tmp_path, *flags, "--run", "whole", "--json", "whole.json", "--quiet")
    assert went_on.returncode == whole.returncode == 0, went_on.stderr + whole.stderr
    found = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("killed", "whole")]
    for each in found:
        del each["command"]
    assert found[0] == found[1]
    assert "best single plan" in went_on.stdout
    assert "<svg" in (tmp_path / "killed.html").read_text()
    again = esper(tmp_path, "--resume", "killed")
    assert "best single plan" in again.stdout
    for wrong, said in ((["--task", "digist"], "digits"), (["--json", "no/where.json"], "there is no folder"), (["--hosts", "2"], "hosts")):
        refused = esper(tmp_path, *wrong)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
