"""`esper sweep`: one run of a method of `esper train` for each of several values of its settings, compared by their val score."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.cli.files import add_files, check_files, write_file
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.searches import print_sweep, sweep_page
from esper.cli.train import METHODS
from esper.cli.watching import add_watching, asks_to_resume, resume_settings, watch
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, unknown

SWEPT = {"heuristic": "run", "ppo": "learn"}
"""The methods of `esper train` that can be swept, each with the field of SweepConfig that has its config."""

FIGURES, PAGE = "what came out, all of it, as JSON", "a page with tables and plots"

ABOUT = """\
usage: esper sweep METHOD --over KEY=VALUES [KEY=VALUES ...] [OPTIONS]
       esper sweep --resume RUN

Run a method of esper train (heuristic, ppo) once for each combination of values, in folders of its own, and compare the runs by
their val score. Any setting of the method can vary; the others are given as to esper train. The best config is written to
best.toml in the run folder. Ctrl-C stops after a checkpoint; --resume goes on, bit for bit.

`esper sweep METHOD --help` shows the options."""

EXAMPLES = """\
  esper sweep heuristic --over heuristic.keep_noise=0,1,2 heuristic.tempo=3,5 --hosts 12
  esper sweep heuristic --over training.clip=0.1..10:log --points 8 --hosts 12
  esper sweep ppo --over ppo.learning_rate=0.001,0.003,0.01 --rounds 12
  esper train ppo --config runs/digits-ppo-sweep-001/best.toml"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if argv in (["--help"], ["-h"]):
        print(ABOUT)
        return 0
    if asks_to_resume(argv):
        return _resume(argv)
    if not argv or argv[0].startswith("-"):
        raise ConfigError(f"what to sweep is missing: esper sweep {'|'.join(SWEPT)}, or --resume RUN; see esper sweep --help")
    name, rest = argv[0], argv[1:]
    if name not in SWEPT:
        raise unknown("method", name, SWEPT)
    kind = METHODS[name].load()
    arguments = _parser(name, kind, everything="--help-all" in rest).parse_args(rest)
    check_files(arguments)
    if not arguments.over:
        raise ConfigError("what is to vary is missing: --over KEY=VALUES, such as --over seed=0,100,200")
    method = load(kind, arguments.config) if arguments.config is not None else kind()
    method = replace_fields(method, changes(kind, arguments), source=f"esper sweep {name}")
    from esper.simic.runs.runner import start
    from esper.simic.runs.sweep_config import SweepConfig

    given = {"over": pairs(arguments.over), "points": arguments.points}
    config = replace_fields(SweepConfig(**{SWEPT[name]: method}), given, source="esper sweep")
    command = shlex.join(["esper", "sweep", *argv])
    return _report(watch(lambda **watching: start(config, arguments.run, command, **watching), arguments), arguments)


def pairs(items: Sequence[str]) -> dict[str, str]:
    """What varies, as a person types it. Raises ConfigError for what is no pair, and for a key that is named twice."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.replace("-", "_")  # flags have hyphens
        if not equals:
            raise ConfigError(f"--over: {item!r} is not a pair; expected KEY=VALUES")
        if key in found:
            raise ConfigError(f"--over: {key!r} is there twice; expected each key once")
        found[key] = text
    return found


def _resume(argv: list[str]) -> int:
    parser = Parser(
        prog="esper sweep --resume",
        usage="esper sweep --resume RUN [OPTIONS]",
        description="Go on with an interrupted sweep, to the same figures; or show a finished one again.",
        allow_abbrev=False,
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="the sweep to go on with")
    add_files(parser, json=FIGURES, html=PAGE)
    add_watching(parser)
    arguments = parser.parse_args(argv)
    check_files(arguments)
    from esper.simic.runs.runner import resume
    from esper.tolaria.storage.runs import read_run, read_summary

    resume_settings(arguments.resume, [], "sweep")  # the points have their own
    if read_run(arguments.resume).status == "finished":
        return _report({**read_summary(arguments.resume), "run": str(arguments.resume)}, arguments)
    return _report(watch(lambda **watching: resume(arguments.resume, **watching), arguments), arguments)


def _parser(name: str, config: type, everything: bool) -> Parser:
    parser = Parser(
        prog=f"esper sweep {name}",
        usage=f"esper sweep {name} --over KEY=VALUES [KEY=VALUES ...] [OPTIONS]",
        description=f"Run esper train {name} once for each combination of values. The settings below are those that do not vary.",
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--help-all", action="help", help="also show every setting of training, gates, rewards and so on")
    varies = "what varies, by dotted keys: A,B,C; with --points also LOW..HIGH and LOW..HIGH:log"
    parser.add_argument("--over", nargs="+", action="extend", default=[], metavar="KEY=VALUES", help=varies)
    drawn = "draw so many points at random instead of every combination"
    parser.add_argument("--points", type=int, metavar="N", help=drawn)
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config.toml of the method to start from; flags override it")
    add_files(parser, json=FIGURES, html=PAGE)
    add_watching(parser)
    add_flags(parser, config, everything=everything, without=("test",))
    return parser


def _report(summary: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Say what came out, and write it down where that was asked for."""
    print_sweep(summary)
    if arguments.json is not None:
        write_file(arguments.json, (Path(summary["run"]) / "summary.json").read_bytes())
    if arguments.html is not None:
        write_file(arguments.html, sweep_page(summary).encode())
    return 0
