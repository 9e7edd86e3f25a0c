"""What importing costs, and that the order of imports is enforced."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ["cli", "karn", "simic", "tamiyo", "tolaria", "kasmina", "nissa", "leyline", "policies"]


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh Python has loaded after the program."""
    report = "\nimport sys; print('\\nLOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program + report], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_esper_loads_no_torch():
    assert "esper" in (loaded := loaded_by("import esper"))
    assert not loaded & {"torch", "numpy"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such"], []])
def test_the_command_line_answers_without_any_library(arguments):
    loaded = loaded_by(f"from esper.cli.main import main; main({arguments!r})")
    assert not loaded & {"torch", "numpy", "rich", "tyro", "safetensors", "onnx"}


def test_leyline_loads_neither_torch_nor_numpy():
    program = (
        "import importlib, pkgutil, esper.leyline\n"
        "for module in pkgutil.walk_packages(esper.leyline.__path__, 'esper.leyline.'): importlib.import_module(module.name)"
    )
    assert not loaded_by(program) & {"torch", "numpy"}


def lint(folder: Path, package: str, line: str) -> subprocess.CompletedProcess[str]:
    """Check an esper of empty packages, one of which holds the line, against the project's contracts."""
    shutil.copy(PROJECT / "pyproject.toml", folder)
    for name in PACKAGES:
        (folder / "esper" / name).mkdir(parents=True)
        (folder / "esper" / name / "__init__.py").write_text(line + "\n" if name == package else "")
    (folder / "esper/__init__.py").touch()
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("leyline", "import torch"),
        ("leyline", "import numpy"),
        ("leyline", "import esper.kasmina"),
        ("kasmina", "import esper.nissa"),
        ("nissa", "import esper.kasmina"),
        ("nissa", "import esper.tolaria"),
        ("tolaria", "import esper.tamiyo"),
        ("tamiyo", "import esper.kasmina"),
        ("tamiyo", "import esper.tolaria"),
        ("tamiyo", "import esper.nissa"),
        ("tamiyo", "import esper.simic"),
        ("simic", "import esper.karn"),
        ("karn", "import esper.cli"),
        ("newcomer", ""),
    ],
)
def test_an_import_against_the_order_is_refused(package, line, tmp_path):
    if package not in PACKAGES:
        (tmp_path / "esper" / package).mkdir(parents=True)
        (tmp_path / "esper" / package / "__init__.py").touch()
    done = lint(tmp_path, package, line)
    assert done.returncode == 1, done.stdout + done.stderr
    assert package in done.stdout


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("tamiyo", "import torch, numpy, esper.leyline"),
        ("tolaria", "import esper.kasmina, esper.nissa"),
        ("cli", "import esper.karn, esper.simic"),
    ],
)
def test_an_import_along_the_order_is_allowed(package, line, tmp_path):
    done = lint(tmp_path, package, line)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_says_what_it_is_in_its_first_line():
    for name in PACKAGES:
        first = (PROJECT / "src/esper" / name / "__init__.py").read_text().splitlines()[0]
        assert first.startswith('"""'), name
        assert len(first) > 20, name
