"""`esper tasks`: what hosts can be grown on, whether its data is there, and the command that gets it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import DataError, unknown

if TYPE_CHECKING:
    from esper.tolaria.data.sources import Download, Source
    from esper.tolaria.tasks import Task

Row = dict[str, str | int | bool]
COLUMNS = ("task", "parameters", "slots", "data", "there", "summary")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments and return 0."""
    arguments = _parser().parse_args(argv)
    place = Path(arguments.data).expanduser() if arguments.data is not None else None
    if arguments.download is not None:
        return _download(arguments.download, place)
    from esper.tolaria import tasks  # torch, which `--help` need not wait for

    for file in arguments.task_files:
        tasks.load_task_file(file)
    rows = [_row(tasks.get(name), place) for name in tasks.names()]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        print(_plain(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="esper tasks",
        description="List the tasks: their standard host with its parameters and slots, and whether their data is there.",
        epilog="Data sets are looked for in --data, or else in $ESPER_DATA, or else in the folder esper of your cache (~/.cache).",
    )
    parser.add_argument("--data", metavar="DIR", help="the folder, or the .npz or .tar.gz file, with the data")
    parser.add_argument("--download", metavar="NAME", help="get the data of that task into --data, or else into the cache")
    parser.add_argument("--task-files", metavar="FILE", nargs="+", default=[], help="Python files that register tasks of your own")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def _row(task: Task, place: Path | None) -> Row:
    """What there is to say of a task; the standard host is built to count it."""
    host, slots, _ = task.build_host(task.family.standard, task.classes, seed=0)
    published = task.published
    found = published.find(place) if published is not None else None
    return {
        "task": task.name,
        "kind": task.kind,
        "parameters": sum(parameter.numel() for parameter in host.parameters()),
        "slots": len(slots),
        "data": published.title if published is not None else "its own",
        "there": published is None or found is not None,
        "where": str(found) if found is not None else "",
        "download": published.name if published is not None else "",
        "summary": task.summary,
    }


def _download(name: str, place: Path | None) -> int:
    """Get a data set with a progress bar, and say where it is."""
    from esper.tolaria.data.download import download

    source = _source(name)
    with _progress(source) as progress:
        paths = download(source, progress, place)
    print(f"{source.title} is in {paths[0].parent} ({source.licence})")
    return 0


def _source(name: str) -> Source:
    """The published set of that name, or of the task of that name."""
    from esper.tolaria import tasks
    from esper.tolaria.data.sources import SOURCES

    by_task = {task.name: task.published for task in map(tasks.get, tasks.names()) if task.published is not None}
    known: dict[str, Source] = {**by_task, **SOURCES}
    if name in tasks.names() and name not in known:
        raise DataError(f"task {name!r} brings its own data; there is nothing to download")
    if name not in known:
        raise unknown("data set", name, known)
    return known[name]


@contextmanager
def _progress(source: Source) -> Iterator[Callable[[Download, int], None]]:
    """A bar for each file on the terminal; in a pipe nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        lines = {file.url: bars.add_task(file.file, total=file.size) for file in source.downloads}
        yield lambda file, done: bars.update(lines[file.url], completed=done)


def _cells(row: Row) -> list[str]:
    """The row as text: numbers with thousands separated, yes and no, or the name to download by."""
    there = "yes" if row["there"] else f"no: --download {row['download']}"
    return [str(row["task"]), f"{row['parameters']:,}", str(row["slots"]), str(row["data"]), there, str(row["summary"])]


def _plain(rows: list[Row]) -> str:
    """Columns aligned with spaces, for pipes and files."""
    table = [list(COLUMNS), *map(_cells, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    numbers = {COLUMNS.index("parameters"), COLUMNS.index("slots")}
    lines = ([cell.rjust(widths[i]) if i in numbers else cell.ljust(widths[i]) for i, cell in enumerate(line)] for line in table)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _print_table(rows: list[Row]) -> None:
    """A table as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("parameters", "slots") else "left", no_wrap=column == "task")
    for row in rows:
        table.add_row(*_cells(row))
    Console().print(table)
