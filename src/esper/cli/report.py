"""`esper report`: one or several runs as a page that stands by itself, and their plots as pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.files import check_files, write_file
from esper.cli.flags import Parser
from esper.leyline.errors import ConfigError, RunError
from esper.leyline.files import open_file, replace_file

if TYPE_CHECKING:
    from esper.karn.record import Record

REPORT = "report.html"
"""What a report is called, in the folder of its run."""

EXAMPLES = """\
The page opens without a server and loads nothing. A run that is still going on is shown as it stands.

examples:
  esper report runs/digits-ppo-001                              writes runs/digits-ppo-001/report.html
  esper report runs/digits-ppo-001 runs/digits-ppo-002          side by side, in report.html
  esper report runs/digits-heuristic-001 --html growth.html --plots plots"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    check_files(arguments)
    from esper.karn.record import Record

    records = [Record(path) for path in arguments.runs]
    path = arguments.html or (arguments.runs[0] / REPORT if len(records) == 1 else Path(REPORT))
    refuse_foreign(path)
    with _telling("reading and drawing"):
        content = _page(records)
        plots = _write_plots(records, arguments.plots) if arguments.plots is not None else 0
    write_file(path, content)
    if arguments.plots is not None:
        print(f"wrote {plots} plots to {arguments.plots}")
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper report",
        usage="esper report RUN [RUN...] [OPTIONS]",
        description="Write what came out of runs, and what happened in them, to one HTML file with plots.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders; several are shown side by side")
    where = f"where to write the page (default: {REPORT} in the run folder; of several runs, in the present folder)"
    parser.add_argument("--html", type=Path, metavar="FILE", help=where)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also write every plot there as a PNG")
    parser.set_defaults(json=None)
    return parser


def report_on(run: Path) -> None:
    """Write the report of a run that has ended, and say where. Whatever goes wrong is a remark: the run itself came to its end."""
    path = run / REPORT
    try:
        from esper.karn.record import Record

        refuse_foreign(path)
        replace_file(path, _page([Record(run)]))
    except KeyboardInterrupt:
        print(f"no report: interrupted; esper report {run} writes it", file=sys.stderr)
    except Exception as error:  # a full disk, a library that is not there, or a mistake of ours
        print(f"no report: {error}", file=sys.stderr)
    else:
        print(f"report: {path}")


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError for a file that is there and is no page of ours."""
    from esper.karn.page import GENERATOR

    try:
        with open_file(path) as file:
            begins = file.read(4096)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    if GENERATOR.encode() not in begins:
        raise ConfigError(f"{path} is there and is not a page of Esper; name another file with --html, or remove it first")


def _page(records: Sequence[Record]) -> bytes:
    from esper.karn.run_report import report_page

    return report_page(records).encode(errors="replace")  # a name may hold half a letter


def _write_plots(records: Sequence[Record], folder: Path) -> int:
    """Every chart of every run as a picture; how many there are."""
    from esper.karn.run_charts import charts_of
    from esper.karn.run_facts import subjects

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"no folder for plots can be made at {folder}: {error.strerror}") from error
    written = 0
    for number, subject in enumerate(subjects(records), start=1):
        for name, chart in charts_of(subject.record).items():
            chart.png(folder / (f"{number}-{name}.png" if len(records) > 1 else f"{name}.png"))
            written += 1
    return written


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Say on a terminal what goes on, until it is done."""
    live = sys.stderr.isatty()
    if live:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
