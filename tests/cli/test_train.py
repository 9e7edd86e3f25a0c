"""`esper train` and what it shows: one sentence for every mistake, nothing left behind, a line an epoch, and a table on a terminal."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import chdir, nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from esper.cli.display import Clock, LiveDisplay, PlainDisplay, duration
from esper.cli.main import COMMANDS, main
from esper.cli.scenes import HostsScene
from esper.cli.train import METHODS
from esper.leyline.events import RoundFinished
from esper.nissa import Hub
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.runs import runner
from esper.simic.runs.controller import ControllerRun
from esper.tolaria.storage.runs import read_summary
from tests.simic.runs import small

SMALL = ["--hosts", "1", "--epochs", "3", "--fix", "widths=[2,2,4]", "train_size=100"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "what to train is missing: esper train heuristic|ppo"),
        ("--hosts 3", "what to train is missing: esper train heuristic|ppo"),
        ("heuristics", "unknown method 'heuristics'; did you mean 'heuristic'?"),
        ("heuristic --task digit", "unknown task 'digit'; did you mean 'digits'?"),
        ("heuristic --controller rnadom", "unknown controller 'rnadom'; did you mean 'random'?"),
        ("heuristic --controller {empty}/policy.safetensors", "{empty}/policy.safetensors"),
        ("heuristic --controller {bad}", "{bad} "),
        ("heuristic --slots r0c0,r0c7", "unknown slot 'r0c7'; did you mean 'r0c"),
        ("heuristic --hosts 0", "'hosts' must be an integer, from 1 to 1000000; found 0"),
        ("heuristic --hosts -5", "'hosts' must be an integer, from 1 to 1000000; found -5"),
        ("heuristic --epochs -5", "'epochs' must be an integer, from 1 to 1000000; found -5"),
        ("heuristic --epochs 0", "'epochs' must be an integer, from 1 to 1000000; found 0"),
        ("heuristic --epochs ten", "'epochs' must be an integer, from 1 to 1000000; found 'ten'"),
        ("heuristic --seed -1", "'seed' must be an integer, at least 0; found -1"),
        ("heuristic --fix kernel", "--fix: 'kernel' is not a pair; expected NAME=VALUE"),
        ("heuristic --fix kernal=3", "Member: unknown key 'kernal'; did you mean 'kernel'?"),
        ("heuristic --fix kernel=two", "'kernel' must be an integer; found 'two'"),
        ("heuristic --fix kernel=4", "esper: Member: 'kernel' is 4; expected an odd size"),
        ("heuristic --fix widths=[8,8,8,8,8]", "the host that make_host gives failed: RuntimeError"),
        ("heuristic --host 3", "unknown argument '--host'; did you mean '--hosts'?"),
        ("heuristic --training.clp 3", "unknown argument '--training.clp'; did you mean '--training.clip'?"),
        ("heuristic --training.isolation stee", "'training.isolation'"),
        ("heuristic 3", "unknown argument '3'; see esper train heuristic --help"),
        ("heuristic --task cifar10 --data {empty}", "no CIFAR-10 in {empty} (looked for"),
        ("heuristic --task cifar10 --data {empty}/nowhere", "no folder {empty}/nowhere; expected one with CIFAR-10"),
        ("heuristic --device cuda:99", "'cuda:99' was asked for and torch sees"),
        ("heuristic --config {empty}/none.toml", "no config file at {empty}/none.toml"),
        ("heuristic --config {bad}", "unknown key 'host'; did you mean 'hosts'?"),
        ("heuristic --run {file}", "{file} is a file; a run needs a folder of its own"),
        ("heuristic --run {full}", "{full} is not empty and not a run (it holds 'letter.txt'); choose another folder"),
        ("--resume", "argument --resume: expected one argument"),
        ("--resume {empty}", "{empty} is not a run: it has no run.json"),
        ("--resume {empty}/nowhere", "is not a run: there is no such folder"),
        ("--resume {empty} --hosts 3", "{empty} is not a run: it has no run.json"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"empty": tmp_path / "empty", "bad": tmp_path / "bad.toml", "file": tmp_path / "file", "full": tmp_path / "full"}
    for folder in ("empty", "full", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad.toml").write_text('kind = "run"\nhost = 3\n')
    (tmp_path / "file").touch()
    (tmp_path / "full" / "letter.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    with chdir(tmp_path / "here"):
        assert main(["train", *arguments.format(**places).split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("esper: ")
    assert told.err.count("\n") == 1
    assert words.format(**places) in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_shows_a_line_an_epoch_with_the_time_to_go_and_what_came_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(tmp_path):
        assert main(["train", "heuristic", *SMALL]) == 0
        told = capsys.readouterr()
        summary = read_summary(Path("runs/digits-heuristic-001"))
    first, *rest = told.out.splitlines()
    assert told.err == ""
    growing = "heuristic grows 1 host and as many control twins on digits for 3 epochs"
    assert first == f"{growing}; serial engine on cpu: every host as if it were alone"
    assert len([line for line in rest if line.startswith("epoch ")]) == 3
    for number, line in enumerate(rest[:3], start=1):
        figures = r"val [\d.]+ \([+-][\d.]+ against the control\), size x.*; [\d.]+ s an epoch, \d+ s left"
        assert re.fullmatch(rf"epoch {number}/3: {figures}", line)
    assert f"test accuracy of the harvested networks: {summary['hosts'][0]['test_accuracy']:.2f} on average" in rest
    sure = "too few hosts for an interval, better on [01] of 1"
    told = " ".join(" ".join(rest).split())
    assert re.search(rf"against the same hosts without growth: [+-][\d.]+ points, {sure}", told)
    assert re.search(r"that took [\d.]+ times their operations, [\d.]+ of it for counterfactuals", told)
    assert rest[-2:] == ["run folder: runs/digits-heuristic-001", "report: runs/digits-heuristic-001/report.html"]
    assert summary["command"] == "esper train heuristic --hosts 1 --epochs 3 --fix 'widths=[2,2,4]' train_size=100"


def test_quiet_shows_the_result_alone_and_the_next_run_gets_the_next_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(tmp_path):
        for number in (1, 2):
            assert main(["train", "heuristic", "--controller", "wait", *SMALL, "--quiet"]) == 0
            told = capsys.readouterr().out.splitlines()
            assert told[0] == ""
            assert told[1].split()[0] == "host"
            assert not any(line.startswith("epoch") for line in told)
            assert told[-2] == f"run folder: runs/digits-wait-00{number}"


def test_the_same_run_starts_again_from_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(tmp_path):
        assert main(["train", "heuristic", *SMALL, "--run", "a", "--quiet"]) == 0
        assert main(["train", "heuristic", "--config", "a/config.toml", "--run", "b", "--quiet"]) == 0
        assert main(["train", "heuristic", "--config", "a/config.toml", "--epochs", "2", "--run", "c", "--quiet"]) == 0
        figures = [{**read_summary(Path(name)), "command": ""} for name in "abc"]
    capsys.readouterr()
    assert figures[0] == figures[1] != figures[2]
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "b" / "config.toml").read_bytes()


def test_without_telemetry_nothing_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "heuristic", *SMALL, "--telemetry", "off", "--quiet", "--run", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "events.jsonl").exists()
    assert (tmp_path / "run" / "summary.json").exists()
    assert capsys.readouterr().err == ""


HELP = """
import sys
from esper.cli.main import COMMANDS, main
from esper.cli.scenes import HostsScene
from esper.cli.train import METHODS
from esper.leyline.events import RoundFinished
methods = [[method, flag] for method in METHODS for flag in ("--help", "--help-all")]
for command in COMMANDS:
    for arguments in [["--help"], *(methods if command == "train" else [])]:
        assert main([command, *arguments]) == 0
        print(f"==== {command} {' '.join(arguments)}: torch {'torch' in sys.modules}")
