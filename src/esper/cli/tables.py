"""A list of things: a table on a terminal, aligned lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

Row = Mapping[str, str | int | bool]


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, wrapped: Sequence[str], section: str | None = None) -> None:
    """Print these columns of the rows, numbers to the right with thousands separated.

    wrapped: columns that a table may break into several lines. section: between rows that differ in it, a table has a line.
    """
    numbers = {name for name in columns if all(isinstance(row[name], int) for row in rows)}
    cells = [[f"{row[name]:,}" if name in numbers else str(row[name]) for name in columns] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in (columns, *cells):
            aligned = (f"{cell:{'>' if name in numbers else '<'}{width}}" for cell, name, width in zip(line, columns, widths, strict=True))
            print("  ".join(aligned).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=name not in wrapped)
    for row, line, following in zip(rows, cells, [*rows[1:], None], strict=True):
        table.add_row(*line, end_section=section is not None and following is not None and following[section] != row[section])
    Console().print(table)
