"""Trackers with the real libraries: a real run that is interrupted and goes on, and what each of them then has of it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.leyline.errors import ConfigError
from esper.leyline.events import SinkBehind, SinkFailed
from esper.nissa import find_sink, read_events
from esper.nissa.scalars import Scalars
from esper.nissa.trackers import TRACKERS
from esper.nissa.trackers.tracker import Ledger
from esper.simic.runs.runner import resume, start
from tests.simic.runs import Crash, CrashAfter, small


def tracked(folder: Path, name: str, pause: float = 0.0) -> dict[tuple[str, int], float]:
    """A run of six epochs that crashes after the third, whose checkpoint is that of the second; every number that it told, by its name
    and step."""
    with pytest.raises(Crash):
        start(small(hosts=2, epochs=6), folder, "esper train heuristic --name <b>", sinks=[name], display=CrashAfter(3))
    time.sleep(pause)
    resume(folder, sinks=[name])
    scalars, events = Scalars(), list(read_events(folder / "events.jsonl"))
    assert [envelope.event for envelope in events if isinstance(envelope.event, SinkFailed | SinkBehind)] == []
    points = [point for envelope in events for point in scalars.points(envelope)]
    logged = {(label, point.step): value for point in points for label, value in point.values.items()}
    assert [step for label, step in logged if label == "hosts/val_accuracy"] == [1, 2, 3, 4, 5, 6]
    assert ("finished/score", 6) in logged
    return logged


def test_tensorboard_has_every_number_once_and_the_config_as_text(tmp_path: Path) -> None:
    logged = tracked(tmp_path / "run", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    found = [((tag, each.step), each.value) for tag in read.Tags()["scalars"] for each in read.Scalars(tag)]
    assert len(found) == len(logged)
    assert dict(found) == pytest.approx(logged, rel=1e-6)
    assert {"config", "run", "remarks"} <= set(read.Tags()["tensors"])
    assert "epochs = 6\n" in read.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert read.Tensors("run")[0].tensor_proto.string_val[0].decode() == "    esper train heuristic --name <b>\n"


def wandb_records(path: Path) -> list[Any]:
    """What W&B wrote to a file. Its own process does that, and is done a moment after W&B has said that the run is finished."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + 120
    while True:
        found = [Record.FromString(content) for content in parts(path)]
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert time.monotonic() < deadline, f"{path} has no end: {len(found)} records"
        time.sleep(0.05)


def parts(path: Path) -> Iterator[bytes]:
    """The records of a W&B file: a log of blocks of 32 KiB, in which a record is whole or in parts."""
    content, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := (1 << 15) - place % (1 << 15)) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb_works_offline_and_goes_on_under_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged = tracked(tmp_path / "run", "wandb", pause=1.0)  # W&B names its folders by the second
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2, "one for each process"
    assert len({file.name for file in files}) == 1, "with the same id"
    found: dict[tuple[str, int], float] = {}
    configs, summaries = dict[str, Any](), dict[str, Any]()
    for file in files:
        for record in wandb_records(file):
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name, value in items.items():
                if name in {label for label, _ in logged}:
                    assert (name, items["epoch"]) not in found
                    found[name, items["epoch"]] = value
            configs |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            summaries |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.summary.update}
    assert found == pytest.approx(logged)
    assert (configs["epochs"], configs["training.gates.strict"]) == (6, False)
    assert any("against_control" in name for name in summaries), summaries.keys()


@pytest.mark.parametrize(("key", "mode"), [("", "offline"), ("0" * 40, "online")])
def test_wandb_sends_only_for_whoever_is_logged_in(tmp_path: Path, key: str, mode: str) -> None:
    program = "from esper.nissa.trackers import load_tracker; print(load_tracker('wandb').mode())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**kept, "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), **({"WANDB_API_KEY": key} if key else {})}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{mode}\n", "")


def test_mlflow_keeps_its_store_in_the_run_and_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    logged = tracked(tmp_path / "run", "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/run/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("esper")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    names = {name for name, _ in logged}
    history = [metric for name in names for metric in client.get_metric_history(run.info.run_id, name)]
    assert len(history) == len(logged)
    assert {(metric.key, metric.step): metric.value for metric in history} == pytest.approx(logged)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert (run.data.params["epochs"], run.data.params["training.gates.strict"]) == ("6", "False")
    assert run.data.tags["esper.command"] == "esper train heuristic --name <b>"
    assert "esper.version.torch" in run.data.tags
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"config.toml", "summary.json", "remarks.txt"}
    summary = client.download_artifacts(run.info.run_id, "summary.json", str(tmp_path))
    assert Path(summary).read_bytes() == (tmp_path / "run" / "summary.json").read_bytes()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_not_here_is_one_sentence_and_nothing_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in [each for each in sys.modules if each.partition(".")[0] == name or each == f"esper.nissa.trackers.{name}"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["train", "heuristic", "--track", name]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"esper: --track {name} needs a library that is not here (")
    assert told.endswith(f"); install it with: pip install 'esper-lite[{name}]'\n")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_spelt_wrong_is_told_the_near_one() -> None:
    with pytest.raises(Exception, match="unknown sink 'tensorbord'; did you mean 'tensorboard'"):
        find_sink("tensorbord")


def test_a_run_that_cannot_begin_leaves_nothing_of_its_tracker(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unknown task"):
        start(small(task="digit"), tmp_path / "run", "a run", sinks=["tensorboard"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"run": "a", "store": "", "logged": {"x": "y"}}'])
def test_a_damaged_ledger_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "esper.json").write_text(content)
    with pytest.raises(ConfigError, match=r"esper\.json cannot be read, and with it where this run was tracked"):
        Ledger.read(tmp_path / "esper.json")


def test_importing_nissa_loads_no_tracker() -> None:
    program = "import sys, esper.nissa; print(sorted({'tensorboard', 'wandb', 'mlflow', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
