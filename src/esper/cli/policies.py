"""`esper policies`: the trained policies that ship with Esper, and the card of one. No torch is loaded."""

from __future__ import annotations

import json
import sys
from io import StringIO
from typing import Any

from esper.cli.flags import Parser
from esper.cli.tables import list_parser, print_rows
from esper.leyline.errors import unknown
from esper.policies import POLICIES, exact_name, names

COLUMNS = ("policy", "size", "trained on", "what it is")
WIDEST = 100
"""Columns of a card, on a terminal that has more."""


def main(argv: list[str]) -> int:
    """Run the command with its own arguments and return 0."""
    arguments = _parser().parse_args(argv)
    shown = list(POLICIES) if arguments.shipped is None else [_exact(arguments.shipped)]
    found = [_facts(name) for name in shown]
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif arguments.shipped is not None:
        _print_card(shown[0])
    elif found:
        print_rows([_row(facts) for facts in found], COLUMNS, wrapped=COLUMNS[2:])
    else:
        print("no policy ships with this version of Esper")
    for facts in found:
        if not facts["fits"]:
            print(f"esper: {facts['name']} {facts['problem']}", file=sys.stderr)
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = list_parser(
        "policies",
        "List the trained policies that ship with Esper, or show the card of one: what it was trained on and for how long, how it does "
        "against every baseline, and its limits.",
        "A name goes wherever a policy is taken: NAME-N is that very generation, NAME alone the newest one.",
    )
    parser.add_argument("shipped", nargs="?", metavar="NAME", help="show the card of this one")
    return parser


def _exact(name: str) -> str:
    """The generation that is meant."""
    exact = exact_name(name)
    if exact is None:
        raise unknown("policy", name, names())
    return exact


def _facts(name: str) -> dict[str, Any]:
    """What there is to say of a policy, from its file and its card."""
    from esper.policies.card import read_card
    from esper.tamiyo.policy.policy_header import read_header

    path = POLICIES[name]
    header = read_header(path)
    return {
        "name": name,
        "path": str(path),
        "bytes": path.stat().st_size,
        "summary": read_card(path).summary,
        "trained": header.trained,
        "blueprints": header.config["blueprints"],
        "config": header.config,
        "version": header.version,
        "schema": header.schema,
        "sha256": header.sha256,
        "fits": not header.problem,
        "problem": header.problem,
    }


def _row(facts: dict[str, Any]) -> dict[str, str]:
    cells = (facts["name"], f"{facts['bytes'] / 1e6:.2f} MB", ", ".join(facts["trained"]["task"]), facts["summary"])
    return dict(zip(COLUMNS, cells, strict=True))


def _print_card(name: str) -> None:
    """The card laid out for a terminal; in a pipe, and where there is no Unicode, the Markdown as it is."""
    from esper.policies.card import read_card

    text = read_card(POLICIES[name]).text
    if not sys.stdout.isatty() or not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
        print(text.rstrip())
        return
    from rich.console import Console
    from rich.markdown import Markdown

    laid_out = StringIO()  # as a Console of stdout ends the process when nobody reads it
    console = Console(file=laid_out, force_terminal=True)
    console.width = min(console.width, WIDEST)
    console.print(Markdown(text))
    print("\n".join(line.rstrip() for line in laid_out.getvalue().splitlines()))
