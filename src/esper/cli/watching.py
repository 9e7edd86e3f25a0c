"""What all commands that run something share: how a run is watched, and how one goes on."""

from __future__ import annotations

import argparse
import gc
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.cli.files import add_files, check_files, write_file
from esper.cli.flags import Parser, add_flags, changes
from esper.leyline.errors import ConfigError, RunError


def asks_to_resume(argv: list[str]) -> bool:
    """Whether the arguments are about a run that was interrupted."""
    return any(item.split("=")[0] == "--resume" for item in argv)


def add_watching(parser: Parser, *, rewards: bool = False) -> None:
    """Flags for what a person sees of a run, and what is recorded of it. rewards: what decisions earned among them."""
    from esper.nissa.config import LEVELS

    parser.add_argument("--quiet", action="store_true", help="no progress: only remarks, on stderr, and the result")
    trackers = "also send what happens to these trackers (tensorboard, wandb, mlflow) or sinks of plug-ins"
    parser.add_argument("--track", nargs="+", action="extend", default=[], metavar="NAME", help=trackers)
    recorded = "how much is recorded in events.jsonl (default: normal)"
    parser.add_argument("--telemetry", dest="telemetry.level", default=argparse.SUPPRESS, metavar="|".join(LEVELS), help=recorded)
    parser.add_argument("--no-report", action="store_true", help="do not write report.html, the page about the run, at its end")
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
    return run(sinks=list(dict.fromkeys(arguments.track)), display=display, progress=display.progress)


def conclude(summary: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the report of a run that has ended, unless nobody wants it."""
    if not arguments.no_report:
        from esper.cli.report import report_on

        report_on(Path(summary["run"]))


def resume_settings(run: Path, arguments: argparse.Namespace, extra: list[str], command: str) -> dict[str, Any]:
    """What flags say of a run that goes on, of the settings that one of its kind has. Raises RunError for a run that another command
    goes on with. extra: flags that only that kind of run has."""
    from esper.simic.growth.config import GrowthConfig
    from esper.simic.runs.configs import read_config
    from esper.simic.runs.runner import command_of, go_on
    from esper.tolaria.storage.runs import read_run

    read_run(run)
    config = read_config(run / "config.toml")
    if command_of(config) != command:
        raise RunError(f"{run} is not a run of esper {command}; {go_on(config, run)}")
    level = getattr(arguments, "telemetry.level", None)
    extra = extra if level is None else [*extra, "--telemetry.level", level]
    if not extra:
        return {}
    if not isinstance(config, GrowthConfig):
        raise ConfigError(f"{extra[0]!r} cannot change when a run goes on; this kind of run goes on as it began")
    parser = Parser(prog=f"esper {command} --resume", allow_abbrev=False)
    add_flags(parser, type(config), everything=False)
    return changes(type(config), parser.parse_args(extra))


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command that works in a run folder: how a run is begun and gone on with, and where what came out is shown and written."""

    name: str
    noun: str
    """What its run is called."""
    show: Callable[[dict[str, Any]], None]
    """Prints a summary."""
    page: Callable[[dict[str, Any]], str]
    """A summary as HTML."""
    figures: str = "what came out, all of it,"
    """What the file of --json has."""

    def parser(self, usage: str, description: str, examples: str, *, prog: str = "", config_help: str = "a config.toml") -> Parser:
        """A parser with the flags that all such commands have."""
        parser = Parser(
            prog=f"esper {prog or self.name}",
            usage=usage,
            description=description,
            epilog=examples,
            allow_abbrev=False,
        )
        parser.add_argument("--help-all", action="help", help="also show every setting of training, gates, controllers and so on")
        parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
        parser.add_argument("--config", type=Path, metavar="FILE", help=f"{config_help} to start from; flags override it")
        self._add_common(parser)
        return parser

    def start(self, config: Any, arguments: argparse.Namespace, argv: list[str]) -> int:
        """Begin a run, see it through and say what came out."""
        from esper.simic.runs.runner import start

        command = shlex.join(["esper", self.name, *argv])
        summary = watch(lambda **watching: start(config, arguments.run, command, **watching), arguments)
        return self._conclude(summary, arguments)

    def resume(self, argv: list[str]) -> int:
        """Go on with a run; show one that is finished again."""
        arguments, extra = self.resume_parser().parse_known_args(argv)
        check_files(arguments)
        from esper.simic.runs.runner import resume
        from esper.tolaria.storage.runs import read_run, read_summary

        settings = resume_settings(arguments.resume, arguments, extra, self.name)
        if read_run(arguments.resume).status == "finished":
            return self._show({**read_summary(arguments.resume), "run": str(arguments.resume)}, arguments)
        return self._conclude(watch(lambda **watching: resume(arguments.resume, settings=settings, **watching), arguments), arguments)

    def resume_parser(self) -> Parser:
        """The parser of `--resume RUN`."""
        parser = Parser(
            prog=f"esper {self.name} --resume",
            usage=f"esper {self.name} --resume RUN [OPTIONS]",
            description=f"Go on with an interrupted {self.noun}, to the same figures; or show a finished one again.",
            allow_abbrev=False,
        )
        parser.add_argument("--resume", type=Path, metavar="RUN", help=f"the {self.noun} to go on with")
        self._add_common(parser)
        return parser

    def _add_common(self, parser: Parser) -> None:
        add_files(parser, json=self.figures, html="a page with tables and plots")
        add_watching(parser)

    def _conclude(self, summary: dict[str, Any], arguments: argparse.Namespace) -> int:
        """What is done at the end of a run."""
        self._show(summary, arguments)
        conclude(summary, arguments)
        return 0

    def _show(self, summary: dict[str, Any], arguments: argparse.Namespace) -> int:
        """Say what came out, and write it down where that was asked for."""
        self.show(summary)
        if arguments.json is not None:
            write_file(arguments.json, (Path(summary["run"]) / "summary.json").read_bytes())
        if arguments.html is not None:
            write_file(arguments.html, self.page(summary).encode())
        return 0
