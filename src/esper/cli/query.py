"""`esper query`: SQL over the events of runs and over what they come to."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.flags import Parser
from esper.cli.tables import Row, print_rows
from esper.leyline.errors import ConfigError, unknown

if TYPE_CHECKING:
    from esper.karn.query import Answer

FORMATS = ("table", "csv", "json")
SHOWN = 200
"""Rows that a terminal is shown; files and pipes get all."""
EXAMPLES = """\
examples:
  esper query runs/digits-heuristic-001 "select number, val_accuracy, control_accuracy from hosts order by 2 desc"
  esper query runs/digits-ppo-001 "select round, metrics['train/explained_variance'] from rounds" --format csv
  esper query runs/* "select run, label, value, low, high from headline"
  esper query --views"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    if arguments.format not in FORMATS:
        raise unknown("format", arguments.format, FORMATS)
    given = [Path(each) for each in arguments.runs]
    if arguments.views or (given and _is_folder(given[-1])):
        _print_views(arguments.format)
        return 0
    if len(given) < 2:
        wanted = "a run folder and a query" if not given else f"a run folder in front of {arguments.runs[0]!r}"
        raise ConfigError(f'expected {wanted}: esper query RUN "select ..."; esper query --views lists what can be asked')
    from esper.karn.query import ask
    from esper.karn.record import Record

    answer = ask(named([Record(path) for path in given[:-1]]), arguments.runs[-1])
    {"table": _print_table, "csv": _print_csv, "json": _print_json}[arguments.format](answer)
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper query",
        usage='esper query RUN [RUN...] ["select ..."] [OPTIONS]',
        description="Ask runs in SQL (DuckDB). Nothing is changed, and a query reaches nothing but the runs that are named.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders; of several, every view has a column run")
    parser.add_argument("--format", default="table", metavar="|".join(FORMATS), help="how to print what comes out (default: table)")
    parser.add_argument("--views", action="store_true", help="list what can be asked: every view, with its columns; so does no query")
    return parser


def named(records: list[Any]) -> dict[str, Any]:
    """Records by the names of their folders, in full where two are called the same."""
    names = [record.path.resolve().name for record in records]
    return {name if names.count(name) == 1 else str(record.path): record for name, record in zip(names, records, strict=True)}


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a query is no path, and may be too long for one
        return False


# Printing


def _print_table(answer: Answer) -> None:
    shown = answer.rows[:SHOWN] if sys.stdout.isatty() else answer.rows
    if not answer.rows:
        print(f"no rows; columns: {', '.join(answer.columns)}")
        return
    numbers = [name for place, name in enumerate(answer.columns) if all(isinstance(row[place], int | float | None) for row in shown)]
    rows: list[Row] = [dict(zip(answer.columns, map(_cell, row), strict=True)) for row in shown]
    print_rows(rows, answer.columns, wrapped=[name for name in answer.columns if name not in numbers], right=numbers)
    if len(shown) < len(answer.rows):
        print(f"{len(shown)} of {len(answer.rows)} rows; --format csv or json has all")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(_plain(value)) if isinstance(value, dict | list) else str(value)


def _print_csv(answer: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow([json.dumps(_plain(value)) if isinstance(value, dict | list) else value for value in row])


def _print_json(answer: Answer) -> None:
    print(json.dumps([_plain(row) for row in answer.dicts()], indent=2, default=str))


def _plain(value: Any) -> Any:
    """The value with null for what JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _print_views(form: str) -> None:
    from esper.karn.query_tables import TABLES

    if form == "json":
        print(json.dumps([{"view": table.name, "about": table.about, "columns": table.columns} for table in TABLES.values()], indent=2))
        return
    rows: list[Row] = [
        {"view": table.name, "what it holds": table.about, "columns": ", ".join(f"{name} {kind}" for name, kind in table.columns.items())}
        for table in TABLES.values()
    ]
    if form == "csv":
        writer = csv.DictWriter(sys.stdout, tuple(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    print_rows(rows, tuple(rows[0]), wrapped=["what it holds", "columns"], section="view", width=140)
