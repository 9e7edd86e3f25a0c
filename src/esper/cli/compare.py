"""`esper compare`: policies and baselines on the same unseen hosts, scored on the test split, with intervals and a verdict in words."""

from __future__ import annotations

from esper.cli.comparison import make_page, print_comparison
from esper.cli.files import check_files
from esper.cli.flags import Parser, add_flags, changes
from esper.cli.watching import RunCommand, asks_to_resume
from esper.leyline.config import load, replace_fields

EXAMPLES = """\
A POLICY is the name of a controller (wait, random, fixed, heuristic, or one of a plug-in) or of a policy that `esper policies` lists, a
run folder, a policy file, or a TOML file with the settings of a controller.

examples:
  esper compare heuristic                                    the heuristic against hosts that do not grow
  esper compare runs/digits-ppo-001 --arms all --member family
  esper compare heuristic fixed --task digits --task stdlib --seeds 40 --html compare.html --json compare.json
  esper compare --resume runs/digits-compare-001             go on after an interruption, or show a finished comparison again"""


COMMAND = RunCommand("compare", "comparison", print_comparison, make_page, figures="the rows of all hosts and all statistics")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    if asks_to_resume(argv):
        return COMMAND.resume(argv)
    from esper.simic.runs.compare_config import CompareConfig

    arguments = _parser(everything="--help-all" in argv).parse_args(argv)
    check_files(arguments)
    if arguments.named_policies:
        arguments.policies = [*getattr(arguments, "policies", []), *arguments.named_policies]
    config = load(CompareConfig, arguments.config) if arguments.config is not None else CompareConfig()
    return COMMAND.start(replace_fields(config, changes(CompareConfig, arguments), source="esper compare"), arguments, argv)


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser(everything=False), "--resume": COMMAND.resume_parser()}


def _parser(everything: bool) -> Parser:
    from esper.simic.runs.compare_config import CompareConfig

    parser = COMMAND.parser(
        "esper compare POLICY... [OPTIONS]\n       esper compare --resume RUN",
        "Compare policies with each other and with baselines, host by host, on hosts that nothing else has seen.",
        EXAMPLES,
    )
    help = "whom to compare; the arm static-final is built like what the first one grew"
    parser.add_argument("named_policies", nargs="*", metavar="POLICY", help=help)
    add_flags(parser, CompareConfig, everything=everything)
    return parser
