"""Which isolation is best: the same hosts grown under each form, paired by seed, against no growth.

    python benchmarks/isolation.py --task digits --hosts 10 --controller fixed --forms boost shadow ste none --jobs 2

Each host and form is one job with a single thread; jobs run side by side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import sys
import time
from pathlib import Path
from typing import Any

from esper.leyline.config import replace_fields
from esper.simic.config import RunConfig
from esper.simic.paired import paired_difference


def job(arguments: tuple[dict[str, Any], str, int]) -> dict[str, Any]:
    """Grow one host; `form` "wait" is the bare host."""
    settings, form, seed = arguments
    import torch

    from esper.nissa import NullHub
    from esper.simic.session import Session

    torch.set_num_threads(1)
    changes: dict[str, object] = {**settings, "seed": seed, "hosts": 1, "control": False, "threads": 1}
    if form == "wait":
        changes["controller"] = "wait"
    else:
        changes["training.isolation"] = form
    began = time.perf_counter()
    session = Session(replace_fields(RunConfig(), changes), NullHub())
    while not session.done:
        session.run_epoch()
    result = session.plots[0].result
    assert result is not None
    return {"form": form, "seed": seed, "seconds": time.perf_counter() - began, **result}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--controller", default="heuristic")
    parser.add_argument("--forms", nargs="+", default=["boost", "shadow", "ste", "none"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="further settings of RunConfig by dotted key")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings: dict[str, Any] = {"task": args.task, "controller": args.controller, "device": args.device}
    settings |= {"data": str(args.data)} if args.data else {}
    settings |= {"epochs": args.epochs} if args.epochs else {}
    settings |= {key: json.loads(value) for key, _, value in (item.partition("=") for item in args.set)}
    seeds = range(args.first_seed, args.first_seed + args.hosts)
    jobs = [(settings, form, seed) for seed in seeds for form in (*args.forms, "wait")]
    with mp.get_context("spawn").Pool(args.jobs) as pool:
        rows = []
        for row in pool.imap_unordered(job, jobs):
            rows.append(row)
            print(f"\r{len(rows)}/{len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    by_form = {form: sorted((r for r in rows if r["form"] == form), key=lambda r: r["seed"]) for form in (*args.forms, "wait")}
    print(f"{args.task}, {args.controller}, {args.hosts} paired hosts: test accuracy of the harvested network")
    print(f"{'form':>8} {'test':>7} {'size':>7} {'fossils':>8} {'seconds':>8}  against wait, and against {args.forms[0]}")
    for form, found in by_form.items():
        test = [r["test_accuracy"] for r in found]
        mean = {name: sum(r[name] for r in found) / len(found) for name in ("fossilized", "seconds")}
        size = sum(r["parameters"] / r["host_parameters"] for r in found) / len(found)
        line = f"{form:>8} {sum(test) / len(test):>7.2f} {f'x{size:.2f}':>7} {mean['fossilized']:>8.2f} {mean['seconds']:>8.1f}"
        for other in ("wait", args.forms[0]):
            if form != other:
                line += f"  {paired_difference(test, [r['test_accuracy'] for r in by_form[other]])}"
        print(line)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
