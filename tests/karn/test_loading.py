"""`esper.load_run`: a run in Python, as plain values, data frames, answers to queries, and in a notebook."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import esper
from esper.karn import views
from esper.karn.query_tables import TABLES
from esper.leyline.errors import ConfigError, EventError, RunError, UnknownNameError
from esper.nissa import read_events
from tests.karn.copies import cut_short


def test_a_run_is_what_the_views_say(recorded_runs: Path) -> None:
    run = esper.load_run(recorded_runs / "learned")
    for name in (
        "overview",
        "lives",
        "rounds",
        "entropies",
        "rewards",
        "actions",
        "arms",
        "blueprints",
        "calibration",
        "distribution",
        "flags",
    ):
        assert getattr(run, name)() == getattr(views, name)(run.record)
    assert run.host(0) == views.host(run.record, 0)
    assert run.decision(0, 1) == views.decision(run.record, 0, 1)
    assert len(run.hosts()) == views.hosts(run.record)["total"]
    assert run.headline()[0]["value"] == run.summary["examination"]["arms"]["policy"]["score"]  # type: ignore[index]
    assert (run.info.status, run.config["kind"], run.path) == ("finished", "learn", recorded_runs / "learned")
    assert len(run.events()) == len(list(read_events(run.path / "events.jsonl")))
    assert {row["host"] for row in run.events("decided", host=2)} == {2}
    assert run.query("select count(*) as n from decided") == [{"n": len(run.events("decided"))}]


def test_every_view_is_a_data_frame(recorded_runs: Path) -> None:
    run = esper.load_run(recorded_runs / "grown")
    for name, table in TABLES.items():
        assert list(run.frame(name).columns) == list(table.columns)
    hosts = run.frame("hosts")
    assert hosts["val_accuracy"].tolist() == [row["val_accuracy"] for row in run.hosts()]
    assert len(run.frame("epochs")) == len(run.frame("epoch_finished")) == len(run.events("epoch_finished"))


def test_it_is_drawn(recorded_runs: Path) -> None:
    run = esper.load_run(recorded_runs / "learned")
    figure = run.plot("accuracy")
    assert isinstance(figure, Figure)
    assert figure.axes
    drawn = run.plot()
    assert isinstance(drawn, list)
    assert len(drawn) > 3
    with pytest.raises(UnknownNameError, match="unknown chart 'acuracy'; did you mean 'accuracy'"):
        run.plot("acuracy")
    with pytest.raises(ConfigError, match="has nothing to draw as 'calibration'"):
        esper.load_run(recorded_runs / "grown").plot("calibration")


def test_it_shows_itself_shortly_and_as_text(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs / "grown", tmp_path / "<b>")
    run = esper.load_run(tmp_path / "<b>")
    accuracy = run.headline()[0]["text"]
    assert repr(run).startswith(f"<Run {tmp_path / '<b>'}: run on digits, finished; test accuracy {accuracy}; ")
    html = run._repr_html_()
    assert "<b>&lt;b&gt;</b>" in html
    assert f"<td>{accuracy}</td>" in html
    part = esper.load_run(cut_short(recorded_runs / "grown", tmp_path / "part", rounds=2))
    assert "interrupted, epoch 2 of 8" in repr(part)


def test_a_run_that_goes_on_is_read_on(recorded_runs: Path, tmp_path: Path) -> None:
    run = esper.load_run(cut_short(recorded_runs / "grown", tmp_path / "run", rounds=2))
    assert (run.overview()["progress"]["done"], run.refresh(), run.summary) == (2, False, None)
    for name in ("events.jsonl", "summary.json"):
        shutil.copy(recorded_runs / "grown" / name, tmp_path / "run" / name)
    assert run.refresh()
    assert (run.overview()["progress"]["done"], run.info.status) == (8, "finished")


def test_mistakes_are_said(recorded_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such folder"):
        esper.load_run(tmp_path / "nowhere")
    run = esper.load_run(recorded_runs / "grown")
    with pytest.raises(UnknownNameError, match="unknown kind of event 'decide'; did you mean 'decided'"):
        run.events("decide")
    with pytest.raises(UnknownNameError, match="unknown view 'host'; did you mean 'hosts'"):
        run.frame("host")
    damaged = cut_short(recorded_runs / "grown", tmp_path / "damaged", rounds=2, torn=b"nothing\n")
    with pytest.raises(EventError, match="is damaged: expected an event, found 'nothing'"):
        esper.load_run(damaged)
