"""What every command that works in a run folder shares: how it is watched, how it goes on, and where its figures go."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from esper.cli.flags import Parser, add_flags, changes
from esper.leyline.errors import ConfigError
from esper.leyline.files import replace_file


def asks_to_resume(argv: list[str]) -> bool:
    """Whether the arguments are about a run that was interrupted."""
    return any(item.split("=")[0] == "--resume" for item in argv)


def add_watching(parser: Parser) -> None:
    """The flags of what is seen and recorded while a run goes on."""
    parser.add_argument("--quiet", action="store_true", help="no progress: only remarks, on stderr, and the result")
    parser.add_argument("--sinks", nargs="+", default=[], metavar="NAME", help="also send the events to these sinks of plug-ins")
    parser.add_argument("--telemetry", action=argparse.BooleanOptionalAction, default=True, help="record events in events.jsonl")


def add_json(parser: Parser) -> None:
    """The flag of a file for programs."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file, as JSON")


def watched(run: Callable[..., dict[str, Any]], arguments: argparse.Namespace, *, rewards: bool = False) -> dict[str, Any]:
    """Run under a display. rewards: also a line for what each decision earned. Returns the summary."""
    from esper.cli.display import make_display

    # What is loaded by now stays; collections that look through all of torch take longer than what else is done for an epoch.
    gc.collect()
    gc.freeze()
    display = make_display(arguments.quiet, rewards)
    return run(sinks=[display, *arguments.sinks], progress=display.progress, telemetry=arguments.telemetry)


def changed_settings(run: Path, extra: list[str], command: str) -> dict[str, Any]:
    """What further flags say, of the settings that a run of its kind has."""
    from esper.simic.runs.runner import read_config
    from esper.tolaria.storage.runs import read_run

    read_run(run)
    kind = type(read_config(run / "config.toml"))
    parser = Parser(prog=f"esper {command} --resume", allow_abbrev=False)
    add_flags(parser, kind, everything=False)
    return changes(kind, parser.parse_args(extra))


def require_command(run: Path, command: str) -> None:
    """Raise ConfigError for a run that another command goes on with."""
    from esper.simic.runs.runner import command_for, go_on, read_config
    from esper.tolaria.storage.runs import read_run

    read_run(run)
    if command_for(read_config(run / "config.toml")) != command:
        raise ConfigError(f"{run} is no run of esper {command}; {go_on(run)}")


def check_place(path: Path | None) -> None:
    """Raise ConfigError for a file of figures that could not be written, before anything is done for them."""
    if path is not None and (not path.absolute().parent.is_dir() or path.is_dir()):
        raise ConfigError(f"--json: {path} cannot be written; expected a file in a folder that exists")


def write_figures(path: Path | None, run: Path) -> None:
    """The figures of a finished run, where they were asked for."""
    if path is None:
        return
    try:
        replace_file(path, (run / "summary.json").read_bytes())
    except OSError as error:
        raise ConfigError(f"--json: {path} cannot be written: {error.strerror}; the figures are in {run / 'summary.json'}") from error


def with_underscores(over: dict[str, str]) -> dict[str, str]:
    """Keys as a config has them, however they were typed: flags have hyphens."""
    return {key.replace("-", "_"): text for key, text in over.items()}


def pairs(items: Collection[str], flag: str) -> dict[str, str]:
    """KEY=VALUES as a person types them. Raises ConfigError for what is no pair, and for a key that is named twice."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"{flag}: {item!r} is not a pair; expected KEY=VALUES")
        if key in found:
            raise ConfigError(f"{flag}: {key!r} is there twice; expected each key once")
        found[key] = text
    return with_underscores(found)
