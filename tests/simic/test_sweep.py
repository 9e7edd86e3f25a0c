"""Sweeps: one run for each point, compared by val score alone, and gone on with after any kind of stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill import outcome
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, LearningError
from esper.leyline.events import ArmExamined, Note
from esper.leyline.score import score
from esper.nissa import read_events
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.runs.configs import read_config
from esper.simic.runs.expert_config import ExpertRunConfig
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import resume, start
from esper.simic.runs.sweep import converged
from esper.simic.runs.sweep_config import SweepConfig
from esper.tolaria.data import Data
from esper.tolaria.storage.runs import read_summary
from tests.simic.runs import HASTY, Crash, CrashAfter, small

DEAR = {"widths": "[2,2]", "kernel": "3", "train_size": "96", "batch": "48", "rent": "100"}


def seeds(**values: Any) -> SweepConfig:
    """How many seeds to grow, where none is best: four points of a second each."""
    run = small(control=False, fix=DEAR, epochs=7, checkpoint_every=3)
    return SweepConfig(run=run, **{"over": {"fixed.seeds": "2,0", "hosts": "1,2"}, **values})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sweep that was left alone, in which nobody may read the test split."""
    run = tmp_path_factory.mktemp("sweep") / "run"

    def refuse(self: Data, ticket: object) -> None:
        raise AssertionError("the test split was read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Data, "test", refuse)
        return run, start(seeds(), run, "a sweep")


def test_every_combination_is_a_run_and_the_best_comes_first(swept: tuple[Path, dict[str, Any]]) -> None:
    run, summary = swept
    points = summary["sweep"]["points"]
    assert sorted(point["point"] for point in points) == [1, 2, 3, 4]
    assert points[0]["values"]["fixed.seeds"] == 0
    assert [point["score"]["mean"] for point in points] == sorted((point["score"]["mean"] for point in points), reverse=True)
    assert summary["sweep"]["best"] == {"point": points[0]["point"], "values": points[0]["values"]}
    best = load(ControllerRunConfig, run / "best.toml")
    assert (best.fixed.seeds, best.hosts) == tuple(points[0]["values"].values())
    assert best.test, "whoever trains with it is free to read the test split"
    for point in points:
        config, made = read_config(run / point["run"] / "config.toml"), read_summary(run / point["run"])
        assert isinstance(config, ControllerRunConfig)
        assert config.fixed.seeds == point["values"]["fixed.seeds"]
        assert len(made["hosts"]) == point["values"]["hosts"] == len(point["scores"])
        assert all(host["test_accuracy"] is None for host in made["hosts"])
        expected = [score(host["val_accuracy"], host["parameters"], host["host_parameters"], 100.0) for host in made["hosts"]]
        assert point["scores"] == expected
        assert point["unit"] == "epochs"
        assert point["converged"] is None or 1 <= point["converged"] <= 7


def test_points_on_the_same_hosts_are_compared_host_by_host(swept: tuple[Path, dict[str, Any]]) -> None:
    best, *others = swept[1]["sweep"]["points"]
    assert best["against_best"] is None
    for point in others:
        if point["values"]["hosts"] == best["values"]["hosts"]:
            assert point["against_best"]["mean"] == point["score"]["mean"] - best["score"]["mean"]
            assert point["against_best"]["wins"] == 0
        else:
            assert point["against_best"] is None


def test_a_sweep_that_crashes_within_points_and_between_them_ends_as_one_left_alone(
    swept: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esper.simic.runs.controller import ControllerRun

    run, played = tmp_path / "run", ControllerRun.run_round

    def crash_at(place: int, epoch: int) -> None:
        def crashing(self: ControllerRun, progress: Any = None) -> None:
            if self.round == epoch and self.folder is not None and self.folder.name == f"{place:03}":
                raise Crash
            played(self, progress)

        monkeypatch.setattr(ControllerRun, "run_round", crashing)

    crash_at(1, 5)  # before there is any checkpoint of the sweep, and after one of the point
    with pytest.raises(Crash):
        start(seeds(), run, "a sweep")
    crash_at(2, 1)  # before the first checkpoint of the point
    with pytest.raises(Crash):
        resume(run)
    monkeypatch.setattr(ControllerRun, "run_round", played)
    with pytest.raises(Crash):
        resume(run, display=CrashAfter(3))
    resume(run)
    for place in (Path(), *(Path("points") / f"{number:03}" for number in range(1, 5))):
        left, crashed = outcome(swept[0] / place), outcome(run / place)
        assert [name for name in left if left[name] != crashed[name]] == [], place
    assert (run / "best.toml").read_text() == (swept[0] / "best.toml").read_text()


def test_points_can_be_drawn_from_ranges(tmp_path: Path) -> None:
    config = seeds(over={"training.clip": "0.1..10:log", "hosts": "1..2"}, points=3)
    config = replace_fields(config, {"run.telemetry.level": "off"}, source="here")
    points = start(config, tmp_path / "run", "a sweep")["sweep"]["points"]
    assert len({point["values"]["training.clip"] for point in points}) == 3
    assert all(0.1 <= point["values"]["training.clip"] <= 10 for point in points)
    assert not list(tmp_path.rglob("events.jsonl")), "no telemetry of the sweep means none of its points"


def test_policies_are_swept_by_their_examination_and_one_that_learns_nothing_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esper.simic.learning.ppo import Learner

    learn = PPORunConfig(
        rounds=2, hosts=2, pool=2, examined=2, workers=1, hidden=16, slot_width=16, epochs=3, training=HASTY,
        fix={"widths": "[2,2]", "train_size": "50", "batch": "50"},
    )  # fmt: skip
    update = Learner.update

    def diverges(self: Learner, rollout: Any) -> dict[str, float]:
        if self.config.learning_rate > 0.5:
            raise LearningError("it diverged")
        return update(self, rollout)

    monkeypatch.setattr(Learner, "update", diverges)
    summary = start(SweepConfig(learn=learn, over={"ppo.learning_rate": "0.9,0.001"}), tmp_path / "run", "a sweep")
    good, bad = summary["sweep"]["points"]
    examination = read_summary(tmp_path / "run" / good["run"])["examination"]
    assert good["score"]["mean"] == pytest.approx(examination["arms"]["policy"]["score"])
    assert good["unit"] == "rounds"
    assert (bad["point"], bad["failed"]) == (1, "it diverged")
    assert load(PPORunConfig, tmp_path / "run" / "best.toml").ppo.learning_rate == 0.001
    events = [envelope.event for envelope in read_events(tmp_path / "run" / "events.jsonl")]
    assert [event.text for event in events if isinstance(event, Note)] == ["point 1: ppo.learning_rate 0.9 failed: it diverged"]
    assert [event.arm for event in events if isinstance(event, ArmExamined)] == ["point 2: ppo.learning_rate 0.001"]


@pytest.mark.parametrize(
    ("course", "rounds"),
    [((10.0, 50.0, 89.0, 90.0, 90.0), 3), ((1.0,), None), ((5.0, 4.0, 3.0), None), ((-2.0, -1.0, -0.5, 0.0), 4), ((0.0, 10.0, 5.0), 2)],
)
def test_a_run_has_converged_once_it_came_95_percent_of_the_way(course: tuple[float, ...], rounds: int | None) -> None:
    assert converged(course) == rounds


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"over": {}}, "there is nothing to search"),
        ({"over": {"host": "1,2"}}, "--over: unknown key 'host'; did you mean 'hosts'?"),
        ({"over": {"hosts": "1..3"}}, "of which a grid has no end; give values as A,B,C, or --points N"),
        ({"over": {"seed": ",".join(map(str, range(200))), "hosts": ",".join(map(str, range(1, 60)))}}, "a grid of 11800 points"),
        ({"over": {"seed": "0,1000000"}}, "host seed 1000000 is for training; esper sweep takes development seeds"),
        ({"over": {"slots": '["r0c0"],["r9c9"]'}}, "unknown slot 'r9c9'"),
    ],
)
def test_what_cannot_be_swept_is_told_in_a_sentence(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=words):
        start(seeds(**values), tmp_path / "run", "a sweep")


