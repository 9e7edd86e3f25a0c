"""The examples run as their first lines say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).resolve().parent.parent


def run(example: str, *options: str, launcher: tuple[str, ...] = ()) -> str:
    """What an example prints, as somebody sees it who runs it from the project's folder."""
    command = [sys.executable, *launcher, f"examples/{example}", *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "an example says nothing about its own troubles"
    return done.stdout


def test_a_resnet_is_grown_and_compared_with_itself():
    told = run("grow_resnet.py", "--epochs", "9")
    assert "places where it could grow: layer1, layer2, layer3" in told
    assert "GERMINATE layer1 conv_" in told
    assert told.count("\nepoch ") == 9
    assert "without growth: " in told
    assert "         grown: " in told
    assert "kept what grew at: " in told


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["alone", "torchrun"])
def test_a_network_grows_in_several_processes_and_in_one(launcher):
    told = run("grow_ddp.py", "--epochs", "9", launcher=launcher)
    assert sum(line.startswith("epoch ") for line in told.splitlines()) == 9, "one process tells"
    assert told.startswith("epoch 1: ")
    assert "GERMINATE 1 conv_" in told.splitlines()[0]
    assert re.search(r"^2 processes: " if launcher else r"^1 process: ", told, re.MULTILINE)


INSIDE = [("grow_lightning.py", "1"), ("grow_accelerate.py", "1"), ("grow_trainer.py", "transformer.h.0")]


@pytest.mark.parametrize(("example", "slot"), INSIDE)
def test_growth_inside_a_framework(example, slot):
    told = run(example, "--epochs", "8")
    assert told.count("\nepoch ") + told.startswith("epoch ") == 8
    assert f"GERMINATE {slot} " in told
    assert f"  slot {slot}, " in told
    assert "\nharvested: " in told


def test_small_tasks_are_problems_of_their_own(tmp_path):
    """Text, and made-up photographs of the published sizes: each class is as bright as its number, which four by four pixels as one still
    show."""
    random = np.random.default_rng(0)
    for name, shape in (("cifar10", (32, 32, 3)), ("fashion-mnist", (28, 28))):
        y = np.arange(3000) % 10
        x = (25 * y.reshape(-1, *[1] * len(shape)) + random.integers(0, 25, (3000, *shape))).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ESPER_DATA": str(tmp_path)}
    for task, host, chance in (("cifar10-small", 290, 10.0), ("fashion-small", 274, 10.0), ("stdlib-small", 29632, 1.0)):
        options = f"--plugins examples/small_tasks.py --task {task} --hosts 1 --epochs 3 --no-control --fix train_size=400".split()
        command = [sys.executable, "-m", "esper", "train", "heuristic", *options, "--run", str(tmp_path / task)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / task / "summary.json").read_text())
        assert summary["hosts"][0]["host_parameters"] == host
        assert summary["hosts"][0]["test_accuracy"] > chance + 4.0, "where chance has a standard error of 1 at most"


def test_rules_with_other_settings_decide_otherwise(tmp_path):
    options = (
        "--hosts 6 --epochs 12 --fix kernel=1 rent=0 --no-plans --record --beside heuristic bold shy --plugins examples/rules.py --quiet"
    )
    command = [sys.executable, "-m", "esper", "headroom", *options.split(), "--run", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for name in ("heuristic", "bold", "shy"):
        assert f"\n{name} scores " in done.stdout
    scores = {each["name"]: each["score"]["mean"] for each in json.loads((tmp_path / "run" / "summary.json").read_text())["beside"]}
    assert len(set(scores.values())) == 3, scores


PLUGINS = ("my_task.py", "my_blueprint.py", "my_controller.py", "my_reward.py", "my_sink.py")


def test_plugins_of_every_kind_work_together(tmp_path):
    """A run of the task under the controller, which grows the blueprint and is paid by the component, and tells the sink."""
    program = f"""
from pathlib import Path
from esper.cli.main import main
from esper.leyline.events import Decided, Rewarded
from esper.nissa import read_events

run = Path({str(tmp_path / "run")!r})
options = "--task odd-or-even --controller eager --hosts 1 --epochs 5 --no-control --quiet --reward.extra thrift=0.1"
plugins = [f"examples/{{name}}" for name in {PLUGINS!r}]
assert main(["train", "heuristic", *options.split(), "--run", str(run), "--track", "csv", "--plugins", *plugins]) == 0
events = list(read_events(run / "events.jsonl"))
assert next(each.event.decision.blueprint for each in events if isinstance(each.event, Decided)) == "far_conv"
assert min(each.event.components["thrift"] for each in events if isinstance(each.event, Rewarded)) < 0
assert len((run / "accuracy.csv").read_text().splitlines()) == 1 + 5
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ESPER_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_shows_the_plugins_as_they_are(name):
    code = (PROJECT / "examples" / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (PROJECT / "docs/bring-your-own.md").read_text(encoding="utf-8")