"""


def test_the_help_of_every_command_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"==== (\w+) --help: torch (\w+)", done.stdout) == [(name, "False") for name in COMMANDS]
    assert re.findall(r"==== train (\w+) --help-all: torch (\w+)", done.stdout) == [(name, "False") for name in METHODS]
    assert done.stdout.count("--training.clip X") == 3, "only --help-all of what trains hosts shows the settings of training"
    assert "--fix [NAME=VALUE ...]" in done.stdout


@pytest.fixture(scope="module", params=[1, 4, 20])
def seen(request: pytest.FixtureRequest) -> LiveDisplay:
    """A display of some hosts after two epochs."""
    fix = {"widths": "[2,2]", "train_size": "50", "batch": "50"}
    return after(2, small(hosts=request.param, epochs=5, control=request.param < 20, fix=fix))


def after(rounds: int, config: ControllerRunConfig) -> LiveDisplay:
    """What a display has seen of a run after so many rounds."""
    display = LiveDisplay()
    display.live.start = lambda refresh=False: None  # type: ignore[method-assign]
    hub = Hub(None, [display])
    run = ControllerRun(config, hub)
    run.begin()
    for _ in range(rounds):
        run.run_round(display.progress)
        hub.emit(RoundFinished(round=run.round, rounds=run.rounds))
    run.close()
    assert hub.on, "the display was not dropped"
    return display


def rendered(display: LiveDisplay, width: int = 140) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(display.render())
    return console.export_text()


def test_the_live_table_shows_each_host_and_sums_up_the_rest(seen: LiveDisplay) -> None:
    text = rendered(seen)
    assert isinstance(seen.scene, HostsScene)
    hosts = seen.scene.started.hosts
    lines = text.splitlines()
    twins = " and as many control twins" if hosts < 20 else ""
    assert lines[0].strip().startswith(f"fixed grows {hosts} host{'s' if hosts > 1 else ''}{twins} on digits for 5 epochs; serial engine")
    assert ("control" in lines[1]) == (hosts < 20)
    assert len([line for line in lines if re.match(r"\s+\d+\s+2/5\s", line)]) == min(hosts, 16)
    assert ("and 4 hosts more" in text) == (hosts == 20)
    assert "depthwise blending" in text
    assert re.search(rf"val [\d.]+.*, size x[\d.]+, {hosts} live seed{'s' if hosts > 1 else ''}", text)
    assert "epoch 2, " in text


def test_the_live_table_loses_nothing_on_a_narrow_terminal(seen: LiveDisplay) -> None:
    text = rendered(seen, width=80)
    assert "…" not in text
    assert "depthwise" in text
    assert "blending" in text


def test_the_live_table_can_be_drawn_before_the_first_epoch() -> None:
    assert "waiting for the first epoch" in rendered(after(0, small()))
    assert LiveDisplay().render().renderables == []


def test_a_display_that_breaks_is_dropped_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    display = PlainDisplay()
    monkeypatch.setattr("sys.stdout", Closed())
    summary = runner.start(small(hosts=1, epochs=2, control=False), tmp_path / "run", "a run", display=display, progress=display.progress)
    assert len(summary["hosts"]) == 1
    assert "sink PlainDisplay failed and is dropped" in (tmp_path / "run" / "log.txt").read_text()


def test_the_live_table_runs_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["train", "heuristic", *SMALL, "--run", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "control" in out
    assert "epoch 3" in out
    assert "run folder: " in out


def test_the_clock_counts_the_rounds_of_this_process_alone() -> None:
    clock = Clock(2, 4)
    assert clock.left(2) == ""
    clock.began -= 60
    assert clock.pace(3) == pytest.approx(60, abs=1)
    assert clock.left(3) == "1 min 00 s"
    assert clock.left(3.5) == "20 s"
    assert clock.left(4) == "0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3600, "1 h 00 min"), (7505, "2 h 05 min")],
)
def test_durations_are_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_folder_of_a_run_is_quoted_where_it_has_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = runner.Stop()
    stop.asked = True
    monkeypatch.setattr(runner, "stop_on_signal", lambda: nullcontext(stop))
    with pytest.raises(runner.Interrupted, match=re.escape(f"stopped after 1 of 10; go on with: esper train --resume '{tmp_path}/my run'")):
        runner.start(small(hosts=1), tmp_path / "my run", "a run")
