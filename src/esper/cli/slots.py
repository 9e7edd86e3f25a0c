"""`esper slots`: where a model of the user's own could grow, why not elsewhere, and whether everything that growing needs works there."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from esper.cli.flags import Parser
from esper.cli.tables import Row, print_rows
from esper.leyline.errors import ConfigError, SlotError

if TYPE_CHECKING:
    from torch import nn

    from esper.cli.models import Input
    from esper.kasmina import Growability
    from esper.kasmina.attach.proposal import Proposals

EXIT_FAILED = 1
"""With --check: something that growing needs does not work with this model."""

ABOUT = """\
Show where a model of your own could grow: the places that esper.find_slots proposes, each with its features and a reason.

MODULE is a module's dotted name or the path of a .py file, which may lie in a package. FACTORY is a name in it, or in a class there: a
function or class that is called without arguments and gives the model, or a tuple of the model and an example input; or a model itself.
The file is run, as by import; what it prints goes to stderr."""

EPILOG = """\
inputs: [NAME=]SHAPE[:BELOW], one --input for each argument of the model's forward, in order; with NAME= by keyword, which all have or none
  --input 8x3x32x32                             random normal numbers of that shape
  --input 8x128:1000                            whole numbers from 0 to 999, such as tokens
  --input input_ids=2x16:1000 --input attention_mask=2x16:2
The first axis is the batch; give it at least two samples.

examples:
  esper slots model.py:make_net --input 8x3x32x32
  esper slots mypackage.models:Encoder --input 8x128:1000 --no-causal --rejected
  esper slots model.py:make_net_and_example --check --json"""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    from esper.cli.models import load_model, make_example, read_inputs
    from esper.kasmina import check_growable, find_slots

    inputs = read_inputs(arguments.input)
    with redirect_stdout(sys.stderr):  # what the user's code prints is no part of what is told here, least of all in JSON
        model, example = load_model(arguments.model)
        example = make_example(inputs, model) if inputs else example
        if example is None:
            raise ConfigError(f"{arguments.model} gives a model without an example input; say its shape, such as --input 8x3x32x32")
        try:
            found = find_slots(model, example, causal=arguments.causal)
            checked = check_growable(model, example, [each.path for each in found]) if arguments.check and found else None
        except SystemExit as ended:
            raise ConfigError(f"{arguments.model} ends the program when it runs on the example input (exit code {ended.code})") from ended
        except SlotError as error:
            raise SlotError(f"{error}{_about_tokens(model, inputs)}") from error
    if arguments.json:
        print(json.dumps(_plain(model, found, checked), indent=2))
    else:
        _print(model, found, checked, rejected=arguments.rejected)
    return EXIT_FAILED if arguments.check and not checked else 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = Parser(
        prog="esper slots",
        usage="esper slots MODULE:FACTORY [--input SPEC...] [OPTIONS]",
        description=ABOUT,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODULE:FACTORY", help="where the model comes from")
    parser.add_argument("--input", action="append", default=[], metavar="SPEC", help="an example input; see below")
    both = "whether token features may only look back; --no-causal for an encoder that looks both ways (default: True)"
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help=both)
    parser.add_argument("--rejected", action="store_true", help="also list every rejected place, and why")
    parser.add_argument("--check", action="store_true", help=f"also try all that growing needs; exit with {EXIT_FAILED} if some fails")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def _about_tokens(model: nn.Module, inputs: list[Input]) -> str:
    """What may help where a model that looks rows up in a table was given no whole numbers."""
    from torch import nn

    if not inputs or any(each.below for each in inputs) or not any(isinstance(module, nn.Embedding) for module in model.modules()):
        return ""
    return f"; for whole numbers, such as tokens, say below what: --input {inputs[0].spec}:1000"


def _print(model: nn.Module, found: Proposals, checked: Growability | None, *, rejected: bool) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    told = found.why_none() if not found else f"{len(found)} place{'s' if len(found) > 1 else ''} to grow"
    print(f"{type(model).__name__}, {parameters:,} parameters: {told}")
    if found:
        rows: list[Row] = [
            {
                "path": each.path,
                "features": each.topology.value,
                "width": each.width,
                "axes": each.axes,
                "shape": "x".join(map(str, each.shape)),
                "why": each.reason,
            }
            for each in found
        ]
        print()
        print_rows(rows, tuple(rows[0]), wrapped=["path", "why"])
    if rejected and found.rejected:
        print("\nrejected:")
        print_rows([{"path": path, "why": why} for path, why in found.rejected.items()], ("path", "why"), wrapped=["path", "why"])
    elif found.rejected:
        rest = f"not among them: {len(found.rejected)} other modules; " if found else ""
        print(f"\n{rest}--rejected says why{'' if found else ' of each'}")
    if checked is not None:
        print()
        for check in checked.checks:
            print(f"{_verdict(check.passed):<4} {check.name}: {check.detail}")
    if found:
        print(f"\nmodel = esper.Growable(model, slots={[each.path for each in found]!r}, example=example)")


def _verdict(passed: bool | None) -> str:
    """In a word; None is for what the bare model cannot do either."""
    return "n/a" if passed is None else "ok" if passed else "FAIL"


def _plain(model: nn.Module, found: Proposals, checked: Growability | None) -> dict[str, Any]:
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "slots": [asdict(each) for each in found],
        "rejected": found.rejected,
        "checks": None if checked is None else [asdict(check) for check in checked.checks],
    }
