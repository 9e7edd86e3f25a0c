"""`esper export`: the grown network in each format, equal to the original, and one clear sentence for a mistake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from esper.cli.main import main
from esper.leyline.errors import HarvestError
from esper.simic.runs import export
from esper.simic.runs.export import harvest_of_run, write
from esper.simic.runs.runner import start
from esper.tolaria.data import FinalEvaluation
from esper.tolaria.storage.runs import RunFolder, read_summary
from esper.tolaria.tasks import get
from tests.simic.runs import small
from tests.tolaria.small import plain_score


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two hosts with fossils."""
    path = tmp_path_factory.mktemp("export") / "run"
    start(small(control=False), path, "a run")
    assert all(host["fossilized"] for host in read_summary(path)["hosts"])
    return path


WITHOUT_ESPER = """
import sys
sys.modules["esper"] = None  # as if it were not installed
import torch
network = torch.load(sys.argv[1], weights_only=False)
torch.save(network(torch.load(sys.argv[2])), sys.argv[3])
print(any(name.startswith("esper.") for name in sys.modules))
"""


def test_a_module_loads_where_esper_is_not_installed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "er" / "network.pt"
    assert main(["export", str(run), "--format", "module", "--check", "--out", str(target)]) == 0
    told = capsys.readouterr().out
    network, example, host = harvest_of_run(run)
    assert told.startswith(f"wrote {target}: host {host}, ")
    assert "input of shape (batch, 1, 8, 8), outputs compared and equal" in told
    assert 'network = torch.load("network.pt", weights_only=False)' in told
    torch.save(example, tmp_path / "input.pt")
    files = [str(path) for path in (target, tmp_path / "input.pt", tmp_path / "output.pt")]
    done = subprocess.run([sys.executable, "-c", WITHOUT_ESPER, *files], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "output.pt"), network(example))


def test_what_is_exported_has_the_accuracy_that_the_summary_tells(run: Path) -> None:
    task = get("digits")
    data = task.load(None, torch.device("cpu"))
    for number, told in enumerate(read_summary(run)["hosts"]):
        network, _, _ = harvest_of_run(run, number)  # from the checkpoint alone, which has no data to make batch norms anew from
        assert plain_score(network, task, data.val)[1] == told["val_accuracy"]
        assert plain_score(network, task, data.test(FinalEvaluation(asked_by="a test")))[1] == told["test_accuracy"]


@pytest.mark.parametrize(("format", "suffix"), [("pt2", ".pt2"), ("onnx", ".onnx")])
def test_an_exported_network_is_checked_and_lies_in_the_run(
    format: str, suffix: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--format", format, "--check", "--host", "1"]) == 0
    told = capsys.readouterr()
    assert "outputs compared and equal" in told.out
    assert told.err == ""
    assert sorted(path.name for path in (run / "export").iterdir() if path.suffix == suffix) == [f"host-1{suffix}"]


def test_the_network_is_the_one_whose_figures_the_summary_has(run: Path) -> None:
    hosts = read_summary(run)["hosts"]
    best = max(range(2), key=lambda number: hosts[number]["val_accuracy"])
    network, _, host = harvest_of_run(run)
    assert host == best
    assert sum(p.numel() for p in network.parameters()) == hosts[best]["parameters"] > hosts[best]["host_parameters"]


def test_a_network_that_differs_from_what_was_written_is_noticed_and_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, example, _ = harvest_of_run(run)
    original = export._run_module
    monkeypatch.setattr(export, "_run_module", lambda content, batch: original(content, batch) + 1e-3)
    with pytest.raises(HarvestError, match=r"differ by .* nothing was written"):
        write(network, example, tmp_path / "network.pt", "module", check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--format", "onx"], "unknown format 'onx'; did you mean 'onnx'?"),
        (["{run}", "--host", "2"], "has the hosts 0 to 1, found 2"),
        (["{run}", "--host", "-1"], "has the hosts 0 to 1, found -1"),
        (["{run}", "--host", "first"], "argument --host: invalid int value: 'first'"),
        (["{run}", "--fromat", "onnx"], "unknown argument '--fromat'; did you mean '--format'?"),
        (["{run}", "--format", "module", "--out", "{file}/network.pt"], "cannot be written to {file}/network.pt: "),
        (["{run}", "--format", "module", "--out", "{folder}"], "{folder} is a folder; a network is written to a new file"),
        (["{folder}"], "{folder} is not a run: it has no run.json"),
        (["{folder}/nowhere"], "is not a run: there is no such folder"),
        ([], "the following arguments are required: RUN"),
        (["{new}"], "has no checkpoint yet; there is no network to export"),
        (["{policy}"], "holds no grown network"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"run": run, "file": tmp_path / "file", "folder": tmp_path / "folder", "new": tmp_path / "new", "policy": tmp_path / "policy"}
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    RunFolder.create(tmp_path / "new", name="", config=small(), command="").close()
    shutil.copytree(run, tmp_path / "policy")
    (tmp_path / "policy" / "config.toml").write_text('kind = "learn"\n')
    assert main(["export", *(argument.format(**places) for argument in arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("esper: ")
    assert told.err.count("\n") == 1
    assert words.format(**places) in told.err
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("link", "is a link; a network is written to a new file, or over a plain one"),
        ("fifo", "is no plain file; a network is written to a new file, or over a plain one"),
        ("folder", "is a folder; a network is written to a new file, or over a plain one"),
        ("run/config.toml", "lies among the files of the run; write to another folder, or to"),
        ("run/checkpoints/new.pt2", "lies among the files of the run; write to another folder, or to"),
    ],
)
def test_nothing_but_a_plain_file_outside_the_run_is_written_over(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, found: str
) -> None:
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    before = {path: path.lstat().st_mtime_ns for path in (*tmp_path.rglob("*"), *run.rglob("*"))}
    assert main(["export", str(run), "--out", str(tmp_path / name)]) == 2
    assert f"{tmp_path / name} {found}" in capsys.readouterr().err
    assert {path: path.lstat().st_mtime_ns for path in (*tmp_path.rglob("*"), *run.rglob("*"))} == before


def test_a_plain_file_is_written_over(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.pt").write_text("an old network")
    assert main(["export", str(run), "--format", "module", "--out", str(tmp_path / "old.pt")]) == 0
    assert torch.load(tmp_path / "old.pt", weights_only=False) is not None
