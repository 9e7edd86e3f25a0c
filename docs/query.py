"""Writes the table of views into docs/query.md from the code.

python docs/query.py
"""

from __future__ import annotations

from pathlib import Path

from esper.karn.query_tables import DERIVED, TABLES, Table

PAGE = Path(__file__).with_name("query.md")
BEGIN, END = "<!-- views: written by docs/query.py -->\n", "<!-- end of views -->\n"


def line(table: Table, hidden: tuple[str, ...] = ()) -> str:
    """A view as a row of a table."""
    columns = ", ".join(f"`{name}` {kind.lower()}" for name, kind in table.columns.items() if name not in hidden)
    return f"| `{table.name}` | {table.about} | {columns.replace('|', '&#124;')} |\n"


def views() -> str:
    """The section of the page that the code says."""
    place = ("seq", "time", "host", "epoch")
    head = "| view | what it holds | columns |\n| --- | --- | --- |\n"
    events = [table for table in TABLES.values() if table.event]
    return "".join(
        [
            *("What the events come to:\n\n", head, *(line(table) for table in DERIVED)),
            "\nThe events themselves, one view for each kind. All begin with `seq` bigint, `time` double (seconds since 1970),\n",
            *("`host` bigint and `epoch` bigint:\n\n", head, *(line(table, hidden=place) for table in events)),
        ]
    )


def text() -> str:
    """The whole page, with its section as the code says it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + views() + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
