"""`esper evaluate`: what a policy does, whether its critic knows what is coming, and what should worry whoever trains it."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.files import add_files, check_files, write_file
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.results import WIDTH, say
from esper.cli.tables import Row, print_rows
from esper.karn.evaluate_config import EvaluateConfig
from esper.leyline.config import load, replace_fields

if TYPE_CHECKING:
    from esper.karn.report import Report

EXIT_FLAGGED = 1
"""With --strict: somebody raises a red flag."""
SIDE_BY_SIDE = 3
"""Policies that a table of 80 columns has room for."""
LONGEST_NAME = 18
"""Letters of a name that a column has room for."""
PROGRESS_EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""

PACE_FROM = 0.05
"""Share from which the time to go is said: until then, workers begin and data is read."""

ABOUT = """\
Look at what policies do on hosts that they have never seen: what they decide
and when, how sure they are, whether their values come true, what they respond
to, and what becomes of their seeds. Every policy plays the same hosts. Nothing
here reads the test split."""

EXAMPLES = """\
A POLICY is the name of a controller (wait, random, fixed, heuristic, or one of
a plug-in) or of a policy that `esper policies` lists, a run folder, a policy
file, or a TOML file with the settings of a controller.

examples:
  esper evaluate runs/digits-ppo-001 heuristic
  esper evaluate runs/digits-ppo-001 --stochastic --html evaluation.html
  esper evaluate runs/digits-ppo-001 --checkpoints --json evaluation.json
  esper evaluate runs/digits-ppo-001 --strict        exit code 1 for a red flag"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser(everything="--help-all" in argv).parse_args(argv)
    check_files(arguments)
    config = load(EvaluateConfig, arguments.config) if arguments.config is not None else EvaluateConfig()
    config = replace_fields(config, changes(EvaluateConfig, arguments), source="esper evaluate")
    from esper.karn.evaluation import evaluate

    report = evaluate(arguments.policies, config, progress=None if arguments.quiet else Progress())
    # Files first: whoever reads the text may go away before its end.
    if arguments.json is not None:
        write_file(arguments.json, report.to_json().encode())
    if arguments.html is not None:
        from esper.karn.evaluate_page import evaluation_page

        write_file(arguments.html, evaluation_page(report, shlex.join(["esper", "evaluate", *argv])).encode())
    print_report(report)
    return EXIT_FLAGGED if arguments.strict and report.flagged else 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser(everything=False)}


def _parser(everything: bool) -> Parser:
    parser = Parser(
        prog="esper evaluate",
        usage="esper evaluate POLICY [POLICY...] [OPTIONS]",
        description=ABOUT,
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("policies", nargs="+", metavar="POLICY", help="who is evaluated")
    parser.add_argument("--help-all", action="help", help="also show every setting of training, gates, rewards and so on")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings to start from; flags override it")
    add_files(parser, json="every figure as JSON", html="a page with tables and plots")
    parser.add_argument("--strict", action="store_true", help=f"exit with {EXIT_FLAGGED} when there is a red flag")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    add_flags(parser, EvaluateConfig, everything=everything, without=("checkpoint_every", "telemetry"))  # it keeps no run
    return parser


class Progress:
    """How much is done: in place on a terminal, else a line now and then; on stderr, so that the result can be piped."""

    def __init__(self) -> None:
        self.began = self.shown = time.monotonic()

    def __call__(self, share: float) -> None:
        """So much of the whole is done, from 0 to 1."""
        from esper.cli.display import REDRAW_AFTER, duration

        now, live = time.monotonic(), sys.stderr.isatty()
        if share < 1.0 and now < self.shown + (REDRAW_AFTER if live else PROGRESS_EVERY):
            return
        self.shown = now
        left = f", {duration((now - self.began) * (1 - share) / share)} left" if PACE_FROM <= share < 1.0 else ""
        if live:
            end = "\r\x1b[K" if share >= 1.0 else ""
            print(f"\r\x1b[Kplaying: {share:.0%}{left}{end}", end="", file=sys.stderr, flush=True)
        elif share < 1.0:
            print(f"playing: {share:.0%}{left}", file=sys.stderr, flush=True)


def print_report(report: Report) -> None:
    """The report for people, in 80 columns."""
    from esper.karn.evaluate_tables import flag_lines, headline, labels, memory_line, remark_lines, tables

    say(headline(report))
    names = labels(report, LONGEST_NAME)
    if list(names) != [diagnosis.name for diagnosis in report.diagnoses]:
        for name, diagnosis in zip(names, report.diagnoses, strict=True):
            print(f"  {name}: {diagnosis.name}")
    for table in tables(report):
        print()
        say(f"{table.title}: {table.note}")
        for first in range(0, len(names), SIDE_BY_SIDE):
            columns = names[first : first + SIDE_BY_SIDE]
            rows: list[Row] = [
                {"": label, **dict(zip(columns, cells[first : first + SIDE_BY_SIDE], strict=True))} for label, cells in table.rows
            ]
            print_rows(rows, ("", *columns), wrapped=[""], right=columns, width=WIDTH)
    print()
    for line in (*remark_lines(report), memory_line(report)):
        say(line)
    flags = flag_lines(report)
    say(f"red flags: {len(flags) or 'none'}")
    for line in flags:
        say(f"  {line}")
