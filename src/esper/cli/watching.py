"""What all commands that run something share: how a run is watched, and how one goes on."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esper.cli.flags import Parser, add_flags, changes
from esper.leyline.errors import RunError


def asks_to_resume(argv: list[str]) -> bool:
    """Whether the arguments are about a run that was interrupted."""
    return any(item.split("=")[0] == "--resume" for item in argv)


def add_watching(parser: Parser, *, rewards: bool = False) -> None:
    """Flags for what a person sees of a run, and what is recorded of it. rewards: what decisions earned among them."""
    parser.add_argument("--quiet", action="store_true", help="no progress: only remarks, on stderr, and the result")
    parser.add_argument("--sinks", nargs="+", default=[], metavar="NAME", help="also send the events to these sinks of plug-ins")
    parser.add_argument("--telemetry", action=argparse.BooleanOptionalAction, default=True, help="record events in events.jsonl")
    parser.set_defaults(show_reward_components=False)
    if rewards:
        parser.add_argument("--show-reward-components", action="store_true", help="print what each decision earned, and why")


def watch(run: Callable[..., dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run under a display; the summary."""
    from esper.cli.display import make_display

    # What is loaded by now stays; collections that look through all of torch take longer than what else is done for an epoch.
    gc.collect()
    gc.freeze()
    display = make_display(arguments.quiet, arguments.show_reward_components)
    return run(sinks=[display, *arguments.sinks], progress=display.progress, telemetry=arguments.telemetry)


def resume_settings(run: Path, extra: list[str], command: str) -> dict[str, Any]:
    """What further flags say of a run that goes on, of the settings that one of its kind has. Raises RunError for a run that another
    command goes on with."""
    from esper.simic.runs.runner import command_of, go_on, read_config
    from esper.tolaria.storage.runs import read_run

    read_run(run)
    config = read_config(run / "config.toml")
    if command_of(config) != command:
        raise RunError(f"{run} is not a run of esper {command}; {go_on(config, run)}")
    if not extra:
        return {}
    parser = Parser(prog=f"esper {command} --resume", allow_abbrev=False)
    add_flags(parser, type(config), everything=False)
    return changes(type(config), parser.parse_args(extra))
