"""Engines in runs and environments: chosen by name, told, and changed in the middle of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.kill import outcome
from esper.cli.main import main
from esper.leyline.actions import WAIT
from esper.leyline.errors import DeviceError
from esper.leyline.events import Note, RunStarted
from esper.nissa import read_events
from esper.simic.environment import GrowthVector
from esper.simic.growth.config import ControllerRunConfig, GrowthConfig
from esper.simic.growth.environment import Growth, Start
from esper.simic.runs.ppo_config import PPORunConfig
from esper.simic.runs.runner import resume, start
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run, read_summary
from esper.tolaria.training import stackable
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.engine import ENGINES, FleetEngine, choose
from tests.simic.runs import MEMBER, Crash, CrashAfter, small

FLEET = replace(small(), engine="fleet")

PLUGIN = """
import torch, esper
from esper.tolaria.tasks import VisionTask, get
digits = get("digits")
class Centred(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(0)
class Task(VisionTask):
    def make_host(self, member, classes):
        host, slots = super().make_host(member, classes)
        host.blocks[0].pool = torch.nn.Sequential(host.blocks[0].pool, Centred())
        return host, slots
names = ("summary", "shape", "classes", "read", "val_share", "shift", "mirror", "family")
esper.task(Task(name="mixing", **{name: getattr(digits, name) for name in names}))
"""


def test_auto_is_a_fleet_on_a_gpu_and_serial_elsewhere() -> None:
    config = TrainingConfig()
    assert choose("auto", config, torch.device("cuda")).engine == "fleet"
    assert choose("auto", config, torch.device("cpu")).engine == "serial"
    assert choose("auto", TrainingConfig(compile="inductor"), torch.device("cuda")).engine == "serial"
    assert choose("fleet", config, torch.device("cpu")) == ("fleet", "as asked for")


def test_an_engine_or_device_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "heuristic", "--engine", "fleat"]) == 2
    assert capsys.readouterr().err == "esper: esper train heuristic: 'engine' must be one of 'auto', 'serial', 'fleet'; found 'fleat'\n"
    with pytest.raises(DeviceError, match="unknown device 'gpu0'"):
        Growth(GrowthConfig(devices=("cpu", "gpu0")))


def test_a_fleet_tells_what_it_is_and_ends_as_hosts_one_by_one_do(tmp_path: Path) -> None:
    together, alone = start(FLEET, tmp_path / "fleet", "a"), start(small(), tmp_path / "serial", "a")
    (about,) = [each.event.about for each in read_events(tmp_path / "fleet" / "events.jsonl") if isinstance(each.event, RunStarted)]
    assert (about["engine"], about["engine_why"], about["devices"]) == ("fleet", "as asked for", "cpu")
    for name in ("parameters", "germinated", "flops"):
        assert [host[name] for host in together["hosts"]] == [host[name] for host in alone["hosts"]]
    losses = [[host["val_loss"] for host in each["hosts"]] for each in (together, alone)]
    np.testing.assert_allclose(*losses, rtol=0.2)  # rounding, over ten epochs of a host that learns fast


SHADOW = replace(FLEET, controller="random", training=replace(FLEET.training, isolation="shadow"))


@pytest.mark.parametrize("config", [FLEET, SHADOW], ids=["fixed", "random"])
def test_a_run_that_crashes_under_a_fleet_ends_as_one_left_alone(config: ControllerRunConfig, tmp_path: Path) -> None:
    start(config, tmp_path / "alone", "a run")
    with pytest.raises(Crash):
        start(config, tmp_path / "run", "a run", display=CrashAfter(3))
    with pytest.raises(Crash):
        resume(tmp_path / "run", display=CrashAfter(7))
    resume(tmp_path / "run")
    expected, found = outcome(tmp_path / "alone"), outcome(tmp_path / "run")
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize(("first", "second"), [("fleet", "serial"), ("serial", "fleet")])
def test_a_run_goes_on_with_another_engine(first: str, second: str, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        start(replace(FLEET, engine=first), tmp_path / "run", "a run", display=CrashAfter(5))
    resume(tmp_path / "run", settings={"engine": second})
    assert f"changed: engine is {second}" in (tmp_path / "run" / "log.txt").read_text()
    assert len(read_summary(tmp_path / "run")["hosts"]) == 2


def test_a_host_that_cannot_be_stacked_is_told_once(tmp_path: Path, tasks_as_they_were: None) -> None:
    plugin = tmp_path / "mixing.py"
    plugin.write_text(PLUGIN)
    start(replace(FLEET, task="mixing", plugins=(plugin,), epochs=2), tmp_path / "run", "a run")
    notes = [each.event.text for each in read_events(tmp_path / "run" / "events.jsonl") if isinstance(each.event, Note)]
    assert len(notes) == 1
    assert notes[0].startswith("hosts of task 'mixing' are trained one by one: module 'blocks.0.pool.1'")
    assert notes[0].endswith("does it mix the samples of a batch?")


def test_hosts_are_shared_out_over_devices() -> None:
    growth = Growth(GrowthConfig(devices=("cpu", "cpu:0"), engine="fleet", epochs=1, fix=MEMBER, control=False))
    growth.begin({place: Start("digits", place) for place in range(3)})
    assert [str(run.host.split.x.device) for run in growth.hosts.values()] == ["cpu"] * 3  # torch has one CPU, whatever its number
    assert len(growth._data) == 2
    acted = growth.act(dict.fromkeys(growth.train(), WAIT))
    assert all(each.result is not None for each in acted.values())


def test_environments_take_an_engine() -> None:
    seen = []
    for engine in ("serial", "fleet"):
        env = GrowthVector(2, engine=engine, epochs=3, fix=MEMBER, control=False)
        seen.append([env.reset(seed=0)[0], env.step(np.zeros_like(env.action_space.sample()))[0]])
        env.close()
    np.testing.assert_allclose(*seen, atol=1e-3)


# Room to spare


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> tuple[Path]:
    """A plug-in that gives fleets room to spare; a process loads it once, and this one is to have them again without."""
    monkeypatch.setattr(stackable, "SHORT_EPOCH", 0)
    monkeypatch.setitem(ENGINES, "fleet", partial(FleetEngine, spare=True))
    return (Path(__file__).with_name("roomy.py"),)


LEARNING = PPORunConfig(
    rounds=2,
    member="family",
    hosts=3,
    pool=6,
    examined=2,
    epochs=3,
    workers=2,
    engine="fleet",
    control=False,
    fix={"widths": "[2, 2, 2]", "train_size": "96", "batch": "48"},
    hidden=16,
    slot_width=16,
    checkpoint_every=1,
)
"""Two rounds of different hosts."""


def saved_engines(run: Path) -> list[dict[str, Any]]:
    """The states of engines in the newest checkpoint."""
    newest = CheckpointStore(run / "checkpoints", run=read_run(run).id).latest()
    assert newest is not None
    engines: list[dict[str, Any]] = newest.state["work"]["engines"]
    return engines


def crashed(config: ControllerRunConfig | PPORunConfig, folder: Path, *rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run leaves, and what it leaves when it crashes after each of these rounds and goes on."""
    start(config, folder / "alone", "a run")
    with pytest.raises(Crash):
        start(config, folder / "run", "a run", display=CrashAfter(rounds[0]))
    for at in rounds[1:]:
        with pytest.raises(Crash):
            resume(folder / "run", display=CrashAfter(at))
    resume(folder / "run")
    return outcome(folder / "alone"), outcome(folder / "run")


def test_room_is_part_of_a_run_under_a_controller(spare: tuple[Path], tmp_path: Path) -> None:
    expected, found = crashed(replace(SHADOW, plugins=spare), tmp_path, 3, 7)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert [bool(engine["room"]) for engine in saved_engines(tmp_path / "run")] == [True]


@pytest.mark.parametrize("workers", [1, 2])
def test_room_is_part_of_a_run_that_learns(workers: int, spare: tuple[Path], tmp_path: Path) -> None:
    expected, found = crashed(replace(LEARNING, workers=workers, plugins=spare), tmp_path, 2)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert [bool(engine["room"]) for engine in saved_engines(tmp_path / "run")] == [True] * workers


def test_the_room_of_another_number_of_workers_is_left(spare: tuple[Path]) -> None:
    config = GrowthConfig(engine="fleet", epochs=2, fix=MEMBER, control=False, plugins=spare)
    growth, one, two = (Growth(config) for _ in range(3))
    growth.begin({place: Start("digits", place) for place in range(2)})
    growth.act(dict.fromkeys(growth.train(), WAIT))
    one.begin({place: Start("digits", place) for place in range(2)})
    one.load_engines(growth.engines())
    two.load_engines(growth.engines() * 2)
    assert one.engines()[0]["room"] == growth.engines()[0]["room"] != {}
    assert two.engines()[0]["room"] == {}
