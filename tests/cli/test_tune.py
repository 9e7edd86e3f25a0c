"""`esper tune` and `esper sweep` in processes of their own: killed, stopped and gone on with, and a sentence for every mistake."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.kill import outcome
from esper.cli.display import LiveDisplay
from esper.cli.main import main
from esper.cli.searches import search_verdict
from esper.cli.tune import read_space_file
from esper.leyline.errors import ConfigError
from esper.leyline.events import ArmExamined, RunStarted
from esper.nissa import Hub
from esper.tolaria.storage.runs import read_run

GATES = "--no-training.gates.strict --training.gates.min-training-epochs 1 --training.gates.min-gradient-health 0"
HOSTS = f"--run run --quiet {GATES} --fix widths=[2,2] kernel=3 train_size=96 batch=48 rent=100"
SEARCHED = "--over seeds=0..3 --fixed.first 1 --fixed.period 1 --budget 150 --hosts 2 --fresh 6"
TUNE = f"tune fixed {SEARCHED} --member standard --epochs 7 --workers 1 --together 2 {HOSTS}"
SWEEP = f"sweep heuristic --controller fixed --over fixed.seeds=1,0 --hosts 1 --epochs 24 --no-control --checkpoint-every 1 {HOSTS}"


def process(folder: Path, arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "esper.cli.main", *arguments.split()]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(run: Path, saved: str) -> None:
    """Wait until the run's log says that this checkpoint is saved."""
    deadline = time.monotonic() + 120
    while not ((run / "log.txt").exists() and saved in (run / "log.txt").read_text()):
        assert time.monotonic() < deadline, f"{saved} was never saved"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search and a sweep that nobody disturbs."""
    folder = tmp_path_factory.mktemp("alone")
    for arguments in (TUNE, SWEEP):
        name = arguments.split()[0]
        (folder / name).mkdir()
        with chdir(folder / name):
            assert main(arguments.split()) == 0
    return folder


def assert_same(run: Path, expected: Path) -> None:
    left, found = outcome(expected), outcome(run)
    assert [name for name in left if left[name] != found[name]] == []


def test_a_search_that_is_killed_goes_on_to_the_same_figures(alone: Path, tmp_path: Path) -> None:
    with process(tmp_path, TUNE) as running:
        wait_for(tmp_path / "run", "step-00000003")
        running.kill()
    assert read_run(tmp_path / "run").status == "interrupted"
    with chdir(tmp_path):
        assert main(["tune", "--resume", "run", "--quiet", "--json", "figures.json"]) == 0
        assert main(["tune", "--resume", "run", "--html", "page.html"]) == 0, "a finished one is shown again"
    assert_same(tmp_path / "run", alone / "tune" / "run")
    assert (tmp_path / "figures.json").read_text() == (alone / "tune" / "run" / "summary.json").read_text()
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2
    assert "the best of many is flattered" in page


def test_ctrl_c_within_a_point_of_a_sweep_says_how_to_go_on(alone: Path, tmp_path: Path) -> None:
    with process(tmp_path, SWEEP) as running:
        wait_for(tmp_path / "run" / "points" / "001", "step-00000002")
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate()
    assert (running.returncode, out) == (130, "")
    told = re.search(r"^esper: point 1 of 2 stopped after (\d+) of 24; go on with: esper sweep --resume run\n", errors, re.MULTILINE)
    assert told, errors
    assert read_run(tmp_path / "run").status == "interrupted"
    with chdir(tmp_path):
        assert main(["sweep", "--resume", "run", "--quiet", "--html", "page.html"]) == 0
    assert (tmp_path / "page.html").read_text().count("<svg") == 1, "a plot for each setting that is a number"
    for place in ("", "points/001", "points/002"):
        assert_same(tmp_path / "run" / place, alone / "sweep" / "run" / place)


HELP = """
import sys
from esper.cli.main import main
for arguments in ("tune heuristic --help", "tune mine --help-all", "sweep ppo --help", "sweep heuristic --help-all"):
    assert main(arguments.split()) == 0