def test_a_sweep_is_of_one_method() -> None:
    with pytest.raises(ConfigError, match="one table of 'run', 'learn' and 'expert'"):
        SweepConfig(over={"seed": "0,1"})
    with pytest.raises(ConfigError, match="one table of 'run', 'learn' and 'expert'"):
        SweepConfig(over={"seed": "0,1"}, run=small(), expert=ExpertRunConfig())


def test_forked_search_is_swept_as_ppo_is(tmp_path: Path) -> None:
    expert = ExpertRunConfig(
        rounds=1, hosts=2, moments=1, examined=2, workers=1, hidden=16, slot_width=16, epochs=3, control=False,
        fix={"widths": "[2,2]", "train_size": "50", "batch": "50"},
    )  # fmt: skip
    sweep = SweepConfig(expert=expert, over={"alternatives": "1,2"})
    summary = start(sweep, tmp_path / "run", "a sweep")["sweep"]
    assert summary["method"] == "expert"
    assert {point["values"]["alternatives"] for point in summary["points"]} == {1, 2}
    for point in summary["points"]:
        examination = read_summary(tmp_path / "run" / point["run"])["examination"]
        assert point["score"]["mean"] == pytest.approx(examination["arms"]["policy"]["score"])
    assert load(ExpertRunConfig, tmp_path / "run" / "best.toml").alternatives == summary["best"]["values"]["alternatives"]
