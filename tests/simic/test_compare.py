"""Comparisons: equal deciders have equal figures, baselines are what they say, and a killed run ends as one left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.kasmina.blueprints import names
from esper.leyline.actions import Op
from esper.leyline.errors import CheckpointError, ConfigError, RunError, UnknownNameError
from esper.leyline.reports import Topology
from esper.leyline.seeds import Purpose, purpose_of
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.growth.play import ControllerDecider, Play
from esper.simic.runs.compare import CompareRun
from esper.simic.runs.compare_config import CompareConfig
from esper.simic.runs.controller import ControllerRun
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import resume, start
from esper.tamiyo import FixedConfig, make
from esper.tamiyo.policy.network import PolicyConfig
from esper.tamiyo.policy.policy import Policy
from esper.tamiyo.policy.policy_file import save_policy
from esper.tolaria.data import Data
from tests.simic.runs import HASTY, Crash, CrashAfter, opinionated

TINY = CompareConfig(
    policies=("fixed",),
    seeds=2,
    epochs=6,
    together=2,
    workers=1,
    fix={"widths": "[2,2,4]", "kernel": "1", "train_size": "100"},
    training=HASTY,
    fixed=FixedConfig(first=1, period=1),
)
"""Hosts in which the fixed schedule keeps something within six epochs."""


def patient() -> Policy:
    """A policy that waits, whatever it sees."""
    blueprints = tuple(dict.fromkeys(name for topology in Topology for name in names(topology)))
    policy = Policy(PolicyConfig(blueprints=blueprints, hidden=16, slot_width=8), torch.Generator().manual_seed(2))
    with torch.no_grad():
        policy.heads.op.bias[Op.WAIT] = 1e4
    return policy


def compared(config: CompareConfig) -> dict[str, Any]:
    """The summary of a comparison that nothing is written of."""
    run = CompareRun(config, Hub())
    try:
        while not run.done:
            run.run_round()
        return run.end()
    finally:
        run.close()


TASKS = replace(TINY, task=("digits", "stdlib"), seeds=3, epochs=3, fix={"train_size": "64"})
"""A few hosts of two tasks each, in chunks of two."""
PLANS = {"digits": 'blueprints = ["depthwise"]\nseeds = 1\nfirst = 1\n', "stdlib": 'blueprints = ["mlp_small"]\nseeds = 2\nperiod = 1\n'}


def searched(folder: Path) -> dict[str, Path]:
    """A plan for each task: for the first in the folder of a search, for the second as a file."""
    (folder / "headroom").mkdir()
    found = {"digits": folder / "headroom", "stdlib": folder / "text.toml"}
    (found["digits"] / "plan.toml").write_text(f"# the best single plan\n[fixed]\n{PLANS['digits']}")
    found["stdlib"].write_text(f"[fixed]\n{PLANS['stdlib']}")
    return found


def rows_of(summary: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "arm"} for row in summary["rows"] if row["arm"] == arm]


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    """All baselines on two hosts."""
    return compared(replace(TINY, arms=("all",)))


# Equal deciders


def test_a_policy_that_always_waits_scores_exactly_as_wait(tmp_path: Path) -> None:
    save_policy(patient(), tmp_path / "patient.safetensors")
    summary = compared(replace(TINY, policies=(str(tmp_path / "patient.safetensors"),), arms=("wait",)))
    assert rows_of(summary, "patient") == rows_of(summary, "wait")
    (pair,) = summary["comparison"]["pairs"]
    assert (pair["score"]["difference"]["mean"], pair["operations"]) == (0.0, 1.0)


def test_a_copy_of_the_heuristic_scores_exactly_as_the_heuristic(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.toml").write_text("[heuristic]\noptimism = 2.0\n")
    config = replace(TINY, policies=(str(tmp_path / "run"),), arms=("heuristic",), tuned=tmp_path / "run" / "best.toml")
    summary = compared(replace(config, epochs=8, fix={"train_size": "300"}))
    assert rows_of(summary, "run") == rows_of(summary, "heuristic") == rows_of(summary, "tuned")
    assert sum(row["germinated"] for row in rows_of(summary, "run")), "which grows something"


def test_several_hosts_at_a_time_in_several_processes_have_the_figures_of_one(tmp_path: Path) -> None:
    alone, together = (compared(replace(TINY, epochs=3, together=chunk, workers=workers)) for chunk, workers in ((1, 1), (2, 2)))
    assert alone["rows"] == together["rows"]


# Baselines


def test_arms_that_play_at_once_have_the_figures_of_arms_one_after_another(everything: dict[str, Any], tmp_path: Path) -> None:
    run = CompareRun(replace(TINY, arms=("all",), abreast=True), Hub())
    assert run.rounds == 3, "all but static-final and static-final-flops, which depend on how others ended"
    abreast = compared(replace(TINY, arms=("all",), abreast=True))
    assert abreast["rows"] == everything["rows"]
    assert abreast["comparison"] == everything["comparison"]
    assert all(seconds > 0 for seconds in abreast["wall_clock"].values())
    # A policy that learned decides for hosts of its own, whatever places they have, and over several tasks and chunks.
    save_policy(opinionated(), tmp_path / "policy.safetensors")
    config = replace(TASKS, policies=("heuristic", str(tmp_path / "policy.safetensors")), arms=("wait", "random"), epochs=6)
    one, other = (compared(replace(config, abreast=abreast)) for abreast in (False, True))
    assert one["rows"] == other["rows"]


def test_every_arm_plays_the_same_examination_hosts(everything: dict[str, Any]) -> None:
    arms = list(everything["comparison"]["arms"])
    growing, static = ["fixed", "wait", "random", "heuristic"], ["static-final", "static-final-flops", "static-largest", "sweep"]
    assert arms == [*growing, *static]
    for arm in arms:
        assert [row["seed"] for row in rows_of(everything, arm)] == list(Purpose.EXAMINATION.seeds(2))
    assert len(everything["comparison"]["pairs"]) == len(arms) * (len(arms) - 1) // 2


def test_static_final_is_what_the_first_policy_grew_from_the_first_step_on(everything: dict[str, Any]) -> None:
    grown, static, flops = (rows_of(everything, arm) for arm in ("fixed", "static-final", "static-final-flops"))
    assert any(row["growth"] > 1 for row in grown), "something grew"
    for one, other, again in zip(grown, static, flops, strict=True):
        assert one["parameters"] == other["parameters"] == again["parameters"]
        assert one["epochs"] == other["epochs"]
        assert (other["counterfactual"], other["germinated"]) == (0, 0)
        epoch = other["operations"] / other["epochs"]
        assert again["operations"] <= one["operations"] < again["operations"] + epoch, "as many epochs as the operations allow"


def test_static_largest_is_the_largest_there_is(everything: dict[str, Any]) -> None:
    most = max(row["parameters"] for row in everything["rows"])
    assert {row["parameters"] for row in rows_of(everything, "static-largest")} == {most}


def test_a_sweep_keeps_the_best_on_val_and_pays_for_all(everything: dict[str, Any]) -> None:
    for bare, largest, best in zip(*(rows_of(everything, arm) for arm in ("wait", "static-largest", "sweep")), strict=True):
        assert best["val_score"] >= max(bare["val_score"], largest["val_score"])
        assert best["operations"] > bare["operations"] + largest["operations"], "four sizes, of which these are the ends"


def test_a_plan_is_what_fixed_does(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("[fixed]\nseeds = 0\n")
    summary = compared(replace(TINY, policies=(str(tmp_path), "fixed"), plan=tmp_path / "plan.toml"))
    assert rows_of(summary, "fixed") == rows_of(summary, "wait") == rows_of(summary, tmp_path.name), "which is a run folder as well"


# Several tasks


def test_tasks_are_played_one_after_another_and_no_chunk_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def noted(self: Play, *given: Any) -> list[Any]:
        played.append([(host.arm, host.task, host.seed - Purpose.EXAMINATION.first) for host in self.started])
        return through(self, *given)

    through = Play.through
    monkeypatch.setattr(Play, "through", noted)
    summary = compared(replace(TASKS, epochs=1))
    chunks = [("digits", [0, 1]), ("digits", [2]), ("stdlib", [0, 1]), ("stdlib", [2])]
    assert played == [[(arm, task, seed) for seed in seeds] for task, seeds in chunks for arm in ("fixed", "wait")]
    every = [(task, seed) for task in TASKS.task for seed in Purpose.EXAMINATION.seeds(3)]
    for arm in ("fixed", "wait"):
        assert [(row["task"], row["seed"]) for row in rows_of(summary, arm)] == every


def test_static_final_of_several_tasks_is_what_grew_on_this_very_host() -> None:
    summary = compared(replace(TASKS, epochs=6, seeds=1, arms=("static-final",)))
    grown, static = rows_of(summary, "fixed"), rows_of(summary, "static-final")
    assert any(row["growth"] > 1 for row in grown), "something grew"
    assert [row["parameters"] for row in grown] == [row["parameters"] for row in static]


def test_a_plan_for_each_task_is_what_searched_does_there(tmp_path: Path) -> None:
    summary = compared(replace(TASKS, seeds=2, searched=searched(tmp_path)))
    assert list(summary["comparison"]["arms"]) == ["fixed", "wait", "searched"]
    grown = {row["task"]: {seed["blueprint"] for seed in row["slots"].values()} - {""} for row in rows_of(summary, "searched")}
    assert grown == {"digits": {"depthwise"}, "stdlib": {"mlp_small"}}
    assert {(row["task"], row["germinated"]) for row in rows_of(summary, "searched")} == {("digits", 1), ("stdlib", 2)}
    alone = compared(replace(TASKS, seeds=2, task=("stdlib",), plan=tmp_path / "text.toml"))
    assert rows_of(alone, "fixed") == rows_of(summary, "searched")[2:], "as if the task were alone"


def test_a_comparison_of_several_tasks_goes_on_from_anywhere_with_the_plans_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = searched(tmp_path)
    monkeypatch.chdir(tmp_path)
    here = {task: path.relative_to(tmp_path) for task, path in plans.items()}
    config = replace(TASKS, epochs=1, seeds=2, together=1, arms=(), searched=here)
    left_alone = start(config, tmp_path / "alone", "a comparison")
    with pytest.raises(Crash):
        start(config, tmp_path / "crashed", "a comparison", display=CrashAfter(5))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plans["stdlib"].write_text("[fixed]\nseeds = 0\n")
    with pytest.raises(CheckpointError, match=r"text\.toml is not what the comparison was started with"):
        resume(tmp_path / "crashed")
    plans["stdlib"].write_text(f"[fixed]\n{PLANS['stdlib']}")
    went_on = resume(tmp_path / "crashed")
    assert {**went_on, "wall_clock": 0, "run": 0} == {**left_alone, "wall_clock": 0, "run": 0}


# Seeds and the test split


def test_only_a_comparison_may_have_examination_hosts() -> None:
    run = CompareRun(replace(TINY, first=5), Hub())
    assert {purpose_of(start.seed) for start in run.starts} == {Purpose.EXAMINATION}
    first = Purpose.EXAMINATION.first
    with pytest.raises(ConfigError, match=f"host seed {first} is for examination"):
        ControllerRun(ControllerRunConfig(hosts=2, seed=first - 1), Hub())
    with pytest.raises(ConfigError, match="is for examination; practice takes training seeds"):
        PPORun(PPORunConfig(seed=200_000), Hub())


def test_learning_its_examination_and_rewards_never_read_the_test_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the test split was read")

    monkeypatch.setattr(Data, "test", refused)
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    fix = {"widths": "[2, 2]", "train_size": "60"}
    run = PPORun(PPORunConfig(rounds=1, hosts=2, pool=2, examined=2, epochs=2, workers=1, fix=fix, hidden=16, slot_width=16), Hub())
    while not run.done:
        run.run_round()
    assert set(run.examination()["arms"]) == set(run.arm_names)
    run.close()
    rewarded = Play(Growth(GrowthConfig(epochs=2, fix=fix)), ControllerDecider([make("random")]), [Start("digits", 0)]).through()
    assert rewarded[0].control_accuracy is not None, "the twin was trained as well"
    with pytest.raises(AssertionError, match="the test split was read"):
        compared(replace(TINY, epochs=1))


# Going on


@pytest.mark.parametrize(("engine", "crashes"), [("serial", (1, 4)), ("fleet", (3,))])
def test_a_comparison_that_crashes_ends_as_one_left_alone(engine: Any, crashes: Sequence[int], tmp_path: Path) -> None:
    save_policy(opinionated(), tmp_path / "policy.safetensors")
    policies = ("fixed", str(tmp_path / "policy.safetensors"))
    config = replace(TINY, policies=policies, arms=("static-final",), epochs=4, together=1, engine=engine)
    left_alone = start(config, tmp_path / "alone", "a comparison")
    for number, round in enumerate(crashes):
        run, crash = tmp_path / "crashed", CrashAfter(round)
        with pytest.raises(Crash):
            start(config, run, "a comparison", display=crash) if number == 0 else resume(run, display=crash)
    went_on = resume(tmp_path / "crashed")
    assert {**went_on, "wall_clock": 0, "run": 0} == {**left_alone, "wall_clock": 0, "run": 0}


def test_another_policy_under_the_same_name_is_refused(tmp_path: Path) -> None:
    save_policy(opinionated(), tmp_path / "policy.safetensors")
    config = replace(TINY, policies=(str(tmp_path / "policy.safetensors"),), epochs=1)
    with pytest.raises(Crash):
        start(config, tmp_path / "run", "a comparison", display=CrashAfter(2))
    save_policy(patient(), tmp_path / "policy.safetensors")
    with pytest.raises(CheckpointError, match=r"policy\.safetensors is not what the comparison was started with"):
        resume(tmp_path / "run")


# What cannot be compared


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"policies": ()}, ConfigError, "no policy to compare; expected the name of a controller"),
        ({"policies": ("heuristik",)}, UnknownNameError, "did you mean 'heuristic'"),
        ({"arms": ("al",)}, UnknownNameError, "did you mean 'all'"),
        ({"policies": ("wait",)}, ConfigError, "nothing to compare it with"),
        ({"policies": ("fixed", "fixed")}, ConfigError, "'fixed' is named twice"),
        ({"arms": ("tuned",)}, ConfigError, "needs --tuned FILE"),
        ({"policies": ("{folder}",)}, RunError, "holds no policy to compare"),
        ({"tuned": "{folder}/odd.toml"}, ConfigError, "expected a \\[heuristic\\] table"),
        ({"policies": ("{folder}/none.toml",)}, ConfigError, "none.toml"),
        ({"plan": "{folder}/wrong.toml"}, ConfigError, "perio"),
        ({"task": ("digits", "stdlib", "digits")}, ConfigError, "'task' has 'digits' twice"),
        ({"arms": ("searched",)}, ConfigError, "the arm 'searched' needs --searched TASK=FILE for each task"),
        ({"searched": {"digit": "{folder}/odd.toml"}}, ConfigError, "plan for 'digit', which is not among the tasks: digits"),
        ({"searched": {"digits": "{folder}/odd.toml"}, "task": ("digits", "stdlib")}, ConfigError, "no plan for 'stdlib'; expected one"),
        ({"searched": {"digits": "{folder}/rule.toml"}}, ConfigError, "rule.toml has the tables .*; expected a \\[fixed\\] table"),
        ({"searched": {"digits": "{folder}/none.toml"}}, ConfigError, "no config file at .*none.toml"),
        ({"searched": {"digits": "{folder}"}}, RunError, "holds no plan; expected the folder of a finished esper headroom"),
        ({"searched": {"digits": "{folder}/wrong.toml"}}, ConfigError, "perio"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text("[fixed]\nseeds = 1\n")
    (tmp_path / "wrong.toml").write_text("[fixed]\nperio = 1\n")
    (tmp_path / "rule.toml").write_text("[heuristic]\n")

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: put(each) for name, each in value.items()}
        return Path(value.format(folder=tmp_path)) if isinstance(value, str) else tuple(each.format(folder=tmp_path) for each in value)

    wanted = {name: put(value) for name, value in changes.items()}
    with pytest.raises(error, match=words):
        CompareRun(replace(TINY, **wanted), Hub())
