"""What settings do: the same hosts grown under each of them, paired by seed.

    python benchmarks/settings.py --hosts 40 --member family --controllers wait fixed heuristic --variants training.recalibrate=0 default
    python benchmarks/settings.py --hosts 10 --controllers fixed --variants default 'training.isolation="shadow"' 'training.isolation="ste"'

A variant is one or more settings of ControllerRunConfig by dotted key, KEY=JSON, separated by blanks; `default` changes nothing.
The first variant is what the others are compared with. Each host under each controller and variant is one job with a single thread;
jobs run side by side. "change" is the mean distance of val accuracy between one epoch and the next; "score" is val accuracy minus rent
and "test" is test accuracy, both of the harvested network; "cpu" is processor time relative to the first variant.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from esper.leyline.config import replace_fields
from esper.leyline.errors import ConfigError, EsperError
from esper.leyline.score import score
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.growth.deciding import controller_for
from esper.simic.statistics import paired_difference


def grow(changes: dict[str, object]) -> dict[str, Any]:
    """Grow the one host that a config with these changes describes; its result and its curve."""
    from esper.nissa import Hub
    from esper.simic.runs.controller import ControllerRun

    config = replace_fields(ControllerRunConfig(), {**changes, "hosts": 1, "control": False, "threads": 1})
    began = time.process_time()
    run = ControllerRun(config, Hub())
    while not run.done:
        run.run_round()
    (host,) = run.growth.hosts.values()
    result = run.play.results[0]
    reached = score(result.val_accuracy, result.parameters, result.host_parameters, result.rent)
    changed = [abs(after - before) for before, after in pairwise(host.course.accuracies)]
    return {**asdict(result), "score": reached, "change": statistics.mean(changed or [0.0]), "cpu": time.process_time() - began}


def grow_all(jobs: Iterable[dict[str, object]], workers: int) -> Iterator[dict[str, Any]]:
    """Every job's result, in order; tells how far it is on stderr."""
    jobs = list(jobs)
    with mp.get_context("spawn").Pool(workers) as pool:
        for done, row in enumerate(pool.imap(grow, jobs), start=1):
            print(f"\r{done}/{len(jobs)}", end="\n" if done == len(jobs) else "", file=sys.stderr, flush=True)
            yield row


def parsed(variant: str) -> dict[str, object]:
    """The settings of a variant."""
    found: dict[str, object] = {}
    for item in variant.split():
        key, _, value = item.partition("=")
        try:
            found |= {} if item == "default" else {key: json.loads(value)}
        except ValueError as error:
            raise ConfigError(f"{item!r} is no setting; expected KEY=JSON, such as training.recalibrate=0") from error
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--member", default="standard")
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--controllers", nargs="+", default=["heuristic"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", default="default", metavar="VARIANT", help="settings that all variants share")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every row to this file")
    parser.add_argument("--variants", nargs="+", default=["default"], metavar="VARIANT")
    args = parser.parse_args()
    shared: dict[str, object] = {"task": args.task, "member": args.member, "device": args.device, **parsed(args.set)}
    shared |= {"data": str(args.data)} if args.data else {}
    shared |= {"epochs": args.epochs} if args.epochs else {}
    seeds = range(args.first_seed, args.first_seed + args.hosts)
    keys = [(controller, variant, seed) for seed in seeds for controller in args.controllers for variant in args.variants]
    jobs = [{**shared, **parsed(variant), "controller": controller, "seed": seed} for controller, variant, seed in keys]
    for job in jobs:  # a mistake is told before anything is trained
        controller_for(replace_fields(ControllerRunConfig(), job, source="variant").controller, called="controller")
    rows = dict(zip(keys, grow_all(jobs, args.jobs), strict=True))
    if args.json:
        args.json.write_text(json.dumps([{"variant": v, **row} for (_, v, _), row in rows.items()], indent=1))
    print(f"{args.task}, {args.member}, {args.hosts} paired hosts from seed {args.first_seed}")
    for controller in args.controllers:
        show(controller, {v: [rows[controller, v, seed] for seed in seeds] for v in args.variants})
    return 0


def show(controller: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """A line for each variant: means over hosts, and differences from the first."""
    first = next(iter(found.values()))
    print(f"\n{controller:<40} change   score    test   size fossils rollbacks   cpu  score against the first, test against the first")
    for variant, rows in found.items():
        names = ("change", "score", "test_accuracy", "fossilized", "rollbacks")
        mean = {name: statistics.mean(row[name] for row in rows) for name in names}
        size = statistics.mean(row["parameters"] / row["host_parameters"] for row in rows)
        cpu = sum(row["cpu"] for row in rows) / sum(row["cpu"] for row in first)
        line = f"{variant:<40} {mean['change']:6.2f} {mean['score']:7.2f} {mean['test_accuracy']:7.2f} {f'x{size:.2f}':>6}"
        line += f" {mean['fossilized']:7.2f} {mean['rollbacks']:9.2f} {cpu:5.2f}"
        if rows is not first:
            against = [paired_difference([row[name] for row in rows], [row[name] for row in first]) for name in ("score", "test_accuracy")]
            line += f"  {against[0]}; {against[1]}"
        print(line)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EsperError as error:
        sys.exit(f"settings: {error}")
