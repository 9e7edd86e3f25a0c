"""Pages of docs/ that the code writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def written(name: str) -> str:
    """What docs/NAME.py would write to docs/NAME.md now."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.text())
