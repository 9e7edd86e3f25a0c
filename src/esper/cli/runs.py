"""`esper runs`: the runs in a folder and how they stand."""

from __future__ import annotations

import json
import sys
from os.path import isdir
from pathlib import Path
from typing import Any

from esper.cli.flags import Parser
from esper.cli.results import failures
from esper.cli.tables import Row, list_parser, print_rows
from esper.leyline.errors import EsperError, RunError
from esper.tolaria.storage.runs import RunInfo, list_runs


def main(argv: list[str]) -> int:
    """Run the command with its own arguments."""
    arguments = _parser().parse_args(argv)
    if not isdir(arguments.folder):  # pathlib raises for a name that is too long
        raise RunError(f"there is no folder {arguments.folder}; runs are made by esper train")
    runs, problems = list_runs(arguments.folder)
    found: list[dict[str, Any]] = []
    for run in runs:
        try:
            row = _row(run)
        except EsperError as error:  # it went away meanwhile
            problems.append(str(error))
            continue
        problems += [row["problem"]] if row["problem"] else []
        found.append(row)
    if arguments.json:
        print(json.dumps([{name: value for name, value in row.items() if name not in ("result", "problem")} for row in found], indent=2))
    elif not found:
        print(f"no runs in {arguments.folder}")
    else:
        _print(found)
    for problem in problems:
        print(f"esper: {problem}", file=sys.stderr)
    return 0


def parsers() -> dict[str, Parser]:
    """The parsers of this command, by the word that chooses among them."""
    return {"": _parser()}


def _parser() -> Parser:
    parser = list_parser("runs", "List the runs in a folder, oldest first, with the figure that each is judged by.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="where runs lie (default: runs)")
    return parser


def _row(run: RunInfo) -> dict[str, Any]:
    """What is said of a run; the events of a finished one are not needed for it."""
    from esper.karn.record import Record
    from esper.karn.views import overview

    record = Record(run.path, events=run.status != "finished")
    found = overview(record)
    first = found["headline"][0] if found["headline"] else None
    control = next((each for each in found["headline"] if each["label"] == "against the control"), None)
    progress = found["progress"]
    result = "" if first is None else f"{first['label']} {first['text']}" + (f" ({control['text']})" if control else "")
    problem, warnings = found["problem"], []
    try:
        warnings = failures(record.summary) if record.summary and found["method"] == "run" and first is not None else []
    except (LookupError, TypeError, ValueError):
        problem = problem or f"{run.path / 'summary.json'} was edited: it lacks figures"
    result += ", with hosts that came to nothing" if warnings else ""
    return {
        **{name: found[name] for name in ("path", "status", "created", "method", "task", "command")},
        "score": None if first is None else first["value"],
        "score_label": None if first is None else first["label"],
        "against_control": None if control is None else control["value"],
        "progress": {name: progress[name] for name in ("unit", "done", "total", "share")},
        "go_on": found["go_on"],
        "warnings": warnings,
        "result": result,
        "problem": problem,
    }


def _result(row: dict[str, Any]) -> str:
    """The figure that a run is judged by, and how far one is that goes on or was interrupted."""
    done = row["progress"]
    place = f"{done['unit']} {done['done']} of {done['total']}" if done["done"] and row["status"] != "finished" else ""
    return "; ".join(filter(None, [row["result"], place]))


def _print(found: list[dict[str, Any]]) -> None:
    rows: list[Row] = [
        {
            "run": row["path"],
            "status": row["status"],
            "created": row["created"][:16].replace("T", " "),
            "result": _result(row),
            "command": row["command"],
        }
        for row in found
    ]
    print_rows(rows, tuple(rows[0]), wrapped=["run", "result", "command"])
    for row in found:
        if row["go_on"]:
            print(f"go on with: {row['go_on']}")
