"""Every block of the guide runs, in order, in one session, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parent.parent / "docs/guide.md"
TEXT = GUIDE.read_text(encoding="utf-8")

AFTERWARDS = """
assert any(entry.decision.op.name == "GERMINATE" for entry in whole["gardener"].history)
assert model.report("1").blueprint == "wide_conv"
assert validate(plain) >= 80.0, validate(plain)
assert str(tending.history[-1]).startswith("epoch 5: ")
assert str(fitting.history[-1]).count(" RMSE, ") == 1
assert fitting.history[-1].parameters > fitting.history[0].parameters, "a seed that was kept"
assert (Path("runs/mine") / "summary.json").is_file()
"""
"""What the page says has happened."""


def test_every_block_runs_in_order(tmp_path):
    """In a process and a folder of its own: the page registers a blueprint and writes files."""
    program = "\n".join([*re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), AFTERWARDS])
    (tmp_path / "guide.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error::UserWarning:__main__", "guide.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "FOSSILIZE" in done.stdout


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted(GUIDE.parent.glob("*.md")))])
def test_every_link_leads_to_a_page(page):
    path = GUIDE.parent.parent / page
    linked = [link for link in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")) if not link.startswith("https://")]
    assert linked or page == "docs/results.md"
    assert [link for link in linked if not (path.parent / link).is_file()] == []
