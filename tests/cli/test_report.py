"""`esper report` and the report that a run ends with: the real commands, what they write, and what they refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli.main import EXIT_USAGE, main

TRAIN = [
    *("train", "heuristic", "--hosts", "1", "--epochs", "2", "--no-control", "--no-test"),
    *("--fix", "widths=[2,2]", "train_size=60", "--run", "run", "--quiet"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def esper(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "esper.cli.main", *arguments], capture_output=True, text=True)


def test_a_run_ends_with_its_report_unless_nobody_wants_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "report: run/report.html"
    assert said.err == ""
    content = (tmp_path / "run/report.html").read_bytes()
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "wrote run/report.html\n"
    assert (tmp_path / "run/report.html").read_bytes() == content, "whoever makes it"
    shutil.rmtree(tmp_path / "run")
    assert main([*TRAIN, "--no-report"]) == 0
    assert "report" not in capsys.readouterr().out
    assert not (tmp_path / "run/report.html").exists()


def test_a_report_that_fails_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(TRAIN) == 0
    assert capsys.readouterr().err.startswith("no report: charts need matplotlib")
    assert main(["report", "run"]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("esper: charts need matplotlib")
    assert not (tmp_path / "run/report.html").exists()


def test_the_command_writes_a_page_and_pictures_and_needs_no_torch(recorded_runs: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    shutil.copytree(recorded_runs / "grown", tmp_path / "grown")
    done = esper("report", "grown", str(recorded_runs / "learned"), "--plots", "plots/all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote report.html\nwrote ")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    pictures = sorted(path.name for path in (tmp_path / "plots/all").iterdir())
    assert {"1-accuracy.png", "1-lives.png", "2-entropies.png", "2-returns.png"} <= set(pictures)
    for name in pictures:
        assert imread(tmp_path / "plots/all" / name).shape[1] == 1280
    assert main(["report", "grown", "--html", "report.html"]) == 0, "a page of ours may be replaced"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: RUN; see esper report --help"),
        (["nowhere"], "nowhere is not a run: there is no such folder"),
        (["file"], "file is not a run: it has no run.json"),
        (["grown", "--html", "nowhere/page.html"], "nowhere/page.html cannot be written: there is no folder nowhere"),
        (["grown", "--html", "file"], "file is there and is not a page of Esper; name another file with --html, or remove it first"),
        (["grown", "--html", "grown"], "grown cannot be written: it is a folder; expected the name of a file"),
        (["grown", "--plots", "file"], "no folder for plots can be made at file: File exists"),
        (["grown", "--plot", "x"], "unknown argument '--plot'; did you mean '--plots'?"),
    ],
)
def test_a_mistake_is_one_sentence(
    recorded_runs: Path, tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded_runs / "grown", tmp_path / "grown")
    (tmp_path / "file").write_text("something of the user's own")
    assert main(["report", *arguments]) == EXIT_USAGE
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"esper: {sentence}\n")
    assert (tmp_path / "file").read_text() == "something of the user's own"
    assert not (tmp_path / "grown/report.html").exists()


def test_a_file_of_somebody_else_in_the_run_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert main([*TRAIN, "--no-report"]) == 0
    (tmp_path / "run/report.html").write_text("mine")
    assert main(["report", "run"]) == EXIT_USAGE
    assert "run/report.html is there and is not a page of Esper" in capsys.readouterr().err
    assert (tmp_path / "run/report.html").read_text() == "mine"
