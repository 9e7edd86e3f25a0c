"""Runs that are stopped, killed or damaged go on as if nothing had happened, or say in a sentence why they cannot."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kill import outcome
from esper.cli.main import main
from esper.leyline.errors import CheckpointError, ConfigError, EsperError, PolicyError, RunError
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.runs.runner import resume, start
from esper.tamiyo.policy.policy_file import save_policy
from esper.tolaria.storage.runs import RunFolder, read_run, read_summary
from esper.tolaria.training.config import TrainingConfig
from tests.simic.runs import HASTY, Crash, CrashAfter, opinionated, small

RUN = """heuristic --run run --no-report --controller fixed --fixed.first 1 --fixed.period 1 --hosts 1 --epochs 16 --checkpoint-every 2
    --no-training.gates.strict --training.gates.min-training-epochs 1 --training.gates.min-gradient-health 0
    --fix widths=[2,2,4] kernel=3 train_size=192 batch=48"""
KILLER = Path(__file__).parents[2] / "benchmarks" / "kill.py"


def crash(config: ControllerRunConfig, run: Path, epochs: Sequence[int]) -> None:
    """Start a run and crash it after each of these epochs."""
    for number, epoch in enumerate(epochs):
        with pytest.raises(Crash):
            start(config, run, "a run", display=CrashAfter(epoch)) if number == 0 else resume(run, display=CrashAfter(epoch))


def assert_same(run: Path, expected: dict[str, Any]) -> None:
    found = outcome(run)
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize(
    ("config", "crashes"),
    [
        (small(hosts=1, checkpoint_every=1), (1, 2, 5, 9)),
        (small(checkpoint_every=3, controller="random", training=TrainingConfig(isolation="shadow", gates=HASTY.gates)), (2, 5, 8)),
        (small(member="family", hosts=2, seed=18, epochs=None, control=False, fix={"widths": "[2,2]", "train_size": "50"}), (9, 18)),
    ],
    ids=["fixed", "random", "family"],
)
def test_a_run_that_crashes_again_and_again_ends_as_one_left_alone(
    config: ControllerRunConfig, crashes: Sequence[int], tmp_path: Path
) -> None:
    start(config, tmp_path / "alone", "a run")
    crash(config, tmp_path / "crashed", crashes)
    resume(tmp_path / "crashed")
    assert_same(tmp_path / "crashed", outcome(tmp_path / "alone"))


def test_a_run_under_a_trained_policy_goes_on_with_that_policy_alone(tmp_path: Path) -> None:
    policy = tmp_path / "policy.safetensors"
    save_policy(opinionated(), policy)
    config = small(hosts=1, controller=str(policy))
    start(config, tmp_path / "alone", "a run")
    crash(config, tmp_path / "crashed", (4, 7))
    resume(tmp_path / "crashed")
    assert_same(tmp_path / "crashed", outcome(tmp_path / "alone"))
    (host,) = read_summary(tmp_path / "alone")["hosts"]
    assert host["controller"] == "policy"
    assert host["germinated"] > 0
    crash(config, tmp_path / "changed", (4,))
    other = opinionated()
    other.heads.op.bias.data.neg_()
    save_policy(other, policy)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors is not the policy that the run was started with"):
        resume(tmp_path / "changed")
    policy.unlink()
    with pytest.raises(PolicyError, match=r"policy\.safetensors"):
        resume(tmp_path / "changed")


def test_places_that_were_named_from_one_folder_are_found_from_another(tmp_path: Path, tasks_as_they_were: None) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    save_policy(opinionated(), tmp_path / "here" / "policy.safetensors")
    (tmp_path / "here" / "task.py").write_text(
        "from dataclasses import replace\nfrom esper.tolaria.tasks import get, register\nregister(replace(get('digits'), name='mine'))\n"
    )
    config = small(hosts=1, epochs=4, control=False, controller="policy.safetensors", task="mine", plugins=(Path("task.py"),))
    with chdir(tmp_path / "here"):
        crash(config, tmp_path / "run", (3,))
    with chdir(tmp_path / "there"):
        resume(tmp_path / "run")
        assert main(["export", str(tmp_path / "run"), "--out", "network.pt2"]) == 0


def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, KILLER, "--kills", "6", "--scenario", "0", "--seed", "7", "--json", figures]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["kills"] == 6
    assert found["resumes"] > 0
    assert found["mismatches"] == []
    assert "TRAINING" in found["stages"]
    assert {"BLENDING", "HOLDING"} & set(found["stages"])
    assert found["while a checkpoint was written or removed"] > 0


def test_a_policy_that_was_killed_while_it_learned_learns_the_same(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, KILLER, "--kills", "2", "--scenario", "4", "--seed", "2", "--json", figures]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["kills"] == 2
    assert found["resumes"] > 0
    assert found["mismatches"] == []


# The real command in processes of its own


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("alone")
    with chdir(folder):
        assert main(["train", *RUN.split()]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def alone(left_alone: Path) -> dict[str, Any]:
    """What the command leaves when nobody disturbs it."""
    return outcome(left_alone)


def process(folder: Path, arguments: str, limit: str = "true") -> subprocess.Popen[str]:
    quoted = " ".join(map(shlex.quote, [sys.executable, "-m", "esper.cli.main", "train", *arguments.split()]))
    return subprocess.Popen(
        ["bash", "-c", f"{limit}; exec {quoted}"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(run: Path, saved: str) -> None:
    """Wait until the run's log says that this checkpoint is saved."""
    deadline = time.monotonic() + 120
    while not ((run / "log.txt").exists() and saved in (run / "log.txt").read_text()):
        assert time.monotonic() < deadline, f"{saved} was never saved"
        time.sleep(0.01)


