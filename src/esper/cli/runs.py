"""`esper runs`: the runs in a folder and how they stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from esper.cli.flags import Parser
from esper.leyline.errors import RunError
from esper.tolaria.runs import list_runs, read_summary


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    parser = Parser(prog="esper runs", description="List the runs in a folder, oldest first.", allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="where runs lie (default: runs)")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    arguments = parser.parse_args(argv)
    if not arguments.folder.is_dir():
        raise RunError(f"there is no folder {arguments.folder}; runs are made by esper train")
    runs, problems = list_runs(arguments.folder)
    rows = [
        {
            "run": str(run.path),
            "status": str(run.status),
            "created": f"{run.created:%Y-%m-%d %H:%M}",
            "result": _result(run.path, run.status),
            "command": run.command,
        }
        for run in runs
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print(f"no runs in {arguments.folder}")
    else:
        names = ("run", "status", "created", "result", "command")
        widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
        for cells in (names, *([row[name] for name in names] for row in rows)):
            print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    for problem in problems:
        print(f"esper: {problem}", file=sys.stderr)
    return 0


def _result(path: Path, status: str) -> str:
    """Mean test accuracy of a finished run's hosts, and the difference to the control."""
    if status != "finished":
        return ""
    summary = read_summary(path)
    hosts = summary["hosts"]
    text = f"test {sum(host['test_accuracy'] for host in hosts) / len(hosts):.2f}"
    return text + (f" ({summary['against_control']['test_accuracy']['mean']:+.2f})" if "against_control" in summary else "")
