"""Run folders: made once, never overwritten, worked in by one process at a time, and gone on with as if nothing had happened."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from esper.leyline import config as configs
from esper.leyline.errors import ConfigError, RunError
from esper.leyline.events import Note
from esper.nissa import Hub, JsonlSink
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import RunFolder, list_runs, read_run, read_summary

DRIVER = Path(__file__).with_name("crashing.py")


@dataclass(frozen=True)
class Config:
    epochs: int = 5
    name: str = "é"


def create(path: Path | None, root: Path = Path("runs"), name: str = "digits-heuristic") -> RunFolder:
    return RunFolder.create(path, name=name, config=Config(), command="train heuristic", root=root)


def record_something(run: RunFolder) -> None:
    hub = Hub(JsonlSink(run.events))
    hub.emit(Note(text="a"))
    hub.close()


# Making one


def test_a_new_run_has_its_config_its_command_and_nothing_else(tmp_path: Path) -> None:
    with create(tmp_path / "a" / "b") as run:
        assert configs.load(Config, run.config) == Config()
        info = read_run(run.path)
        assert (info.path, info.id, info.command, info.status) == (tmp_path / "a" / "b", run.id, "train heuristic", "running")
    assert read_run(tmp_path / "a" / "b").status == "new"
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["config.toml", "run.json", "run.lock"]


def test_runs_without_a_path_are_numbered(tmp_path: Path) -> None:
    names = []
    for hint in ("digits-ppo", "digits-ppo", "my/../task x", "..", "digits-ppo"):
        with create(None, root=tmp_path / "runs", name=hint) as run:
            names.append(run.path.relative_to(tmp_path / "runs").as_posix())
    assert names == ["digits-ppo-001", "digits-ppo-002", "my-..-task-x-001", "run-001", "digits-ppo-003"]


def test_an_empty_folder_and_a_run_that_never_began_are_taken(tmp_path: Path) -> None:
    first = create(tmp_path)
    first.close()
    (tmp_path / ".summary.json.1234.tmp").touch()
    with create(tmp_path) as second:
        assert second.id != first.id


@pytest.mark.parametrize("name", ["thesis.tex", "config.toml", "events.jsonl"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"not empty and not a run .it holds '{name}'"):
        create(tmp_path)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        create(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="Not a directory"):
        create(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="File exists"):
        create(None, root=tmp_path / "file")


def test_a_config_that_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        RunFolder.create(tmp_path / "run", name="", config=Config(name="\ud800"), command="train")
    assert not (tmp_path / "run").exists()


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A disk that takes no more than so many bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 10, 500])
@pytest.mark.parametrize("place", ["new/run", "empty", "numbered"])
def test_a_disk_that_fills_up_while_a_run_is_made_leaves_nothing_of_it(tmp_path: Path, size: int, place: str) -> None:
    (tmp_path / "empty").mkdir()
    path = None if place == "numbered" else tmp_path / place
    config = Config(name="x" * 1000)  # run.json takes less than 500 bytes, config.toml takes more
    with files_up_to(size), pytest.raises(RunError, match=r"the run folder .* cannot be written: File too large; nothing of it is left$"):
        RunFolder.create(path, name="a", config=config, command="train", root=tmp_path / "runs")
    assert [entry.relative_to(tmp_path).as_posix() for entry in tmp_path.rglob("*")] == ["empty"]
    with RunFolder.create(path, name="a", config=config, command="train", root=tmp_path / "runs") as run:
        assert configs.load(Config, run.config) == config


def test_a_disk_that_is_full_later_leaves_what_was_written_before(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        for write in (lambda: run.finish({"accuracy": 1.0}), lambda: run.change_config(Config(epochs=7))):
            with files_up_to(5), pytest.raises(RunError, match=r"File too large; what the run wrote before is intact$"):
                write()
        assert configs.load(Config, run.config) == Config()
    assert sorted(os.listdir(tmp_path / "run")) == ["config.toml", "run.json", "run.lock"]


@pytest.mark.parametrize("long", ["x" * 5000, "x/" * 2500], ids=["a name", "a path"])
def test_a_path_that_is_too_long_is_one_sentence(tmp_path: Path, long: str) -> None:
    for use in (create, RunFolder.open, read_run, list_runs):
        with pytest.raises(RunError, match=r"File name too long$"):
            use(tmp_path / long)
    with pytest.raises(RunError, match=r"File name too long$"):
        create(None, root=tmp_path / long)
    with pytest.raises(RunError, match=r"File name too long$"):
        create(None, root=tmp_path / "runs", name="x" * 5000)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_withdrawn_takes_the_folders_that_were_made_for_it_along(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "mine" / "a" / "b" / "run", None):
        with create(path, root=tmp_path / "mine" / "c" / "runs") as run:
            run.withdraw()
    assert [entry.name for entry in tmp_path.rglob("*")] == ["mine"]


def test_an_interrupted_run_is_not_overwritten(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        record_something(run)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match="holds an interrupted run; resume it"):
        create(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "run.lock"} == {
        name: content for name, content in before.items() if name != "run.lock"
    }
    RunFolder.open(tmp_path).close()  # the refusal let go of the lock


def test_a_finished_run_is_neither_overwritten_nor_resumed(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.finish({"accuracy": 91.5})
    with pytest.raises(RunError, match="holds a finished run"):
        create(tmp_path)
    with pytest.raises(RunError, match="is finished: there is nothing to resume"):
        RunFolder.open(tmp_path)
    assert read_summary(tmp_path) == {"accuracy": 91.5}


# Its life


def test_the_status_follows_the_life_of_a_run(tmp_path: Path) -> None:
    run = create(tmp_path)
    seen = [read_run(tmp_path).status]
    run.close()
    seen.append(read_run(tmp_path).status)
    with RunFolder.open(tmp_path) as run:
        record_something(run)
        seen.append(read_run(tmp_path).status)
    seen.append(read_run(tmp_path).status)
    with RunFolder.open(tmp_path) as run:
        run.finish({})
    seen.append(read_run(tmp_path).status)
    assert seen == ["running", "new", "running", "interrupted", "finished"]


def test_a_run_with_a_checkpoint_and_no_events_is_interrupted(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        CheckpointStore(run.checkpoints, run=run.id).save(1, {})
    assert read_run(tmp_path).status == "interrupted"


def test_opening_keeps_the_id_that_its_checkpoints_carry(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        CheckpointStore(run.checkpoints, run=run.id).save(1, {"a": 1})
    with RunFolder.open(tmp_path) as again:
        assert CheckpointStore(again.checkpoints, run=again.id).load(1) == {"a": 1}


def test_the_log_gets_a_time_for_each_line(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.log("one\ntwo")
        run.log("three \ud800")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two", "three \\ud800"]
    assert all(line[:4].isdigit() and line[10] == "T" for line in lines)


def test_a_log_that_cannot_be_written_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with create(tmp_path) as run:
        (tmp_path / "log.txt").symlink_to("/dev/full")
        run.log("important")
    assert capsys.readouterr().err.endswith(" important\n")


def test_a_summary_is_plain_json_whatever_the_figures(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.finish({"loss": float("nan"), "best": [float("inf"), -float("inf"), 1.5], "more": {"n": 3}})
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary == {"loss": "NaN", "best": ["Infinity", "-Infinity", 1.5], "more": {"n": 3}}


def test_the_figures_of_an_unfinished_run_are_an_error(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(RunError, match="it is not finished"):
        read_summary(tmp_path)


# What there is


def test_runs_are_listed_with_their_status_and_the_damaged_ones_apart(tmp_path: Path) -> None:
    for name in ("zebra", "ant", "bad"):
        create(tmp_path / name).close()
    with RunFolder.open(tmp_path / "ant") as run:
        run.finish({})
    (tmp_path / "bad" / "run.json").write_text("{")
    (tmp_path / "not a run").mkdir()
    (tmp_path / "file").touch()
    early = (tmp_path / "zebra" / "run.json").read_text().replace('"created": "2', '"created": "1')
    (tmp_path / "zebra" / "run.json").write_text(early)
    runs, problems = list_runs(tmp_path)
    assert [(run.path.name, run.status) for run in runs] == [("zebra", "new"), ("ant", "finished")]
    assert len(problems) == 1
    assert "bad/run.json cannot be read" in problems[0]


def test_no_folder_of_runs_means_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "runs") == ([], [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "it has no run.json"),
        ("[]", "was not written by Esper"),
        ('{"format": "esper run", "version": 3}', "another format version"),
        ('{"format": "esper run", "version": 2, "id": 3}', "should be text"),
        ('{"format": "esper run", "version": 2, "id": "", "command": "", "created": "soon"}', "'soon' is not a date"),
        ("\x80", "cannot be read"),
        ("[" * 100_000, "run.json cannot be read"),
    ],
)
def test_a_folder_that_is_no_run_is_an_error_that_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.finish({})
    (tmp_path / "summary.json").unlink()
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(RunError, match=r"summary\.json cannot be read: Not a regular file"):
        read_summary(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such folder"):
        RunFolder.open(tmp_path / "none")


# Other processes


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = [sys.executable, str(DRIVER), "hold_the_lock", "train_through_kills", str(tmp_path_factory.mktemp("driven"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_is_refused_by_name_and_let_in_once_the_first_was_killed(driven: Any) -> None:
    found = driven["hold_the_lock"]
    assert found["status"] == "running"
    assert f"in use by process {found['pid']} on" in found["open"]
    assert f"in use by process {found['pid']} on" in found["create"]
    assert found["after"] == "new"


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with create(tmp_path), pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        RunFolder.open(tmp_path)


def test_a_training_killed_again_and_again_records_each_event_once_and_ends_with_the_same_figures(driven: Any) -> None:
    found = driven["train_through_kills"]
    assert found["kills"] >= 5
    assert found["events"] == 3 * 90
    assert found["same"]
    assert found["figures"][0] == found["figures"][1]
