"""`esper tune`: search the settings of a controller within a budget of host epochs, and say what the best is worth on fresh hosts."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esper.cli.files import add_files, check_files, write_file
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.searches import print_search, search_page
from esper.cli.watching import add_watching, asks_to_resume, resume_settings, watch
from esper.leyline.config import load, read_toml, replace_fields
from esper.leyline.errors import ConfigError

FIGURES, PAGE = "what came out, all of it, as JSON", "a page with tables and plots"

ABOUT = """\
usage: esper tune CONTROLLER [OPTIONS]
       esper tune --resume RUN

Search the settings of a controller: heuristic, fixed, random, or one of a plug-in. Trials play the same hosts, the better
third goes on to three times as many, and what came out best is compared with the present settings on hosts that no trial saw.
The best settings are written to best.toml in the run folder. Ctrl-C stops after a checkpoint; --resume goes on, bit for bit.

`esper tune CONTROLLER --help` shows the options."""

EXAMPLES = """\
  esper tune heuristic                                   20,000 host epochs on the family of digits
  esper tune heuristic --budget 4000 --hosts 6 --fresh 20
  esper tune fixed --over seeds=1..6 period=2,4,8        these settings alone
  esper tune heuristic --space space.toml --method optuna
  esper train heuristic --config runs/digits-heuristic-tune-001/best.toml"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if argv in (["--help"], ["-h"]):
        print(ABOUT)
        return 0
    if asks_to_resume(argv):
        return _resume(argv)
    if not argv or argv[0].startswith("-"):
        raise ConfigError("whose settings to search is missing: esper tune heuristic, or --resume RUN; see esper tune --help")
    name, rest = argv[0], argv[1:]
    from esper.simic.runs.search_config import SearchConfig

    arguments = _parser(name, everything="--help-all" in rest).parse_args(rest)
    check_files(arguments)
    config = load(SearchConfig, arguments.config) if arguments.config is not None else SearchConfig()
    changed = changes(SearchConfig, arguments)
    if arguments.space is not None:
        changed["over"] = read_space_file(arguments.space) | changed.get("over", {})
    config = replace_fields(config, {**changed, "controller": name}, source="esper tune")
    config = replace_fields(config, {"over": {key.replace("-", "_"): text for key, text in config.over.items()}})  # flags have hyphens
    from esper.simic.runs.runner import start

    command = shlex.join(["esper", "tune", *argv])
    return _report(watch(lambda **watching: start(config, arguments.run, command, **watching), arguments), arguments)


def read_space_file(path: Path) -> dict[str, str]:
    """The space in a TOML file: for each key a text such as "0.1..2:log", or a list of values; tables are dotted keys."""
    found: dict[str, str] = {}

    def read(table: Mapping[str, Any], prefix: str) -> None:
        for name, value in table.items():
            if isinstance(value, dict):
                read(value, f"{prefix}{name}.")
            elif isinstance(value, list):
                found[prefix + name] = ",".join(map(json.dumps, value))
            elif isinstance(value, str):
                found[prefix + name] = value
            else:
                raise ConfigError(f'{path}: {prefix + name!r} is {value!r}; expected a text such as "0.1..2:log", or a list of values')

    read(read_toml(path), "")
    return found


def _resume(argv: list[str]) -> int:
    parser = Parser(
        prog="esper tune --resume",
        usage="esper tune --resume RUN [OPTIONS]",
        description="Go on with an interrupted search, to the same figures; or show a finished one again.",
        allow_abbrev=False,
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="the search to go on with")
    add_files(parser, json=FIGURES, html=PAGE)
    add_watching(parser)
    arguments, extra = parser.parse_known_args(argv)
    check_files(arguments)
    from esper.simic.runs.runner import resume
    from esper.tolaria.storage.runs import read_run, read_summary

    settings = resume_settings(arguments.resume, extra, "tune")
    if read_run(arguments.resume).status == "finished":
        return _report({**read_summary(arguments.resume), "run": str(arguments.resume)}, arguments)
    return _report(watch(lambda **watching: resume(arguments.resume, settings=settings, **watching), arguments), arguments)


def _parser(name: str, everything: bool) -> Parser:
    from esper.simic.runs.search_config import SearchConfig

    parser = Parser(
        prog=f"esper tune {name}",
        usage=f"esper tune {name} [OPTIONS]",
        description=f"Search the settings of the controller {name!r}; those given here are what the search starts from.",
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--help-all", action="help", help="also show every setting of controllers, training, gates, rewards and so on")
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config.toml of a search to start from; flags override it")
    searched = 'a TOML file of what is searched: KEY = "LOW..HIGH" or a list of values'
    parser.add_argument("--space", type=Path, metavar="FILE", help=searched)
    add_files(parser, json=FIGURES, html=PAGE)
    add_watching(parser)
    add_flags(parser, SearchConfig, everything=everything, without=("controller",))
    return parser


def _report(summary: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Say what came out, and write it down where that was asked for."""
    print_search(summary)
    if arguments.json is not None:
        write_file(arguments.json, (Path(summary["run"]) / "summary.json").read_bytes())
    if arguments.html is not None:
        write_file(arguments.html, search_page(summary).encode())
    return 0
