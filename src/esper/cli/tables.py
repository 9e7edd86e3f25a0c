"""A list of things: a table on a terminal, aligned lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import StringIO

from esper.cli.flags import Parser

Row = Mapping[str, str | int | float | bool]


def list_parser(name: str, about: str, epilog: str | None = None, plugins: str = "") -> Parser:
    """The parser of a command that lists things. plugins: what plug-ins can add to the list, where they can."""
    parser = Parser(prog=f"esper {name}", description=about, epilog=epilog, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    if plugins:
        parser.add_argument("--plugins", metavar="FILE", nargs="+", default=[], help=f"Python files that register {plugins} of your own")
    return parser


def print_rows(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    wrapped: Sequence[str],
    right: Sequence[str] = (),
    section: str = "",
    width: int | None = None,
) -> None:
    """Print these columns of the rows, numbers to the right: whole ones with thousands separated, others with two decimals.

    wrapped: columns that may be broken into several lines, between words. right: columns of text that is to stand on the right.
    section: between rows that differ in it, a table has a line.
    width: of the aligned lines in a pipe; without it, each row is one line however long it is. A table is as wide as its terminal.
    """
    from rich.box import ASCII2, HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table

    piped = not sys.stdout.isatty()
    # A terminal without Unicode has no lines of its own. What only looks like a terminal, and keeps text, has no encoding.
    lines = HEAVY_HEAD if (sys.stdout.encoding or "utf-8").lower().startswith("utf") else ASCII2
    table = Table(box=None, pad_edge=False, padding=(0, 1 if width else 2, 0, 0)) if piped else Table(box=lines)
    text = StringIO()  # as a Console of stdout ends the process when nobody reads it
    wide = (width or 100_000) if piped else None
    console = Console(file=text, force_terminal=not piped, width=wide, markup=False, emoji=False, highlight=False)
    for name in columns:
        numbers = name in right or all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name not in wrapped, overflow="fold")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        last = following is None or not section or following[section] == row[section]
        table.add_row(*(_cell(row[name]) for name in columns), end_section=not last)
    console.print(table)
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def _cell(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
