"""`esper blueprints`: what can grow in a slot, for which features, and how many parameters it has."""

from __future__ import annotations

import json
import re
import reprlib

from esper.cli.flags import Parser
from esper.cli.tables import Row, list_parser, print_rows
from esper.leyline.errors import ConfigError, unknown
from esper.leyline.plugins import origin
from esper.leyline.reports import Topology

COLUMNS = ("topology", "name", "parameters", "from", "purpose")


def main(argv: list[str]) -> int:
    """Run the command with its own arguments, print the list, and return 0."""
    arguments = _parser().parse_args(argv)
    topologies, width = _topologies(arguments.topology), _width(arguments.width)
    from esper.kasmina.blueprints import BLUEPRINTS, SlotShape, parameter_count  # torch, which `--help` need not wait for
    from esper.simic.plugins import load_plugins

    load_plugins(arguments.plugins)
    rows: list[Row] = [
        {
            "topology": topology.value,
            "name": name,
            "parameters": parameter_count(name, SlotShape(topology, width)),
            "from": origin(entry.where),
            "purpose": entry.purpose,
        }
        for topology in topologies
        for (kind, name), entry in BLUEPRINTS.items()
        if kind is topology
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print_rows(rows, COLUMNS, wrapped=["from", "purpose"], section="topology")
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = list_parser(
        "blueprints",
        "List the blueprints: what can grow in a slot, what it is for, and how many parameters it adds.",
        "topologies: map2d feature maps (B, C, H, W); map1d feature maps (B, C, T); tokens (B, T, d); vector (B, d)",
        plugins="blueprints",
    )
    parser.add_argument("--topology", metavar="|".join(Topology), help="only those for this shape of features")
    parser.add_argument("--width", metavar="N", default="32", help="channels or features of the slot, for the parameters (default: 32)")
    return parser


def _topologies(name: str | None) -> tuple[Topology, ...]:
    """The topology of that name, or all of them."""
    if name is None:
        return tuple(Topology)
    known = [topology.value for topology in Topology]
    if name not in known:
        raise unknown("topology", name, known)
    return (Topology(name),)


def _width(text: str) -> int:
    """The width as a number."""
    if not re.fullmatch("0*[1-9][0-9]{0,5}", text):
        raise ConfigError(f"--width is {reprlib.repr(text)}; expected a whole number from 1 to 999999, such as 32")
    return int(text)
