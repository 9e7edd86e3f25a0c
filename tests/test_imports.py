"""What importing costs, and that the order of imports is enforced."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh Python has loaded after the program."""
    report = "\nimport sys; print('\\nLOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program + report], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_esper_loads_no_torch():
    assert "esper" in (loaded := loaded_by("import esper"))
    assert not loaded & {"torch", "numpy"}


def test_a_misspelt_name_of_esper_is_told_with_the_nearest_one():
    done = subprocess.run([sys.executable, "-c", "import esper; esper.Growabel"], capture_output=True, text=True)
    assert done.stderr.endswith("module 'esper' has no attribute 'Growabel'. Did you mean: 'Growable'?\n")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such"], [], ["slots", "--help"]])
def test_the_command_line_answers_without_any_library(arguments):
    loaded = loaded_by(f"from esper.cli.main import main; main({arguments!r})")
    assert not loaded & {"torch", "numpy", "rich", "tyro", "safetensors", "onnx"}


def test_leyline_loads_neither_torch_nor_numpy():
    program = (
        "import importlib, pkgutil, esper.leyline\n"
        "for module in pkgutil.walk_packages(esper.leyline.__path__, 'esper.leyline.'): importlib.import_module(module.name)"
    )
    assert not loaded_by(program) & {"torch", "numpy"}


def lint(folder: Path, imports: Iterable[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Check a copy of the sources, in which modules (made, if there are none) import one thing more, against the project's contracts."""
    shutil.copy(PROJECT / "pyproject.toml", folder)
    shutil.copytree(PROJECT / "src/esper", folder / "esper", ignore=shutil.ignore_patterns("*.npz", "*.gz", "*.pyc"))
    for module, imported in imports:
        place = folder / module.replace(".", "/")
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(before + (f"\nimport {imported}\n" if imported else ""), encoding="utf-8")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "400"})


AGAINST = [
    ("esper.leyline.score", "torch"),
    ("esper.leyline.score", "numpy"),
    ("esper.leyline.score", "esper.kasmina"),
    ("esper.kasmina.gates", "esper.nissa"),
    ("esper.nissa.hub", "esper.kasmina"),
    ("esper.nissa.hub", "esper.tolaria"),
    ("esper.tolaria.storage.runs", "esper.tamiyo"),
    ("esper.tamiyo.observe.trend", "esper.kasmina"),
    ("esper.tamiyo.observe.trend", "esper.tolaria"),
    ("esper.tamiyo.observe.trend", "esper.nissa"),
    ("esper.tamiyo.observe.trend", "esper.simic"),
    ("esper.simic.runs.work", "esper.karn"),
    ("esper.karn", "esper.cli"),
    # inside the packages
    ("esper.simic.growth.episode", "esper.simic.learning.ppo"),
    ("esper.simic.growth.play", "esper.simic.gardener"),
    ("esper.simic.learning.rollout", "esper.simic.runs.work"),
    ("esper.simic.learning.rollout", "esper.simic.environment.view"),
    ("esper.simic.environment.view", "esper.simic.learning.popart"),
    ("esper.simic.environment.hosts", "esper.simic.runs.runner"),
    ("esper.simic.runs.runner", "esper.simic.environment"),
    ("esper.simic.rewards.tracker", "esper.simic.growth.config"),
    ("esper.simic.plugins", "esper.simic.growth.config"),
    ("esper.tamiyo.observe.masks", "esper.tamiyo.controllers.controller"),
    ("esper.tamiyo.controllers.heuristic", "esper.tamiyo.policy.policy"),
    ("esper.tolaria.data.splits", "esper.tolaria.tasks.family"),
    ("esper.tolaria.tasks.family", "esper.tolaria.training.config"),
    ("esper.tolaria.storage.checkpoint", "esper.tolaria.data.splits"),
    ("esper.kasmina.slot", "esper.kasmina.growable"),
    ("esper.kasmina.growable", "esper.kasmina.attach.check"),
    ("esper.kasmina.harvest", "esper.kasmina.commands"),
    ("esper.kasmina.gates", "esper.kasmina.slot"),
]
ALONG = [
    ("esper.tamiyo.observe.trend", "torch, numpy, esper.leyline"),
    ("esper.tolaria.storage.runs", "esper.kasmina, esper.nissa"),
    ("esper.cli.runs", "esper.karn, esper.simic"),
    ("esper.simic.runs.work", "esper.simic.learning.ppo, esper.simic.rewards"),
    ("esper.simic.environment.view", "gymnasium"),
    ("esper.tamiyo.policy.heads", "esper.tamiyo.controllers.heuristic"),
]
NEWCOMERS = ["esper.newcomer", "esper.simic.newcomer", "esper.tamiyo.newcomer", "esper.kasmina.newcomer"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What is said of sources with all the imports against the order."""
    done = lint(tmp_path_factory.mktemp("against"), AGAINST)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("module", "imported"), AGAINST)
def test_an_import_against_the_order_is_refused(module, imported, told):
    assert re.search(rf"\b{re.escape(module)} -> {re.escape(imported)} ", told), told


@pytest.mark.parametrize("module", NEWCOMERS)
def test_what_has_no_place_in_the_order_is_refused(module, tmp_path):
    done = lint(tmp_path, [(module, "")])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "newcomer" in done.stdout


def test_imports_along_the_order_are_allowed(tmp_path):
    done = lint(tmp_path, ALONG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_says_what_it_is_in_its_first_line():
    packages = sorted((PROJECT / "src/esper").rglob("__init__.py"))
    assert len(packages) > 20
    for path in packages:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith('"""'), path
        assert len(first) > 40, path
