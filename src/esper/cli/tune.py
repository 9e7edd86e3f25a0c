"""`esper tune`: search the settings of a controller within a budget of host epochs, and say what the best is worth on fresh hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esper.cli.files import check_files
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.searches import print_search, search_page
from esper.cli.watching import RunCommand, asks_to_resume
from esper.leyline.config import load, read_toml, replace_fields
from esper.leyline.errors import ConfigError

COMMAND = RunCommand("tune", "search", print_search, search_page)

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
        return COMMAND.resume(argv)
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
    return COMMAND.start(config, arguments, argv)


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


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    from esper.tamiyo import CONTROLLERS

    return {**{name: _parser(name, everything=False) for name in CONTROLLERS}, "--resume": COMMAND.resume_parser()}


def _parser(name: str, everything: bool) -> Parser:
    from esper.simic.runs.search_config import SearchConfig

    parser = COMMAND.parser(
        f"esper tune {name} [OPTIONS]",
        f"Search the settings of the controller {name!r}; those given here are what the search starts from.",
        f"examples:\n{EXAMPLES}",
        prog=f"tune {name}",
        config_help="a config.toml of a search",
    )
    searched = 'a TOML file of what is searched: KEY = "LOW..HIGH" or a list of values'
    parser.add_argument("--space", type=Path, metavar="FILE", help=searched)
    add_flags(parser, SearchConfig, everything=everything, without=("controller",))
    return parser
