"""`esper train`: grow hosts under a controller, in a run folder that can be stopped and resumed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esper.cli.display import Display, make_display
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.main import EXIT_INTERRUPTED
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, unknown
from esper.simic.config import RunConfig

METHODS = ("heuristic",)

DESCRIPTION = """\
Grow hosts while they train. `esper train heuristic` lets a rule decide (see --controller); each host has a twin that does not grow,
so that the end says what growing brought. Everything lies in a run folder; Ctrl-C stops after a checkpoint."""

EXAMPLES = """\
examples:
  esper train heuristic                          four hosts on the embedded digits, about a minute
  esper train heuristic --hosts 10 --seed 7      ten hosts, other seeds
  esper train heuristic --controller random      random legal acts, for comparison
  esper train --resume runs/digits-heuristic-001 go on with an interrupted run
"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    parser = _parser(everything="--help-all" in argv)
    arguments = parser.parse_args(argv)
    if arguments.resume is not None:
        given = [item for item in argv if item.startswith("--") and item.split("=")[0] not in ("--resume", "--quiet", "--no-telemetry")]
        if given or arguments.method is not None:
            raise ConfigError(f"--resume goes on with the run's own config; it cannot be combined with {(given or [arguments.method])[0]}")
        from esper.simic.runner import resume

        return _report(lambda display: resume(arguments.resume, display, arguments.telemetry), arguments.quiet)
    if arguments.method is None:
        raise ConfigError(f"what to train is missing: esper train {'|'.join(METHODS)}, or --resume RUN; see esper train --help")
    if arguments.method not in METHODS:
        raise unknown("method", arguments.method, METHODS)
    config = load(RunConfig, arguments.config) if arguments.config is not None else RunConfig()
    config = replace_fields(config, changes(RunConfig, arguments), source="esper train")
    from esper.simic.runner import start

    command = shlex.join(["esper", "train", *argv])
    return _report(lambda display: start(config, arguments.run, command, display, arguments.telemetry), arguments.quiet)


def _parser(everything: bool) -> Parser:
    usage = "esper train METHOD [OPTIONS]\n       esper train --resume RUN"
    kind = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="esper train", usage=usage, description=DESCRIPTION, epilog=EXAMPLES, formatter_class=kind, allow_abbrev=False)
    parser.add_argument("--help-all", action="help", help="also show the settings of training, gates, governor and controllers")
    parser.add_argument("method", nargs="?", metavar="METHOD", help="who decides what grows: " + ", ".join(METHODS))
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: runs/TASK-CONTROLLER-NNN)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with an interrupted run")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config.toml to start from; flags override it")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--telemetry", action=argparse.BooleanOptionalAction, default=True, help="record events in events.jsonl")
    add_flags(parser, RunConfig, everything=everything)
    return parser


def _report(run: Callable[[Display], dict[str, Any]], quiet: bool) -> int:
    """Run under a display and say what came out; an interrupted run says how to go on."""
    from esper.simic.runner import Interrupted

    try:
        summary = run(make_display(quiet))
    except Interrupted as stopped:
        print(f"esper: {stopped}", file=sys.stderr)
        return EXIT_INTERRUPTED
    _print_summary(summary)
    return 0


def _print_summary(summary: dict[str, Any]) -> None:
    hosts = summary["hosts"]
    out = sys.stdout
    print(f"\n{'host':>4} {'seed':>6} {'test':>7} {'val':>7} {'size':>7}  germinated / fossilised / pruned, fossils", file=out)
    for number, host in enumerate(hosts):
        fossils = ", ".join(f"{slot} {s['blueprint']}" for slot, s in host["slots"].items() if s["stage"] == "FOSSILIZED")
        counts = f"{host['germinated']} / {host['fossilized']} / {host['pruned']}"
        size = host["parameters"] / host["host_parameters"]
        row = f"{number:>4} {host['seed']:>6} {host['test_accuracy']:>7.2f} {host['val_accuracy']:>7.2f} {f'x{size:.2f}':>7}"
        print(f"{row}  {counts}  {fossils}".rstrip(), file=out)
    mean = sum(host["test_accuracy"] for host in hosts) / len(hosts)
    print(f"test accuracy of the harvested networks: {mean:.2f} on average", file=out)
    if "against_control" in summary:
        difference = summary["against_control"]["test_accuracy"]
        interval = f"[{difference['low']:+.2f}, {difference['high']:+.2f}]"
        twins = f"better on {difference['wins']} of {difference['pairs']}"
        print(f"against the same hosts without growth: {difference['mean']:+.2f} points, 95 % interval {interval}, {twins}", file=out)
    print(f"run folder: {summary['run']}", file=out)
