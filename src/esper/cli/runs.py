"""`esper runs`: the runs in a folder and how they stand."""

from __future__ import annotations

import json
import sys
from os.path import isdir
from pathlib import Path
from typing import Any

from esper.cli.results import failures
from esper.cli.tables import Row, list_parser, print_rows
from esper.leyline.errors import EsperError, RunError
from esper.tolaria.storage.runs import list_runs, read_summary


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    parser = list_parser("runs", "List the runs in a folder, oldest first.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="where runs lie (default: runs)")
    arguments = parser.parse_args(argv)
    if not isdir(arguments.folder):  # pathlib raises for a name that is too long
        raise RunError(f"there is no folder {arguments.folder}; runs are made by esper train")
    runs, problems = list_runs(arguments.folder)
    rows: list[Row] = []
    for run in runs:
        try:
            result = _result(read_summary(run.path)) if run.status == "finished" else ""
        except (EsperError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
            result = ""
            problems.append(str(error) if isinstance(error, EsperError) else f"{run.path / 'summary.json'} was edited: it lacks figures")
        created = f"{run.created:%Y-%m-%d %H:%M}"
        rows.append({"run": str(run.path), "status": run.status, "created": created, "result": result, "command": run.command})
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print(f"no runs in {arguments.folder}")
    else:
        print_rows(rows, tuple(rows[0]), wrapped=["run", "result", "command"])
    for problem in problems:
        print(f"esper: {problem}", file=sys.stderr)
    return 0


def _result(summary: dict[str, Any]) -> str:
    """The figure that a finished run is about: its hosts' mean accuracy and the difference to the control, a policy's score, what a search
    brought, or the best point of a sweep."""
    if "examination" in summary:
        return f"score {summary['examination']['arms']['policy']['score']:.2f}"
    if "comparison" in summary:
        first = summary["policies"][0]
        return f"{first}: score {summary['comparison']['arms'][first]['score']['mean']:.2f}"
    if "search" in summary:
        fresh = summary["search"]["fresh"]
        return "nothing better" if fresh is None else f"{fresh['difference']['mean']:+.2f} on {fresh['hosts']} fresh hosts"
    if "sweep" in summary:
        best = summary["sweep"]["points"][0]
        return "every point failed" if best["failed"] else f"score {best['score']['mean']:.2f} at point {best['point']}"
    if "hosts" not in summary:
        return ""
    hosts = summary["hosts"]
    split = "val" if hosts[0]["test_accuracy"] is None else "test"
    text = f"{split} {sum(host[f'{split}_accuracy'] for host in hosts) / len(hosts):.2f}"
    text += f" ({summary['against_control'][f'{split}_accuracy']['mean']:+.2f})" if "against_control" in summary else ""
    return text + (", with hosts that came to nothing" if failures(summary) else "")
