"""Takes the networks on tour, each in a process of its own with a limit in time: python -m tests.tour [--out FILE] [PART OF A NAME ...]"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.tour.catalogue import find
from tests.tour.network import Network
from tests.tour.runner import STEPS, Journey, travel

LIMIT = 150
"""Seconds for one network."""


def main() -> None:
    """Run those that are asked for, write a line of JSON for each, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("names", nargs="*", help="packages, kinds or parts of names; all by default")
    parser.add_argument("--out", type=Path, default=Path("tour.jsonl"), help="one line of JSON for each network")
    parser.add_argument("--part", default="1/1", help="i/n: of all networks every n-th, for several processes side by side")
    parser.add_argument("--without", choices=STEPS, nargs="+", default=[], help="steps to leave out; exports is the slowest by far")
    parser.add_argument("--read", type=Path, nargs="+", default=[], help="run nothing; a table of what earlier runs wrote")
    asked = parser.parse_args()
    if asked.read:
        print(table([json.loads(line) for file in asked.read for line in file.read_text().splitlines()]))
        return
    torch.set_num_threads(1)
    part, parts = map(int, asked.part.split("/"))
    journeys = []
    with asked.out.open("w") as file:
        for network in find(asked.names)[part - 1 :: parts]:
            journeys.append(travel_apart(network, asked.without))
            file.write(json.dumps(journeys[-1]) + "\n")
            file.flush()
            print(describe(journeys[-1]), flush=True)
    print(summary(journeys))


def travel_apart(network: Network, without: Collection[str]) -> dict[str, Any]:
    """One network in a process of its own, whatever becomes of it."""
    context = multiprocessing.get_context("fork")  # what is imported once need not be imported again for each
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_travel, args=(network, without, theirs))
    process.start()
    theirs.close()
    try:
        if ours.poll(LIMIT):
            return ours.recv()
        process.kill()
        return lost(network, f"took more than {LIMIT} s")
    except EOFError:
        process.join()
        return lost(network, f"the process ended with {process.exitcode}")
    finally:
        process.join()


def _travel(network: Network, without: Collection[str], to: Connection) -> None:
    warnings.simplefilter("ignore")
    try:
        journey = travel(network, without)
        to.send({**dataclasses.asdict(journey), "whole": journey.whole})
    except Exception as error:
        to.send(lost(network, f"{type(error).__name__}: {error}"))


def lost(network: Network, why: str) -> dict[str, Any]:
    """What is told of a network that could not even be built, or never came back."""
    journey = Journey(name=network.name, package=network.package, kind=network.kind, steps={"builds": why})
    return {**dataclasses.asdict(journey), "whole": False}


def describe(journey: dict[str, Any]) -> str:
    """One network in a line."""
    wrong = "; ".join(f"{step}: {said}" for step, said in journey["steps"].items() if said not in ("ok", "bare"))
    size = f"{len(journey['places'])} places, {journey['seconds'].get('all', 0.0):.1f} s"
    return f"{'ok  ' if journey['whole'] else 'FAIL'} {journey['package']}/{journey['name']}: {size} {wrong}"


def summary(journeys: Sequence[dict[str, Any]]) -> str:
    """How many networks took each step."""
    lines = []
    for step in STEPS:
        said = Counter(each["steps"].get(step) for each in journeys)
        bare = f", {said['bare']} of them cannot by themselves" if said["bare"] else ""
        lines.append(f"{step:9} {said['ok'] + said['bare']} of {len(journeys)}{bare}")
    return "\n".join([*lines, f"whole way {sum(each['whole'] for each in journeys)} of {len(journeys)}"])


def table(journeys: Sequence[dict[str, Any]]) -> str:
    """The same by package, as a table for a page, with medians of what finding places and wrapping cost."""
    packages = Counter(each["package"] for each in journeys)
    rows = [f"| package | networks | {' | '.join(STEPS)} | whole way |", f"| --- {'| --- ' * (len(STEPS) + 2)}|"]
    for package, _ in packages.most_common():
        rows.append(_row(package, [each for each in journeys if each["package"] == package]))
    rows.append(_row("**all**", journeys))
    found = [each for each in journeys if each["places"] and "wrap" in each["passes"]]
    medians = [
        f"median {what}: {statistics.median(values):.3g}"
        for what, values in {
            "places": [len(each["places"]) for each in found],
            "seconds of the search": [each["seconds"]["search"] for each in found],
            "forward passes of the search": [each["passes"]["search"] for each in found],
            "forward passes of wrapping": [each["passes"]["wrap"] for each in found],
            "largest part of the forward pass without a place": [each["gap"] for each in found],
        }.items()
    ]
    wide = sum(each["gap"] > 0.6 for each in found)
    return "\n".join([*rows, "", *medians, f"more than 60 % without a place: {wide}"])


def _row(name: str, journeys: Sequence[dict[str, Any]]) -> str:
    counts = [sum(each["steps"].get(step) in ("ok", "bare") for each in journeys) for step in STEPS]
    return f"| {name} | {len(journeys)} | {' | '.join(map(str, counts))} | {sum(each['whole'] for each in journeys)} |"


if __name__ == "__main__":
    main()
