"""`esper sweep`: one run of a method of `esper train` for each of several values of its settings, compared by their val score."""

from __future__ import annotations

from collections.abc import Sequence

from esper.cli.files import check_files
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.searches import print_sweep, sweep_page
from esper.cli.train import METHODS
from esper.cli.watching import RunCommand, asks_to_resume
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, unknown

SWEPT = {"heuristic": "run", "ppo": "learn", "expert": "expert"}
"""The methods of `esper train` that can be swept, each with the field of SweepConfig that has its config."""

COMMAND = RunCommand("sweep", "sweep", print_sweep, sweep_page)

ABOUT = """\
usage: esper sweep METHOD --over KEY=VALUES [KEY=VALUES ...] [OPTIONS]
       esper sweep --resume RUN

Run a method of esper train (heuristic, ppo, expert) once for each combination of values, in folders of its own, and compare the
runs by their val score. Any setting of the method can vary; the others are given as to esper train. The best config is written
to best.toml in the run folder. Ctrl-C stops after a checkpoint; --resume goes on, bit for bit.

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
        return COMMAND.resume(argv)
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
    from esper.simic.runs.sweep_config import SweepConfig

    given = {"over": pairs(arguments.over), "points": arguments.points}
    config = replace_fields(SweepConfig(**{SWEPT[name]: method}), given, source="esper sweep")
    return COMMAND.start(config, arguments, argv)


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


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {**{name: _parser(name, METHODS[name].load(), everything=False) for name in SWEPT}, "--resume": COMMAND.resume_parser()}


def _parser(name: str, config: type, everything: bool) -> Parser:
    parser = COMMAND.parser(
        f"esper sweep {name} --over KEY=VALUES [KEY=VALUES ...] [OPTIONS]",
        f"Run esper train {name} once for each combination of values. The settings below are those that do not vary.",
        f"examples:\n{EXAMPLES}",
        prog=f"sweep {name}",
        config_help="a config.toml of the method",
    )
    varies = "what varies, by dotted keys: A,B,C; with --points also LOW..HIGH and LOW..HIGH:log"
    parser.add_argument("--over", nargs="+", action="extend", default=[], metavar="KEY=VALUES", help=varies)
    drawn = "draw so many points at random instead of every combination"
    parser.add_argument("--points", type=int, metavar="N", help=drawn)
    add_flags(parser, config, everything=everything, without=("test",))
    return parser
