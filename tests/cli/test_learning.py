"""`esper train ppo` and what it shows: a line a round and an arm, or a table on a terminal, and an honest comparison at the end."""

from __future__ import annotations

import io
import os
import re
import signal
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from esper.cli.display import LiveDisplay
from esper.cli.main import EXIT_INTERRUPTED, main
from esper.leyline.events import RoundFinished
from esper.nissa import Hub
from esper.simic.runs.ppo import PPORun
from esper.simic.runs.ppo_config import PPORunConfig
from esper.tolaria.storage.runs import read_summary

FEW = ["--rounds", "2", "--hosts", "2", "--pool", "2", "--examined", "2", "--workers", "1", "--epochs", "4"]
FEW += ["--fix", "widths=[2,2]", "train_size=50"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What a short run printed, and its folder."""
    folder = tmp_path_factory.mktemp("learning")
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr("sys.stdout", out)
        assert main(["train", "ppo", *FEW]) == 0
    return out.getvalue().splitlines(), folder / "runs" / "digits-ppo-001"


def test_every_round_and_every_arm_has_a_line(shown: tuple[list[str], Path]) -> None:
    lines, _ = shown
    assert lines[0].startswith("PPO on digits: 2 rounds of 2 hosts in one process, ")
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == 2
    assert re.match(r"round 1/2: return [+-][\d.]+, val [\d.]+ \([+-][\d.]+ against the control\), size x[\d.]+, ", rounds[0])
    assert re.search(r"[\d.]+ s a round, \d+ s left$", rounds[0])
    arms = [line for line in lines if line.startswith("examined on 2 unseen hosts, by val score: ")]
    assert [line.count(",") for line in arms] == [1, 2, 3, 4, 5, 6]
    assert re.search(r"policy [\d.]+, policy-drawn [\d.]+, wait [\d.]+, random [\d.]+, fixed [\d.]+, heuristic [\d.]+$", arms[-1])


def test_the_end_is_a_paired_statement_and_says_where_the_run_lies(shown: tuple[list[str], Path]) -> None:
    lines, run = shown
    examination = read_summary(run)["examination"]
    assert lines[-2] == f"run folder: {run.relative_to(run.parents[1])}"
    for name in ("wait", "random", "fixed", "heuristic"):
        (row,) = [line for line in lines if line.split()[:1] == [name]]
        assert f"{examination['arms'][name]['score']:.2f}" in row
        assert f"{examination['policy_against'][name]['mean']:+.2f}" in row
    assert (run / "policy.safetensors").exists()


def test_the_policy_of_a_run_grows_hosts_by_its_file(shown: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, run = shown
    policy = str(run / "policy.safetensors")
    grow = ["--hosts", "1", "--epochs", "3", "--fix", "widths=[2,2]", "train_size=50", "--quiet", "--run", str(run.parent / "grown")]
    assert main(["train", "heuristic", "--controller", policy, *grow]) == 0
    assert read_summary(run.parent / "grown")["hosts"][0]["controller"] == "policy"
    assert capsys.readouterr().err == ""


def test_an_interrupted_run_takes_other_settings_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    once = PPORun.run_round

    def interrupted(self: PPORun, progress: Any = None) -> None:
        once(self, progress)
        if self.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(PPORun, "run_round", interrupted)
    assert main(["train", "ppo", *FEW, "--quiet", "--run", "run"]) == EXIT_INTERRUPTED
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "run", "--hosts", "3"]) == 2
    assert "'hosts' cannot change when a run goes on; what can: rounds, " in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--ppo.entropy-strat", "0.5"]) == 2
    assert "unknown argument '--ppo.entropy-strat'; did you mean '--ppo.entropy-start'?" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--ppo.entropy-start", "0.5", "--reset-heads", "tempo,style", "--quiet"]) == 0
    rounds = read_summary(Path("run"))["rounds"]
    assert rounds[0]["train/entropy_coefficient"] < 0.02 < rounds[1]["train/entropy_coefficient"]


def test_the_picture_follows_rounds_and_examination() -> None:
    fix = {"widths": "[2,2]", "train_size": "50"}
    display = LiveDisplay()
    display.live.start = lambda refresh=False: None  # type: ignore[method-assign]
    hub = Hub(None, [display])
    run = PPORun(PPORunConfig(rounds=1, hosts=2, pool=2, examined=2, workers=1, epochs=3, fix=fix), hub)
    texts = []
    run.begin()
    while not run.done:
        texts.append(rendered(display))
        before = run.round
        run.run_round(display.progress)
        if run.round > before:
            hub.emit(RoundFinished(round=run.round, rounds=run.rounds))
    texts.append(rendered(display))
    run.close()
    assert hub.on, "the display was not dropped"
    assert not any("…" in text for text in texts), "everything fits into 80 columns"
    assert "round 0" in texts[0]
    assert "entropy where a head had a choice: op " in texts[1]
    assert "decisions in the last round: wait " in texts[1]
    assert " left" in texts[1], "the time to go, examination included"
    assert "examination on 2 unseen hosts" in texts[1]
    assert "by val score: policy " not in texts[1]
    assert "by val score: policy " in texts[2]
    assert "heuristic " in texts[-1]


def rendered(display: LiveDisplay) -> str:
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(display.render())
    return console.export_text()
