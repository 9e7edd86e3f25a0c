"""The page about telemetry is what the code says."""

from __future__ import annotations

import esper
from esper.leyline.events import EVENT_TYPES
from tests.pages import DOCS, written


def test_the_page_about_telemetry_is_current_and_names_every_kind() -> None:
    text = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    assert text == written("telemetry"), "the events have changed: python docs/telemetry.py writes the page anew"
    assert all(f"### `{kind}`" in text for kind in EVENT_TYPES)
    assert esper.__file__ not in text