def test_ctrl_c_stops_after_a_checkpoint_and_says_how_to_go_on(alone: dict[str, Any], tmp_path: Path) -> None:
    with process(tmp_path, RUN) as running:
        wait_for(tmp_path / "run", "step-00000002")
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate()
    assert running.returncode == 130
    assert "esper: stopping after this round, with a checkpoint; Ctrl-C again stops at once" in errors
    told = re.search(r"^esper: stopped after (\d+) of 16; go on with: esper train --resume run\n", errors, re.MULTILINE)
    assert told, errors
    stopped = int(told[1])
    assert (tmp_path / "run" / "checkpoints" / f"step-{stopped:08}").exists()
    assert out.splitlines()[-1].startswith(f"epoch {stopped}/16")
    assert read_run(tmp_path / "run").status == "interrupted"
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", alone)


def test_a_full_disk_stops_nothing_and_the_run_comes_to_its_end_when_there_is_room(
    left_alone: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    # Files may not grow beyond a size that checkpoints come to in mid-run, as seeds grow and decisions are recorded.
    size = (left_alone / "checkpoints" / "step-00000014" / "tensors.safetensors").stat().st_size
    with process(tmp_path, f"{RUN} --quiet", limit=f"ulimit -f {size // 1024 - 4}") as running:
        out, errors = running.communicate()
    assert (running.returncode, out) == (2, "")
    begins, ends = [line for line in errors.splitlines() if "step-" in line]  # the record may be too large as well
    sentence = r"step-(\d+) cannot be saved in run/checkpoints: File too large; the last one, (step-\d+), is intact"
    told = re.fullmatch(f"esper: {sentence}; the run goes on, and the next one is tried", begins)
    assert told, errors
    assert int(told[1]) > 2
    at_its_end = f"esper: the run is at its end and cannot be finished: {sentence}; make room, and go on with: esper train --resume run"
    assert re.fullmatch(at_its_end, ends), errors
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints"))[-1] == told[2]
    assert read_run(tmp_path / "run").status == "interrupted"
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run")["checkpoint"] == alone["checkpoint"]


# Damage


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that crashed after epoch 7, with checkpoints of epochs 2, 4 and 6, and the outcome of the same one left alone."""
    folder = tmp_path_factory.mktemp("interrupted")
    start(small(hosts=1), folder / "alone", "a run")
    crash(small(hosts=1), folder / "run", [7])
    return folder / "run", outcome(folder / "alone")


@pytest.fixture
def run(interrupted: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of the interrupted run, to be damaged."""
    return shutil.copytree(interrupted[0], tmp_path / "run")


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_and_the_result_is_the_same(
    file: str, run: Path, interrupted: tuple[Path, dict[str, Any]]
) -> None:
    flip(run / "checkpoints" / "step-00000006" / file)
    resume(run)
    assert_same(run, interrupted[1])
    log = (run / "log.txt").read_text()
    assert f"passed over: {run}/checkpoints/step-00000006" in log
    assert "goes on from step-00000004" in log


def test_when_all_checkpoints_are_damaged_the_run_does_not_begin_anew(run: Path) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        flip(checkpoint / "tensors.safetensors")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in ("log.txt", "run.lock")}
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*step-00000006.*damaged"):
        resume(run)
    assert {path: path.read_bytes() for path in before} == before


