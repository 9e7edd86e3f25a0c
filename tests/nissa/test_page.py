"""The page about telemetry is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import esper
from esper.leyline.events import EVENT_TYPES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_about_telemetry_is_current_and_names_every_kind() -> None:
    spec = importlib.util.spec_from_file_location("telemetry_page", DOCS / "telemetry.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    assert text == module.text(), "the events have changed: python docs/telemetry.py writes the page anew"
    assert all(f"### `{kind}`" in text for kind in EVENT_TYPES)
    assert esper.__file__ not in text
