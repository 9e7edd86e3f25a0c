"""`esper blueprints`: what can grow in a slot, for which features, and how many parameters it has."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from esper.leyline.errors import ConfigError, unknown
from esper.leyline.reports import Topology

Row = dict[str, str | int]
COLUMNS = ("topology", "name", "parameters", "purpose")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments, print the list, and return 0."""
    arguments = _parser().parse_args(argv)
    rows = _rows(_topologies(arguments.topology), _width(arguments.width))
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        print(_plain(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="esper blueprints",
        description="List the blueprints: what can grow in a slot, what it is for, and how many parameters it adds.",
        epilog="topologies: map2d feature maps (B, C, H, W); map1d feature maps (B, C, T); tokens (B, T, d); vector (B, d)",
    )
    parser.add_argument("--topology", metavar="NAME", help="only those for this shape of features: " + ", ".join(Topology))
    parser.add_argument("--width", metavar="N", default="32", help="channels or features of the slot, for the parameters (default: 32)")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def _topologies(name: str | None) -> tuple[Topology, ...]:
    """The topology of that name, or all of them."""
    if name is None:
        return tuple(Topology)
    known = [topology.value for topology in Topology]
    if name not in known:
        raise unknown("topology", name, known)
    return (Topology(name),)


def _width(text: str) -> int:
    """The width as a number."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"--width is {text!r}; expected a positive whole number, such as 32")
    return int(text)


def _rows(topologies: Sequence[Topology], width: int) -> list[Row]:
    """One row for each blueprint, in the order of the register; parameters include the seed's gamma."""
    from esper.kasmina.blueprints import SlotShape, get, names, parameter_count  # torch, which `--help` need not wait for

    shapes = [SlotShape(topology, width) for topology in topologies]
    return [
        {
            "topology": shape.topology.value,
            "name": name,
            "parameters": parameter_count(name, shape),
            "purpose": get(shape.topology, name).purpose,
        }
        for shape in shapes
        for name in names(shape.topology)
    ]


def _cells(row: Row) -> list[str]:
    """The row as text, numbers with thousands separated."""
    return [f"{row[column]:,}" if column == "parameters" else str(row[column]) for column in COLUMNS]


def _plain(rows: list[Row]) -> str:
    """Columns aligned with spaces, for pipes and files."""
    table = [list(COLUMNS), *map(_cells, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    lines = []
    for topology, name, parameters, purpose in table:
        lines.append(f"{topology:<{widths[0]}}  {name:<{widths[1]}}  {parameters:>{widths[2]}}  {purpose}")
    return "\n".join(lines)


def _print_table(rows: list[Row]) -> None:
    """A table as wide as the terminal, with a line between topologies."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=column != "purpose")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(*_cells(row), end_section=following is not None and following["topology"] != row["topology"])
    Console().print(table)