def test_a_pickle_is_refused(run: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "tensors.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="is a pickle, which can run code"):
        resume(run)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("before", "after", "kind", "words"),
    [
        ("checkpoint_every = 2", "checkpoint_every = 3", CheckpointError, "written under another config than the run's config.toml"),
        ("checkpoint_every = 2", "checkpont_every = 2", ConfigError, "did you mean 'checkpoint_every'?"),
        ("checkpoint_every = 2", "checkpoint_every = ", ConfigError, "not valid TOML"),
        ('kind = "run"', "", RunError, "does not say what kind of run it is"),
        ('kind = "run"', "kind = []", RunError, "does not say what kind of run it is"),
    ],
)
def test_an_edited_config_is_refused(before: str, after: str, kind: type[EsperError], words: str, run: Path) -> None:
    config = run / "config.toml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(kind, match=re.escape(words)):
        resume(run)


def test_a_lost_config_is_a_sentence(run: Path) -> None:
    (run / "config.toml").unlink()
    with pytest.raises(ConfigError, match="no config file at"):
        resume(run)


def test_other_data_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.tolaria.data.formats.Images.fingerprint", lambda self: "another")
    with pytest.raises(CheckpointError, match="the data differs from that of the checkpoint"):
        resume(run)


def test_an_edited_record_is_refused(run: Path) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:20] + lines[21:]))
    with pytest.raises(EsperError, match="it was edited or belongs to another run"):
        resume(run)


def test_a_torn_last_event_is_no_harm(run: Path, interrupted: tuple[Path, dict[str, Any]]) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"v":1,"seq":')
    resume(run)
    assert_same(run, interrupted[1])


def test_a_run_in_use_is_refused_to_a_second_process(run: Path) -> None:
    with RunFolder.open(run), pytest.raises(RunError, match=f"is in use by process {os.getpid()} on"):
        resume(run)
    resume(run)


def test_a_finished_run_is_not_resumed(run: Path) -> None:
    resume(run)
    before = outcome(run)
    with pytest.raises(RunError, match="is finished: there is nothing to resume"):
        resume(run)
    with pytest.raises(RunError, match="holds a finished run"):
        start(small(), run, "a run")
    assert_same(run, before)


def test_what_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run: there is no such folder"):
        resume(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: it has no run\.json"):
        resume(tmp_path)


def test_a_run_can_be_moved_between_its_stops(run: Path, tmp_path: Path, interrupted: tuple[Path, dict[str, Any]]) -> None:
    moved = tmp_path / "elsewhere" / "another name"
    moved.parent.mkdir()
    run.rename(moved)
    assert resume(moved)["run"] == str(moved)
    assert_same(moved, interrupted[1])


def test_telemetry_switched_off_for_a_while_leaves_a_record_without_gaps(run: Path, interrupted: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(Crash):
        resume(run, display=CrashAfter(9), settings={"telemetry.level": "off"})
    resume(run, settings={"telemetry.level": "normal"})
    found = outcome(run)
    assert found["checkpoint"] == interrupted[1]["checkpoint"]
    assert found["summary"] == interrupted[1]["summary"]
    assert 0 < len(found["events"]) < len(interrupted[1]["events"]), "what happened in the dark is not there, and nothing is doubled"
