"""`esper compare`: policies and baselines on the same unseen hosts, scored on the test split, with intervals and a verdict in words."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from esper.cli.comparison import make_page, print_comparison
from esper.cli.files import add_files, check_files, write_file
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.watching import add_watching, asks_to_resume, resume_settings, watch
from esper.leyline.config import load, replace_fields

EXAMPLES = """\
A POLICY is the name of a controller (wait, random, fixed, heuristic, or one of a plug-in), a run folder, a policy file, or a TOML file
with the settings of a controller.

examples:
  esper compare heuristic                                    the heuristic against hosts that do not grow
  esper compare runs/digits-ppo-001 --arms all --member family
  esper compare heuristic fixed --task digits --task stdlib --seeds 40 --html compare.html --json compare.json
  esper compare --resume runs/digits-compare-001             go on after an interruption, or show a finished comparison again"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if asks_to_resume(argv):
        return _resume(argv)
    from esper.simic.runs.compare_config import CompareConfig

    arguments = _parser(CompareConfig, everything="--help-all" in argv).parse_args(argv)
    check_files(arguments)
    if arguments.named_policies:
        arguments.policies = [*getattr(arguments, "policies", []), *arguments.named_policies]
    config = load(CompareConfig, arguments.config) if arguments.config is not None else CompareConfig()
    config = replace_fields(config, changes(CompareConfig, arguments), source="esper compare")
    from esper.simic.runs.runner import start

    command = shlex.join(["esper", "compare", *argv])
    return _report(watch(lambda **watching: start(config, arguments.run, command, **watching), arguments), arguments)


def _resume(argv: list[str]) -> int:
    parser = Parser(
        prog="esper compare --resume",
        usage="esper compare --resume RUN [OPTIONS]",
        description="Go on with an interrupted comparison, to the same figures; or show a finished one again.",
        allow_abbrev=False,
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="the comparison to go on with")
    add_files(parser, json="the rows of all hosts and all statistics", html="a page with tables and plots")
    add_watching(parser)
    arguments, extra = parser.parse_known_args(argv)
    check_files(arguments)
    from esper.simic.runs.runner import resume
    from esper.tolaria.storage.runs import read_run, read_summary

    settings = resume_settings(arguments.resume, extra, "compare")
    if read_run(arguments.resume).status == "finished":
        return _report({**read_summary(arguments.resume), "run": str(arguments.resume)}, arguments)
    return _report(watch(lambda **watching: resume(arguments.resume, settings=settings, **watching), arguments), arguments)


def _parser(config: type, everything: bool) -> Parser:
    parser = Parser(
        prog="esper compare",
        usage="esper compare POLICY... [OPTIONS]\n       esper compare --resume RUN",
        description="Compare policies with each other and with baselines, host by host, on hosts that nothing else has seen.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    help = "whom to compare; the arm static-final is built like what the first one grew"
    parser.add_argument("named_policies", nargs="*", metavar="POLICY", help=help)
    parser.add_argument("--help-all", action="help", help="also show every setting of training, gates, controllers and so on")
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config.toml to start from; flags override it")
    add_files(parser, json="the rows of all hosts and all statistics", html="a page with tables and plots")
    add_watching(parser)
    add_flags(parser, config, everything=everything)
    return parser


def _report(summary: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Say what came out, and write it down where that was asked for."""
    print_comparison(summary)
    if arguments.json is not None:
        write_file(arguments.json, (Path(summary["run"]) / "summary.json").read_bytes())
    if arguments.html is not None:
        write_file(arguments.html, make_page(summary).encode())
    print(f"run folder: {summary['run']}")
    return 0
