"""What a comparison says: figures of each arm, the difference of every pair, and where in a family the differences are.

Everything here is made from rows, one for each arm and host, which the summary keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from esper.leyline.events import HostFinished, HostStarted
from esper.leyline.score import score
from esper.simic.runs.compare_config import SWEEP
from esper.simic.statistics import interval, iqm, paired_difference, probability_of_improvement, ratio_of_means, share_behind

Row = dict[str, Any]
OPERATIONS = ("forward", "backward", "validation", "counterfactual")
"""What training operations are spent on, in the order in which they are shown."""
COUNTED = ("parameters", "growth", "operations", "germinated", "fossilized", "pruned", "rollbacks", "epochs", *OPERATIONS)
"""Figures of an arm that are plain means over its hosts."""
COMPARED = ("score", "test_accuracy")
"""Figures that arms are compared in; of both, more is better."""
RUINED = 10.0
"""Points of score: a host that ends more than so many behind another arm is one that the arm ruined."""
MOST_VALUES = 12
"""A field of the members with more values than this is not broken down: each would have a host or two."""


def row_of(arm: str, started: HostStarted, member: Mapping[str, Any], result: HostFinished, spent: Mapping[str, int]) -> Row:
    """One arm on one host. member: what the host is drawn as, the same for every arm. spent: operations, where not the result's own."""
    assert result.test_accuracy is not None, "a comparison reads the test split"
    size = result.parameters, result.host_parameters, result.rent
    return {
        "arm": arm,
        "task": started.task,
        "seed": started.seed,
        "member": dict(member),
        "score": score(result.test_accuracy, *size),
        "test_accuracy": result.test_accuracy,
        "test_loss": result.test_loss,
        "val_score": score(result.val_accuracy, *size),
        "val_accuracy": result.val_accuracy,
        "host_parameters": result.host_parameters,
        "parameters": result.parameters,
        "growth": result.parameters / result.host_parameters,
        **{name: spent[name] for name in OPERATIONS},
        "operations": sum(spent[name] for name in OPERATIONS),
        "epochs": started.epochs,
        "germinated": result.germinated,
        "fossilized": result.fossilized,
        "pruned": result.pruned,
        "rollbacks": result.rollbacks,
        "slots": result.slots,
    }


def statistics(rows: Sequence[Row]) -> dict[str, Any]:
    """All that is said of the rows: by arm, by pair of arms, and by what hosts differ in."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row["arm"], []).append(row)
    return {
        "arms": {arm: _figures(mine) for arm, mine in arms.items()},
        "front": {cost: front(arms, cost) for cost in ("parameters", "operations")},
        "pairs": [_pair(first, arms[first], second, arms[second]) for first, second in combinations(arms, 2)],
        "members": breakdown(arms),
        "sweep": against_sweep(arms),
    }


def front(arms: Mapping[str, Sequence[Row]], cost: str) -> list[str]:
    """The arms that no other one beats in accuracy at the same cost or less, from the cheapest on; by means over hosts."""
    spent = {arm: _mean([row[cost] for row in rows]) for arm, rows in arms.items()}
    reached = {arm: _mean([row["test_accuracy"] for row in rows]) for arm, rows in arms.items()}
    best, found = float("-inf"), []
    for arm in sorted(arms, key=lambda arm: (spent[arm], -reached[arm])):
        if reached[arm] > best:
            best = reached[arm]
            found.append(arm)
    return found


def breakdown(arms: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """The mean score of each arm by task, if there are several, and for every value of each field in which the members of a task's hosts
    differ; and the first arm against each other one."""
    hosts, by_task = next(iter(arms.values())), _by_task(arms)
    found = [_part(arms, task, "", "", places) for task, places in by_task.items()] if len(by_task) > 1 else []
    for task, places in by_task.items():
        for name in hosts[places[0]]["member"]:
            values: dict[Any, list[int]] = {}
            for place in places:
                values.setdefault(hosts[place]["member"][name], []).append(place)
            if 1 < len(values) <= MOST_VALUES:
                found += [_part(arms, task, name, value, values[value]) for value in sorted(values)]
    return found


def _part(arms: Mapping[str, Sequence[Row]], task: str, field: str, value: Any, places: Sequence[int]) -> dict[str, Any]:
    """Some of the hosts: those of a task, or those of them with a value of a field."""
    scores = {arm: [rows[place]["score"] for place in places] for arm, rows in arms.items()}
    first = next(iter(arms))
    return {
        "task": task,
        "field": field,
        "value": value,
        "hosts": len(places),
        "score": {arm: _mean(mine) for arm, mine in scores.items()},
        "against": {arm: asdict(paired_difference(scores[first], mine)) for arm, mine in scores.items() if arm != first},
        "ruined": {arm: asdict(share_behind(scores[first], mine, RUINED)) for arm, mine in scores.items() if arm != first},
    }


def against_sweep(arms: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Of all hosts, and by task if there are several: what a sweep gains in score over hosts that do not grow, and which share of it each
    other arm gains for which share of its operations. Nothing where either is not among the arms."""
    if not {"wait", SWEEP} <= {*arms}:
        return []
    by_task = _by_task(arms)
    parts = {"": range(len(arms[SWEEP])), **(by_task if len(by_task) > 1 else {})}
    return [_of_sweep(arms, task, places) for task, places in parts.items()]


