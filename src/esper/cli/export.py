"""`esper export`: the grown network of a run as a plain file."""

from __future__ import annotations

from pathlib import Path

from esper.cli.flags import Parser
from esper.leyline.errors import unknown

SUFFIXES = {"module": ".pt", "pt2": ".pt2", "onnx": ".onnx"}


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    if arguments.format not in SUFFIXES:
        raise unknown("format", arguments.format, SUFFIXES)
    from esper.simic.runs.export import check_target, harvest_of_run, write

    if arguments.out is not None:
        check_target(arguments.out, arguments.run)
    network, example, host = harvest_of_run(arguments.run, arguments.host)
    target = arguments.out or arguments.run / "export" / f"host-{host}{SUFFIXES[arguments.format]}"
    lines = write(network, example, target, arguments.format, arguments.check)
    parameters = sum(p.numel() for p in network.parameters())
    checked = ", outputs compared and equal" if arguments.check else ""
    shape = ", ".join(["batch", *map(str, example.shape[1:])])
    print(f"wrote {target}: host {host}, {parameters:,} parameters, input of shape ({shape}){checked}")
    print(f"\nload it with:\n\n{lines}")
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    about = "Write the grown network of a run, host and fossils, to a file that loads without esper."
    parser = Parser(prog="esper export", description=about, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("--format", default="pt2", metavar="module|pt2|onnx", help="torch.save, torch.export or ONNX (default: pt2)")
    parser.add_argument("--host", type=int, metavar="N", help="which host (default: the one with the best val accuracy)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: RUN/export/host-N)")
    parser.add_argument("--check", action="store_true", help="load what is written again and compare its outputs")
    return parser
