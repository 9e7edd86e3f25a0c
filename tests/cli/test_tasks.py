"""`esper tasks`: the list on the terminal, in a pipe and as JSON, the user's own tasks, and a download that says where it put things."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.cli.tasks import main
from esper.leyline.errors import ConfigError, DataError, UnknownNameError
from esper.tolaria.data import download as downloads
from esper.tolaria.data.sources import FASHION_MNIST
from esper.tolaria.tasks import TASKS


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks_as_they_were: None) -> Path:
    """An empty cache, and the register as it was."""
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["--json", *arguments]) == 0
    return {row["task"]: row for row in json.loads(capsys.readouterr().out)}


def test_json_lists_every_task_with_its_host_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    listed = rows(capsys)
    assert tuple(listed) == tuple(TASKS)
    assert (listed["cifar10"]["parameters"], listed["cifar10"]["slots"]) == (6418, 3)
    assert (listed["cifar10-impaired"]["parameters"], listed["cifar10-deep"]["parameters"]) == (77, 99_922)
    assert (listed["digits"]["there"], listed["digits"]["data"]) == (True, "its own")
    assert (listed["cifar10"]["there"], listed["cifar10"]["download"]) == (False, "cifar10")
    assert listed["tinystories"]["kind"] == "language"


def test_data_that_is_there_is_seen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "TinyStories-train.txt").touch()
    listed = rows(capsys, "--data", str(tmp_path))
    assert listed["tinystories"]["there"] is True
    assert listed["tinystories"]["where"] == str(tmp_path / "TinyStories-train.txt")
    assert listed["cifar10"]["there"] is False


def test_in_a_pipe_the_list_is_plain_aligned_lines(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["task", "parameters", "slots", "data", "there", "from", "summary"]
    assert [line.split()[0] for line in lines] == list(TASKS)
    assert all(line[header.index("summary") - 1] == " " and line[header.index("summary")] != " " for line in lines)
    stories = next(line for line in lines if line.startswith("tinystories"))
    assert "10,783,488" in stories
    assert "no: --download tinystories" in stories


def test_on_a_terminal_the_list_is_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    main([])
    out = capsys.readouterr().out
    assert "┃" in out
    assert all(name in out for name in TASKS)


def test_a_users_own_tasks_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "my_task.py"
    file.write_text(
        "from dataclasses import replace\n"
        "import esper; from esper.tolaria.tasks import get\n"
        "esper.task(replace(get('digits'), name='my-digits', summary='mine'))\n"
    )
    listed = rows(capsys, "--plugins", str(file))
    assert listed["my-digits"]["summary"] == "mine"
    assert listed["my-digits"]["from"] == f"{file}:3"
    assert listed["digits"]["from"] == "esper"
    with pytest.raises(ConfigError, match="no plug-in at"):
        main(["--plugins", str(tmp_path / "none.py")])


@pytest.mark.parametrize("name", ["fashion", "fashion-mnist"])
def test_a_download_can_be_named_by_task_or_data_set(
    name: str, capsys: pytest.CaptureFixture[str], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The network is the one thing that a test cannot have; what comes is not the published file.
    fetched: list[str] = []

    def chunks(file: downloads.Download) -> Iterator[bytes]:
        fetched.append(file.url)
        yield b"not the published file"

    monkeypatch.setattr(downloads, "_chunks", chunks)
    with pytest.raises(DataError, match="22 bytes with another checksum came; expected 26,421,880"):
        main(["--download", name])
    assert fetched == [FASHION_MNIST.downloads[0].url]
    assert list((empty_cache / "fashion-mnist").iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_misspelt_download_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown data set 'cifar-10'; did you mean 'cifar10'"):
        main(["--download", "cifar-10"])


def test_a_task_that_brings_its_own_data_has_nothing_to_download() -> None:
    with pytest.raises(DataError, match="task 'digits' brings its own data; there is nothing to download"):
        main(["--download", "digits"])


def test_help_imports_no_torch() -> None:
    script = "\n".join(
        [
            "import sys",
            "from esper.cli.tasks import main",
            "try: main(['--help'])",
            "finally: print('torch' in sys.modules, 'numpy' in sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--download NAME" in done.stdout
    assert done.stdout.endswith("False False\n")