def _of_sweep(arms: Mapping[str, Sequence[Row]], task: str, places: Sequence[int]) -> dict[str, Any]:
    scores = {arm: [rows[place]["score"] for place in places] for arm, rows in arms.items()}
    spent = {arm: _mean([rows[place]["operations"] for place in places]) for arm, rows in arms.items()}
    gains = {arm: [one - other for one, other in zip(mine, scores["wait"], strict=True)] for arm, mine in scores.items() if arm != "wait"}
    return {
        "task": task,
        "hosts": len(places),
        "gain": {arm: asdict(interval(mine)) for arm, mine in gains.items()},
        "share": {arm: asdict(ratio_of_means(mine, gains[SWEEP])) for arm, mine in gains.items() if arm != SWEEP},
        "operations": {arm: spent[arm] / spent[SWEEP] for arm in gains if arm != SWEEP},
    }


def _by_task(arms: Mapping[str, Sequence[Row]]) -> dict[str, list[int]]:
    """The places of each task's hosts."""
    found: dict[str, list[int]] = {}
    for place, host in enumerate(next(iter(arms.values()))):
        found.setdefault(host["task"], []).append(place)
    return found


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    figures: dict[str, Any] = {"hosts": len(rows)}
    for name in COMPARED:
        values = [row[name] for row in rows]
        figures[name] = asdict(interval(values))
        figures[f"{name}_iqm"] = asdict(iqm(values))
    return figures | {name: _mean([row[name] for row in rows]) for name in COUNTED}


def _pair(first: str, mine: Sequence[Row], second: str, other: Sequence[Row]) -> dict[str, Any]:
    assert [(row["task"], row["seed"]) for row in mine] == [(row["task"], row["seed"]) for row in other], "both arms play the same hosts"
    found: dict[str, Any] = {"first": first, "second": second}
    for name in COMPARED:
        values, others = [row[name] for row in mine], [row[name] for row in other]
        found[name] = {
            "difference": asdict(paired_difference(values, others)),
            "iqm": asdict(iqm([a - b for a, b in zip(values, others, strict=True)])),
            "improvement": asdict(probability_of_improvement(values, others)),
        }
    found["ruined"] = asdict(share_behind([row["score"] for row in mine], [row["score"] for row in other], RUINED))
    for name in ("parameters", "operations"):
        found[name] = _mean([row[name] for row in mine]) / _mean([row[name] for row in other])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
