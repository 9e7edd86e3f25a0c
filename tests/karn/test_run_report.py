"""A report shows the figures of the record, says how a run stands, takes names for text, and has the same bytes every time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from esper.karn import views
from esper.karn.record import Record
from esper.karn.run_charts import CHARTS, charts_of
from esper.karn.run_facts import changed_settings
from esper.karn.run_report import report_page
from esper.leyline.errors import EventError
from esper.leyline.events import Anomaly, Envelope, to_json_line
from esper.simic.learning.offline_config import BCConfig
from esper.simic.runs.compare_config import CompareConfig
from esper.simic.runs.headroom_config import HeadroomConfig
from esper.simic.runs.runner import start
from esper.simic.runs.search_config import SearchConfig
from esper.simic.runs.sweep_config import SweepConfig
from tests.karn.copies import cut_short
from tests.simic.runs import small

FIX = {"widths": "[2,2]", "train_size": "60"}
TINY: dict[str, Any] = {"epochs": 2, "workers": 1, "fix": FIX}
ODD = "<script>alert(1)</script>&\"' $x^2$ \x1b"


@pytest.fixture(scope="module")
def kinds(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of every other kind, of a fraction of a second each."""
    folder = tmp_path_factory.mktemp("kinds")
    configs = {
        "compare": CompareConfig(policies=("fixed",), seeds=2, **TINY),
        "headroom": HeadroomConfig(hosts=6, blueprints=("norm",), searches=0, repeated=0, together=40, **TINY),
        "tune": SearchConfig(controller="fixed", budget=120, fresh=2, **TINY),
        "sweep": SweepConfig(run=small(hosts=1, epochs=3, control=False), over={"fixed.seeds": "1,0"}),
        "bc": BCConfig(runs=(recorded_runs / "grown",), epochs=2, hidden=16, slot_width=8),
    }
    for name, config in configs.items():
        start(config, folder / name, f"esper {name}")
    return {name: folder / name for name in configs}