assert "torch" not in sys.modules
"""


def test_help_needs_no_torch_and_names_what_can_be_set() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for flag in ("--budget N", "--space FILE", "--over [NAME=VALUE ...]", "--over KEY=VALUES", "--points N", "--heuristic.keep-noise X"):
        assert flag in done.stdout
    assert "--controller" in done.stdout.partition("usage: esper sweep")[2]
    assert "--controller" not in done.stdout.partition("usage: esper sweep")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tune", "whose settings to search is missing: esper tune heuristic"),
        ("tune heuristik", "unknown controller 'heuristik'; did you mean 'heuristic'?"),
        ("tune heuristic --over keep_nose=0..1", "unknown key 'keep_nose'; did you mean 'keep_noise'?"),
        ("tune heuristic --over keep-noise=3..1", "'keep_noise' has the range 3..1, which is reversed"),
        ("tune heuristic --over keep_noise=-1..1", "'keep_noise' must be a number, at least 0; found -1.0"),
        ("tune heuristic --budget 100", "a budget of 100 host epochs is too small"),
        ("tune heuristic --method optunna", "'method' must be one of 'random', 'optuna'"),
        ("tune heuristic --space {empty}/none.toml", "no config file at {empty}/none.toml"),
        ("tune heuristic --space {bad}", "{bad}: 'tempo' is 3; expected a text"),
        ("tune heuristic --json {empty}/none/x.json", "x.json cannot be written: there is no folder"),
        ("tune heuristic --controller fixed", "unknown argument '--controller'"),
        ("tune --resume {empty}", "{empty} is not a run: it has no run.json"),
        ("sweep", "what to sweep is missing: esper sweep heuristic|ppo|expert"),
        ("sweep bc --over epochs=1,2", "unknown method 'bc'; known: expert, heuristic, ppo"),
        ("sweep heuristic", "what is to vary is missing: --over KEY=VALUES"),
        ("sweep heuristic --over hosts", "--over: 'hosts' is not a pair; expected KEY=VALUES"),
        ("sweep heuristic --over hosts=1,2 hosts=3", "--over: 'hosts' is there twice"),
        ("sweep heuristic --over host=1,2", "--over: unknown key 'host'; did you mean 'hosts'?"),
        ("sweep heuristic --over hosts=1,0", "'hosts' must be an integer, from 1 to 1000000; found 0"),
        ("sweep heuristic --over training.clip=1..2", "'training.clip' is the range 1.0..2.0, of which a grid has no end"),
        ("sweep heuristic --over hosts=1,2 --points 0", "'points' must be an integer, from 1 to 1000000; found 0"),
        ("sweep ppo --over ppo.learning_rat=1,2", "unknown key 'ppo.learning_rat'; did you mean 'learning_rate'?"),
        ("sweep expert --over alternatives=2,0", "'alternatives' must be an integer, from 1 to 1000; found 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    arguments: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"empty": tmp_path / "empty", "bad": tmp_path / "bad.toml"}
    for folder in ("empty", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad.toml").write_text("tempo = 3\n")
    before = sorted(tmp_path.rglob("*"))
    with chdir(tmp_path / "here"):
        assert main(arguments.format(**places).split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("esper: ")
    assert told.err.count("\n") == 1
    assert words.format(**places) in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_is_gone_on_with_by_the_command_that_began_it(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, made, other in (("train", "tune", "tune"), ("tune", "sweep", "sweep"), ("sweep", "sweep/run/points/001", "train")):
        run = alone / made if "points" in made else alone / made / "run"
        assert main([command, "--resume", str(run)]) == 2
        assert f"{run} is not a run of esper {command}; go on with: esper {other} --resume {run}" in capsys.readouterr().err


def test_without_optuna_a_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with chdir(tmp_path):
        assert main(["tune", "heuristic", "--method", "optuna"]) == 2
    assert "pip install 'esper-lite[tune]'" in capsys.readouterr().err


def test_a_space_file_has_texts_lists_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    listed = 'tempo = [3, 5]\nstyle = ["gated"]\nblueprints = [["a", "b"], ["c"]]\n'
    path.write_text(f'keep_noise = "0..3"\n{listed}[preferences]\nnorm = "0.1..1:log"\n')
    assert read_space_file(path) == {
        "keep_noise": "0..3",
        "tempo": "3,5",
        "style": '"gated"',
        "blueprints": '["a", "b"],["c"]',
        "preferences.norm": "0.1..1:log",
    }
    path.write_text("keep_noise = true\n")
    with pytest.raises(ConfigError, match="'keep_noise' is True; expected a text"):
        read_space_file(path)


def test_the_verdict_is_what_the_interval_bears_out() -> None:
    def verdict(low: float | None, high: float | None) -> str:
        difference = {"pairs": 40, "mean": 0.5, "low": low, "high": high, "wins": 20}
        fresh = {"hosts": 40, "difference": difference, "in_the_search": {"hosts": 8, "difference": 2.0}, "flattered_by": 1.5}
        fresh |= {"best": {"operations": 3e9}, "present": {"operations": 2e9}}
        return "\n".join(search_verdict({"fresh": fresh, "best": {"trial": 7}, "spent": 90, "budget": 100}))

    assert "it does better than the present settings" in verdict(0.1, 0.9)
    assert "it does worse than the present settings: keep those" in verdict(-0.9, -0.1)
    assert "it cannot be told apart from the present settings" in verdict(-0.1, 0.9)
    assert "better on 20 of 40, with 1.50 times the operations" in verdict(0.1, 0.9)
    assert "too few hosts for an interval" in verdict(None, None)
    assert "by +2.00 points on 8 hosts; the best of many is flattered, by +1.50 points here" in verdict(0.1, 0.9)
    nothing = search_verdict({"fresh": None, "spent": 90, "budget": 100})
    assert nothing[-1] == "nothing came out better than the present settings: keep them"


def test_the_picture_shows_who_is_ahead() -> None:
    display = LiveDisplay()
    display.live.start = lambda refresh=False: None  # type: ignore[method-assign]
    hub = Hub(None, [display])
    about: dict[str, float | int | str] = {"controller": "fixed", "budget": 20_000, "trials": 9, "fresh": 40, "settings": 3, "round": 0}
    hub.emit(RunStarted(command="", method="tune", task="digits", hosts=8, rounds=5, seed=0, versions={}, machine={}, about=about))
    for number, score in enumerate((50.0, 60.0, 55.0)):
        hub.emit(
            ArmExamined(
                arm=f"trial {number}", hosts=8, score=score, accuracy=score + 1, growth=1.5, operations=9.0, fossils=1.0, reward=0.0
            )
        )
    text = io.StringIO()
    Console(file=text, width=100).print(display.render())
    shown = text.getvalue()
    assert "9 trials of 3 settings of fixed on digits: 8 hosts and more each, then 40 fresh ones, within" in " ".join(shown.split())
    assert re.findall(r"trial (\d) ", shown) == ["1", "2", "0"]


def test_a_sweep_ends_with_a_table_and_a_warning(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from esper.cli.searches import print_sweep

    print_sweep({**json.loads((alone / "sweep" / "run" / "summary.json").read_text()), "run": "runs/here"})
    shown = capsys.readouterr().out
    assert re.search(r"^point\s+fixed\.seeds\s+score \[95 %\]\s+minus the best\s+val\s+size x\s+epochs to 95 %$", shown, re.MULTILINE)
    assert re.search(r"^\s+2\s+0\s+", shown.splitlines()[2]), "no seeds is best"
    assert "flattered by having been chosen" in " ".join(shown.split())
    assert "best config: runs/here/best.toml" in shown
