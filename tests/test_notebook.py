"""The notebook runs from top to bottom in a kernel of its own, draws the growth, and is stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.pages import PROJECT

NOTEBOOK = PROJECT / "examples/grow.ipynb"


def outputs(cell: nbformat.NotebookNode) -> str:
    """What a cell has printed."""
    return "".join(output["text"] for output in cell["outputs"] if output["output_type"] == "stream")


def test_it_is_stored_without_outputs_so_that_nothing_in_it_can_be_stale() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_it_runs_and_shows_the_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "ESPER_DATA"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute(env=dict(os.environ))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "the end of a layer (ReLU)" in outputs(code[1])
    assert "GERMINATE" in outputs(code[2])
    assert any("image/png" in output.get("data", {}) for output in code[3].outputs)
    told = outputs(code[4])
    assert "points with 378 parameters, without growth" in told
    assert float(told.split(" points with ")[0].splitlines()[-1]) > 80.0