class Figures(HTMLParser):
    """The figures of a page with all their digits, by label, and everything that it would load or run."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.figures: dict[str, float] = {}
        self.loaded: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "data" and found.get("value"):
            self.figures[found["title"] or ""] = float(found["value"] or "")
        local = [value for name, value in attrs if name == "href" and not (value or "").startswith("#")]
        handlers = [name for name in found if name.startswith("on")]
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base") or "src" in found or local or handlers:
            self.loaded.append(self.get_starttag_text() or "")


def page_of(*paths: Path) -> str:
    return report_page([Record(path) for path in paths])


def words(content: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", content)).split())


# Figures


def test_figures_are_those_of_the_summary(recorded_runs: Path) -> None:
    summary = json.loads((recorded_runs / "grown" / "summary.json").read_text())
    content = page_of(recorded_runs / "grown")
    shown = Figures(content).figures
    tests = [host["test_accuracy"] for host in summary["hosts"]]
    assert shown["test accuracy"] == sum(tests) / len(tests)
    assert shown["against the control"] == summary["against_control"]["test_accuracy"]["mean"]
    assert shown["operations"] == summary["operations_x"]["all"]
    for host in summary["hosts"]:
        assert f"<td class=number>{host['val_accuracy']:.2f}</td><td class=number>{host['test_accuracy']:.2f}</td>" in content
    examination = json.loads((recorded_runs / "learned" / "summary.json").read_text())["examination"]
    learned = page_of(recorded_runs / "learned")
    shown = Figures(learned).figures
    assert shown["score"] == examination["arms"]["policy"]["score"]
    for arm, difference in examination["policy_against"].items():
        assert shown[f"against {arm}"] == difference["mean"]
    for arm, row in examination["arms"].items():
        assert f"<td>{arm}</td><td class=number>{examination['hosts']}</td><td class=number>{row['score']:.2f}</td>" in learned


def test_a_run_has_the_charts_that_it_has_something_for(recorded_runs: Path, kinds: dict[str, Path]) -> None:
    grown, learned = set(charts_of(Record(recorded_runs / "grown"))), set(charts_of(Record(recorded_runs / "learned")))
    costs = {"accuracy_against_parameters", "accuracy_against_operations"}
    assert grown == {"accuracy", "growth", *costs, "actions", "rewards", "lives", "blueprints"}
    assert set(CHARTS) - {"calibration"} <= learned | {"lives", "blueprints"}, "a policy that hardly learned may have planted nothing"
    for name, expected in {
        "compare": {"arms", "differences", *costs},
        "headroom": {"accuracy", "arms", "differences"},
        "tune": {"arms", "actions"},
        "sweep": {"arms", "differences"},
        "bc": {"accuracy"},
    }.items():
        assert expected <= set(charts_of(Record(kinds[name]))), name


@pytest.mark.parametrize("kind", ["compare", "headroom", "tune", "sweep", "bc"])
def test_every_kind_of_run_has_a_report(kinds: dict[str, Path], kind: str) -> None:
    record = Record(kinds[kind])
    content = page_of(kinds[kind])
    assert "finished" in content
    assert f"<pre>esper {kind}</pre>" in content
    shown = Figures(content)
    assert shown.loaded == []
    assert shown.figures == {each["label"]: each["value"] for each in views.overview(record)["headline"] if each["value"] is not None}


def test_only_settings_that_were_chosen_are_shown(recorded_runs: Path, kinds: dict[str, Path]) -> None:
    shown = {key: (value, usual) for key, value, usual in changed_settings(Record(recorded_runs / "grown"))}
    assert shown["hosts"] == ("3", "4")
    assert shown["controller"] == ("fixed", "heuristic")
    assert "seed" not in shown
    assert ("run.hosts", "1", "4") in changed_settings(Record(kinds["sweep"]))


# How a run stands


def test_a_run_that_was_killed_says_so_with_the_command_to_go_on(recorded_runs: Path, tmp_path: Path) -> None:
    run = cut_short(recorded_runs / "grown", tmp_path / "stopped", rounds=4, torn=b'{"v":4,"seq":')
    said = words(page_of(run))
    assert "stopped is interrupted: 4 of 8 epochs done; to go on, in the folder that holds it: esper train --resume stopped" in said
    assert str(tmp_path) not in said
    assert Figures(page_of(run)).figures.keys() >= {"val accuracy", "against the control"}


def test_a_run_without_events_is_shown_from_its_summary(recorded_runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "bare"
    shutil.copytree(recorded_runs / "grown", run)
    (run / "events.jsonl").unlink()
    assert Figures(page_of(run)).figures == Figures(page_of(recorded_runs / "grown")).figures


def test_red_flags_stand_on_top(recorded_runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "flagged"
    shutil.copytree(recorded_runs / "grown", run)
    events = run / "events.jsonl"
    anomaly = Anomaly(detector="rollbacks", text=f"three in a row {ODD}", value=3.0, threshold=2.0)
    line = to_json_line(Envelope(seq=events.read_bytes().count(b"\n"), time=1.0, host=1, epoch=4, event=anomaly))
    with events.open("a") as file:
        file.write(line + "\n")
    content = page_of(run)
    assert content.index("three in a row") < content.index("<h2>Headline</h2>")
    assert "rollbacks (host 1, epoch 4, round" in words(content)
    assert "<script" not in content


@pytest.mark.parametrize("place", ["head", "body"])
def test_a_damaged_event_is_an_error_that_names_its_line(recorded_runs: Path, tmp_path: Path, place: str) -> None:
    run = tmp_path / "damaged"
    shutil.copytree(recorded_runs / "grown", run)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    wanted = next(number for number, line in enumerate(lines) if b'"kind":"host_finished"' in line)
    lines[wanted] = b"nonsense\n" if place == "head" else lines[wanted][:-20] + b"\n"
    (run / "events.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(EventError, match=f"line {wanted + 1}"):
        page_of(run)


# Bytes


def test_names_are_text(recorded_runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(recorded_runs / "grown", run)
    odd = json.dumps(ODD)[1:-1]
    content = (run / "events.jsonl").read_text()
    for name in ("conv_light", "norm", "conv_heavy", "depthwise", "attention", "bottleneck", "conv_small", "fixed", "digits", "r0c0"):
        content = content.replace(f'"{name}"', f'"{odd}"')
    (run / "events.jsonl").write_text(content)
    marker = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**marker, "command": ODD}))
    for page in (page_of(run), page_of(run, recorded_runs / "learned")):
        assert Figures(page).loaded == []
        assert "<img" not in page
        assert "&lt;script&gt;" in page


PROGRAM = """
import sys
from pathlib import Path
from esper.karn.record import Record
from esper.karn.run_report import report_page
sys.stdout.buffer.write(report_page([Record(Path(path)) for path in sys.argv[1:]]).encode())
assert "torch" not in sys.modules
"""


def test_the_same_runs_give_the_same_bytes_wherever_and_whenever_the_report_is_made(recorded_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_runs, tmp_path / "moved")
    found = []
    for seed, zone, folder, names in (("1", "UTC", recorded_runs, str(recorded_runs) + "/"), ("2", "Asia/Tokyo", tmp_path / "moved", "")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        command = [sys.executable, "-c", PROGRAM, f"{names}grown", f"{names}learned"]
        found.append(subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True).stdout)
    assert found[0] == found[1]
    assert found[0].decode() == page_of(recorded_runs / "grown", recorded_runs / "learned")
    assert len(found[0]) < 1_500_000


def test_several_runs_stand_side_by_side_under_their_names(recorded_runs: Path, tmp_path: Path) -> None:
    again = tmp_path / "grown"
    shutil.copytree(recorded_runs / "grown", again)
    content = page_of(recorded_runs / "grown", again)
    assert "Report: grown, grown (2)" in content
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", content)
    assert captions[:4] == ["grown", "grown (2)"] * 2
    costs = content.split("<h2>What accuracy costs</h2>")[1].split("<h2>")[0]
    assert costs.count("<svg") == 2, "one chart for both"
    assert {"grown: hosts", "grown (2): hosts"} <= set(re.findall(r"<text[^>]*>(.*?)</text>", costs))
