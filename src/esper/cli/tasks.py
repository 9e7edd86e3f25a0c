"""`esper tasks`: what hosts can be grown on, whether its data is there, and the command that gets it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.flags import Parser
from esper.cli.tables import Row, list_parser, print_rows
from esper.leyline.errors import DataError, unknown
from esper.leyline.plugins import Entry, origin

if TYPE_CHECKING:
    from esper.tolaria.data.sources import Download, Source
    from esper.tolaria.tasks import Task

COLUMNS = ("task", "parameters", "slots", "data", "there", "from", "summary")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments and return 0."""
    arguments = _parser().parse_args(argv)
    place = Path(arguments.data).expanduser() if arguments.data is not None else None
    if arguments.download is not None:
        return _download(arguments.download, place)
    from esper.simic.plugins import load_plugins  # torch, which `--help` need not wait for
    from esper.tolaria.tasks import TASKS

    load_plugins(arguments.plugins)
    rows = [_row(entry, place) for entry in TASKS.values()]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        told = [{**row, "there": "yes" if row["there"] else f"no: --download {row['download']}"} for row in rows]
        print_rows(told, COLUMNS, wrapped=COLUMNS[1:])
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = list_parser(
        "tasks",
        "List the tasks: their standard host with its parameters and slots, and whether their data is there.",
        "Data sets are looked for in --data, or else in $ESPER_DATA, or else in the folder esper of your cache (~/.cache).",
        plugins="tasks",
    )
    parser.add_argument("--data", metavar="DIR", help="the folder, or the .npz or .tar.gz file, with the data")
    parser.add_argument("--download", metavar="NAME", help="get the data of that task into --data, or else into the cache")
    return parser


def _row(entry: Entry[Task], place: Path | None) -> Row:
    """What there is to say of a task; the standard host is built to count it."""
    task = entry.value
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
        "from": origin(entry.where),
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
    from esper.tolaria.data.sources import SOURCES
    from esper.tolaria.tasks import TASKS

    by_task = {name: entry.value.published for name, entry in TASKS.items() if entry.value.published is not None}
    known: dict[str, Source] = {**by_task, **SOURCES}
    if name in TASKS and name not in known:
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
