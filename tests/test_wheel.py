"""The wheel holds all that it needs: installed where no checkout is, it lists its tasks, trains on its own data and writes its pages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.pages import PROJECT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel, built from the checkout and without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), "."]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("esper_lite-*.whl")
    return found


@pytest.fixture(scope="module")
def esper(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, which has the wheel, and what it depends on from the one that runs the tests."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    # A path in a .pth file is not searched for .pth files itself, so the checkout, which is installed there, stays out.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = str(place / "bin/python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return place / "bin/esper"


def run(esper: Path, folder: Path, *arguments: str) -> str:
    """What the installed command prints, in a folder that has nothing to do with the project."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "ESPER_DATA": str(folder / "cache")}
    done = subprocess.run([str(esper), *arguments], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    inside = {name for name in ZipFile(wheel).namelist() if name.startswith("esper/")}
    tracked = subprocess.run(["git", "ls-files", "src/esper"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} <= inside
    assert any(name.endswith("LICENSE") for name in ZipFile(wheel).namelist())


def test_it_answers_and_trains_where_there_is_no_checkout(esper: Path, tmp_path: Path) -> None:
    python = esper.with_name("python")
    program = [python, "-P", "-c", "import esper; print(esper.__file__)"]
    where = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env={})
    assert Path(where.stdout.strip()).is_relative_to(esper.parents[1]), where
    assert run(esper, tmp_path, "--version").startswith("esper ")
    assert "digits" in run(esper, tmp_path, "tasks")
    told = run(esper, tmp_path, "train", "heuristic", "--hosts", "1", "--epochs", "1", "--quiet", "--run", "runs/first")
    assert "report: runs/first/report.html" in told
    assert (tmp_path / "runs/first/summary.json").is_file()
