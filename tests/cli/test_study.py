"""`esper train bc` and `esper train iql`: from a recorded run to a policy that PPO starts from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.cli.main import EXIT_INTERRUPTED, EXIT_USAGE, main
from esper.cli.results import study_verdict as verdict
from esper.leyline.events import EVENT_TYPES
from esper.simic.runs import offline as studies
from esper.tamiyo.policy.policy_file import load_policy, read_policy_info
from tests.simic.recordings import germinate, place, record, summary_of, waiting, write_run

TINY = ("--hidden", "16", "--slot-width", "8", "--learning-rate", "0.005")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", hosts=6)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_clone_of_a_recorded_run_is_where_ppo_starts(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "bc", str(recorded), "--epochs", "40", *TINY]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    policy = tmp_path / "runs" / "bc-001" / "policy.safetensors"
    assert "go on with: esper train ppo --from-policy runs/bc-001/policy.safetensors" in printed
    assert "learned by behaviour cloning from 6 recorded episodes on digits: fixed (6 episodes)" in printed
    assert "never recorded, and so not learned:" in printed
    host = ["--fix", "widths=[2,2,2]", "train_size=100", "batch=50", "--epochs", "3", "--no-control"]
    few = ["--rounds", "1", "--hosts", "2", "--pool", "2", "--examined", "2", "--workers", "1"]
    assert main(["train", "ppo", "--from-policy", str(policy), "--run", "taught", "--quiet", *few, *host]) == 0
    taught = load_policy(tmp_path / "taught" / "policy.safetensors")
    clone = load_policy(policy)
    assert taught.config == clone.config
    # One round at the warm-up's learning rate moves it a little from where it started.
    before, after = (torch.nn.utils.parameters_to_vector(each.actor.parameters()).detach() for each in (clone, taught))
    assert 0.0 < float((after - before).norm() / before.norm()) < 0.1


def test_offline_learning_leaves_a_run_folder_like_any_other(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "iql", "--runs", str(recorded), "--epochs", "4", "--run", "mine", *TINY]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("implicit Q-learning: 5 recorded episodes, 1 held out; at most 4 passes")
    assert "cannot be told from recordings" in printed
    run = tmp_path / "mine"
    assert read_policy_info(run / "policy.safetensors").trained["method"] == "iql"
    assert len(summary_of(run)["epochs"]) == 4
    kinds = [json.loads(line)["kind"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert set(kinds) <= set(EVENT_TYPES)
    assert len(kinds) == 1 + 2 * 4 + 1, "the beginning, what was learned in each pass and its end, the end"


@pytest.mark.parametrize("method", ["bc", "iql"])
def test_a_study_stopped_by_a_signal_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    steps = [[(place(n % 3), germinate(n % 2), float(n % 2))] for n in range(8)]
    run = write_run(tmp_path / "recorded", steps)
    command = ["train", method, str(run), "--epochs", "6", "--quiet", *TINY]
    assert main([*command, "--run", "whole"]) == 0
    once = studies.OfflineRun.run_round

    def interrupted(self: Any, progress: Any = None) -> None:
        once(self, progress)
        if self.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(studies.OfflineRun, "run_round", interrupted)
    assert main([*command, "--run", "parts"]) == EXIT_INTERRUPTED
    assert "stopped after 3 of 6; go on with: esper train --resume parts" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "parts", "--quiet"]) == 0
    whole, parts = summary_of(tmp_path / "whole"), summary_of(tmp_path / "parts")
    assert {**whole, "command": ""} == {**parts, "command": ""}
    expected = load_policy(tmp_path / "whole" / "policy.safetensors").state_dict()
    found = load_policy(tmp_path / "parts" / "policy.safetensors").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda _: [], "there is nothing to learn from"),
        (lambda _: ["nowhere"], "nowhere is not a run: there is no such folder"),
        (lambda path: [str(write_run(path / "empty", []))], "holds no recorded episodes"),
        (lambda path: [str(write_run(path / "one", waiting(1)))], "recorded 1 host; at least 2 are needed"),
        (lambda path: [str(write_run(path / "same", waiting(2)))] * 2, "is named twice"),
    ],
)
@pytest.mark.parametrize("method", ["bc", "iql"])
def test_a_mistake_is_one_sentence_and_leaves_no_run_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, make: Any, complaint: str
) -> None:
    assert main(["train", method, *make(tmp_path), "--run", "mine"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("method", ["bc", "iql"])
def test_learning_that_diverges_is_one_sentence_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str) -> None:
    run = write_run(tmp_path / "recorded", [[(place(n), germinate(), float(n))] for n in range(4)])
    assert main(["train", method, str(run), "--quiet", "--hidden", "16", "--slot-width", "8", "--learning-rate", "1e30"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("esper: epoch 1 of learning went wrong: ")
    assert said.endswith("so begin a new one with a lower learning_rate\n")
    assert said.count("\n") == 1


def test_help_says_what_the_runs_are(capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("bc", "iql"):
        assert main(["train", method, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert f"usage: esper train {method} RUN... [OPTIONS]" in text
        assert "run folders to learn from: those of esper train heuristic, whatever its controller" in text
    code = "import sys; from esper.cli.main import main\ntry: main(['train', 'bc', '--help'])\nfinally: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.stdout.splitlines()[-1] == "False", "help should not wait for torch"


def study_of(**changes: Any) -> dict[str, Any]:
    usual = {
        "method": "bc",
        "controllers": {"heuristic": 40},
        "tasks": ["digits"],
        "episodes": 32,
        "held_out": 8,
        "ops": {"WAIT": 800, "GERMINATE": 100, "ADVANCE": 50, "FOSSILIZE": 30, "PRUNE": 20, "SET_ALPHA_TARGET": 0},
        "agreement": {"accuracy/op": 0.9, "accuracy/decision": 0.8, "accuracy/acts": 0.6, "waiting": 0.85, "head/slot": 0.7},
    }
    return {**usual, **changes}


def test_the_last_paragraph_compares_with_waiting_and_warns_of_few_acts() -> None:
    said = "\n".join(verdict(study_of()))
    assert "90.0% of decisions (always waiting: 85.0%), the whole decision in 80.0%" in said
    assert "never recorded, and so not learned: SET_ALPHA_TARGET" in said
    assert "warning" not in said
    few = "\n".join(verdict(study_of(ops={"WAIT": 990, "GERMINATE": 10})))
    assert "warning: 10 recorded acts are few" in few
    waited = "\n".join(verdict(study_of(ops={"WAIT": 10}, agreement={"accuracy/op": 1.0, "accuracy/decision": 1.0, "waiting": 1.0})))
    assert "how well acts are imitated is not known" in waited
    assert "how well it agrees is not known" in "\n".join(verdict(study_of(agreement={})))
