"""The page about queries is what the code says, and what it asks is answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from esper.karn.query import ask
from esper.karn.query_tables import TABLES
from esper.karn.record import Record
from tests.pages import DOCS, written

TEXT = (DOCS / "query.md").read_text(encoding="utf-8")
QUESTIONS = [question.split("\n", 1)[1] for question in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)[0].strip().split("\n\n")]


def test_the_table_of_views_is_current() -> None:
    assert written("query") == TEXT, "the views have changed: python docs/query.py writes the page anew"
    assert all(f"| `{name}` |" in TEXT for name in TABLES)


@pytest.mark.parametrize("name", ["grown", "learned"])
def test_what_the_page_asks_is_answered(recorded_runs: Path, name: str) -> None:
    assert len(QUESTIONS) == 5
    for question in QUESTIONS:
        ask({name: Record(recorded_runs / name)}, question)
