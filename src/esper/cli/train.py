"""`esper train`: grow hosts under a controller, or teach a policy to; in a run folder that can be stopped and resumed."""

from __future__ import annotations

import argparse
import importlib
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from esper.cli.flags import Parser, add_flags, changes
from esper.cli.results import print_learning, print_run, print_study
from esper.cli.watching import add_watching, asks_to_resume, conclude, resume_settings, watch
from esper.leyline.config import load, replace_fields
from esper.leyline.errors import ConfigError, unknown


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train: what it does, and where its settings are."""

    summary: str
    config: str
    """`module:class`, imported when the method is used."""
    examples: str
    from_runs: bool = False
    """Whether it learns from run folders, which are then plain arguments."""

    def load(self) -> type[Any]:
        """The class of its settings."""
        module, _, name = self.config.partition(":")
        loaded: type[Any] = getattr(importlib.import_module(module), name)
        return loaded


METHODS: dict[str, Method] = {
    "heuristic": Method(
        "grow hosts by a rule, each beside a twin that does not grow",
        "esper.simic.growth.config:ControllerRunConfig",
        """\
  esper train heuristic                         four hosts on the embedded digits
  esper train heuristic --hosts 10 --seed 7     ten hosts, other seeds
  esper train heuristic --controller random     random legal acts, for comparison
  esper train heuristic --controller runs/digits-ppo-001/policy.safetensors""",
    ),
    "ppo": Method(
        "teach a policy when and what to grow, and examine it on unseen hosts",
        "esper.simic.runs.ppo_config:PPORunConfig",
        """\
  esper train ppo                               a policy for the family of digits hosts, in minutes
  esper train ppo --rounds 100 --hosts 32       more practice
  esper train ppo --from-policy policy.safetensors""",
    ),
    "expert": Method(
        "teach a policy by forked search: try other decisions on the same hosts, prefer what paid (expert iteration)",
        "esper.simic.runs.expert_config:ExpertRunConfig",
        """\
  esper train expert                            a policy for the family of digits hosts
  esper train expert --hosts 64 --rounds 40     more practice
  esper train expert --alternatives 8           more tries at every moment that is searched""",
    ),
    "bc": Method(
        "teach a policy to decide as recorded runs did, e.g. those of the heuristic",
        "esper.simic.learning.offline_config:BCConfig",
        """\
  esper train heuristic --hosts 40 --member family --run runs/recorded
  esper train bc runs/recorded                  imitate it
  esper train bc runs/a runs/b --balance 1      from two runs, rare acts count most
  esper train ppo --from-policy runs/bc-001/policy.safetensors""",
        from_runs=True,
    ),
    "iql": Method(
        "teach a policy to do better than recorded runs, from the recording alone (implicit Q-learning)",
        "esper.simic.learning.offline_config:IQLConfig",
        """\
  esper train heuristic --controller random --hosts 100 --member family --run runs/random
  esper train iql runs/random runs/recorded     the better parts of both
  esper train ppo --from-policy runs/iql-001/policy.safetensors""",
        from_runs=True,
    ),
}

ABOUT = """\
usage: esper train METHOD [OPTIONS]
       esper train --resume RUN

Train, in a run folder that explains itself. Ctrl-C stops after a checkpoint; --resume goes on, bit for bit.

methods:
{methods}

`esper train METHOD --help` shows the options of a method."""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if argv in (["--help"], ["-h"]):
        width = max(map(len, METHODS))
        print(ABOUT.format(methods="\n".join(f"  {name:<{width}}  {method.summary}" for name, method in METHODS.items())))
        return 0
    if asks_to_resume(argv):
        return _resume(argv)
    if not argv or argv[0].startswith("-"):
        raise ConfigError(f"what to train is missing: esper train {'|'.join(METHODS)}, or --resume RUN; see esper train --help")
    name, rest = argv[0], argv[1:]
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    kind = METHODS[name].load()
    arguments = _parser(name, METHODS[name], kind, everything="--help-all" in rest).parse_args(rest)
    if METHODS[name].from_runs and arguments.named_runs:
        arguments.runs = [*getattr(arguments, "runs", []), *arguments.named_runs]
    config = load(kind, arguments.config) if arguments.config is not None else kind()
    config = replace_fields(config, changes(kind, arguments), source=f"esper train {name}")
    from esper.simic.runs.runner import start

    command = shlex.join(["esper", "train", *argv])
    return _report(watch(lambda **watching: start(config, arguments.run, command, **watching), arguments), arguments)


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    methods = {name: _parser(name, method, method.load(), everything=False) for name, method in METHODS.items()}
    return {**methods, "--resume": _resume_parser()}


def _resume(argv: list[str]) -> int:
    arguments, extra = _resume_parser().parse_known_args(argv)
    from esper.simic.runs.runner import resume

    settings = resume_settings(arguments.resume, arguments, extra, "train")
    heads = [head for item in arguments.reset_heads for head in item.split(",") if head]
    summary = watch(lambda **watching: resume(arguments.resume, reset_heads=heads, settings=settings, **watching), arguments)
    return _report(summary, arguments)


def _resume_parser() -> Parser:
    parser = Parser(
        prog="esper train --resume",
        usage="esper train --resume RUN [OPTIONS]",
        description="Go on with an interrupted run, bit for bit.",
        epilog="""\
A run that teaches a policy can go on with other settings of learning, named as in esper train ppo:
  esper train --resume runs/digits-ppo-001 --rounds 60 --ppo.entropy-end 0.02""",
        allow_abbrev=False,
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="the run to go on with")
    parser.add_argument("--reset-heads", nargs="+", default=[], metavar="HEAD", help="make these heads of a policy new")
    add_watching(parser, rewards=True)
    return parser


def _report(summary: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Say what came out, and write the report."""
    printers = {"examination": print_learning, "study": print_study}
    next((printer for key, printer in printers.items() if key in summary), print_run)(summary)
    conclude(summary, arguments)
    return 0


def _parser(name: str, method: Method, config: type, everything: bool) -> Parser:
    parser = Parser(
        prog=f"esper train {name}",
        usage=f"esper train {name} RUN... [OPTIONS]" if method.from_runs else f"esper train {name} [OPTIONS]",
        description=f"{method.summary[0].upper()}{method.summary[1:]}.",
        epilog=f"examples:\n{method.examples}",
        allow_abbrev=False,
    )
    if method.from_runs:
        help = "run folders to learn from: those of esper train heuristic, whatever its controller"
        parser.add_argument("named_runs", nargs="*", metavar="RUN", help=help)
    parser.add_argument("--help-all", action="help", help="also show every setting of training, gates, rewards and so on")
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run folder (default: a new one in runs/)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config.toml to start from; flags override it")
    add_watching(parser, rewards=True)
    add_flags(parser, config, everything=everything)
    if any(each.name == "from_policy" for each in fields(config)):
        short = "short for --from-policy"
        parser.add_argument("--from", dest="from_policy", default=argparse.SUPPRESS, metavar="POLICY", help=short)
    return parser
