"""What a comparison says of its rows: fronts, what hosts differ in, hosts that were ruined, and shares of what a sweep gains."""

from __future__ import annotations

from typing import Any

import pytest

from esper.simic.runs.comparison import RUINED, against_sweep, breakdown, front


def row(arm: str, seed: int, score: float, **values: Any) -> dict[str, Any]:
    return {"arm": arm, "task": "digits", "seed": seed, "score": score, "test_accuracy": score, **values}


def test_the_front_holds_what_no_other_arm_beats_for_less() -> None:
    costs = {"cheap": (1, 10.0), "beaten": (3, 9.0), "dear": (5, 30.0), "dearer": (6, 30.0)}
    arms = {name: [row(name, 0, reached, parameters=cost)] for name, (cost, reached) in costs.items()}
    assert front(arms, "parameters") == ["cheap", "dear"]


GAINS = {"a": 2.0, "b": 1.0}


def test_the_breakdown_names_every_field_in_which_hosts_differ() -> None:
    members = [{"kernel": 1 + 2 * (i % 2), "width": 8} for i in range(12)]
    arms = {name: [row(name, i, gain * each["kernel"], member=each) for i, each in enumerate(members)] for name, gain in GAINS.items()}
    one, three = breakdown(arms)
    assert (one["task"], one["field"], one["value"], one["hosts"], one["score"]) == ("digits", "kernel", 1, 6, {"a": 2.0, "b": 1.0})
    assert (three["value"], three["against"]["b"]["mean"], three["against"]["b"]["low"]) == (3, 3.0, 3.0)


def test_the_breakdown_of_several_tasks_looks_within_each() -> None:
    members = {"digits": [{"kernel": 1}, {"kernel": 3}], "stdlib": [{"kernel": 3}, {"kernel": 3}]}
    arms = {name: [row(name, i, 1.0, task=task, member=each) for task in members for i, each in enumerate(members[task])] for name in GAINS}
    found = [(part["task"], part["field"], part["value"]) for part in breakdown(arms)]
    assert found == [("digits", "", ""), ("stdlib", "", ""), ("digits", "kernel", 1), ("digits", "kernel", 3)]


# Ruined hosts


def test_a_host_is_ruined_where_the_first_ends_more_than_the_margin_behind() -> None:
    tasks = {"digits": [RUINED + 1.0, 0.0, 0.0, 0.0], "stdlib": [RUINED + 1.0, RUINED + 1.0, RUINED, -50.0]}
    lost = [(task, loss) for task, losses in tasks.items() for loss in losses]
    arms = {
        "mine": [row("mine", i, 50.0 - loss, task=task, member={}) for i, (task, loss) in enumerate(lost)],
        "wait": [row("wait", i, 50.0, task=task, member={}) for i, (task, _) in enumerate(lost)],
    }
    assert [(part["task"], part["ruined"]["wait"]["mean"]) for part in breakdown(arms)] == [("digits", 0.25), ("stdlib", 0.5)]


# Against a sweep


def swept(tasks: dict[str, float], reached: float, hosts: int = 8) -> dict[str, list[dict[str, Any]]]:
    """Arms on hosts of tasks in which a sweep gains so many points; mine gains that share of it, for a fifth of the operations."""
    gains = {"mine": reached, "wait": 0.0, "sweep": 1.0}
    spent = {"mine": 2, "wait": 1, "sweep": 10}
    return {
        arm: [
            row(arm, seed, 50.0 + seed + share * gain * (1 + (seed % 2) / 10), task=task, operations=spent[arm])
            for task, gain in tasks.items()
            for seed in range(hosts)
        ]
        for arm, share in gains.items()
    }


def test_a_share_of_a_sweeps_gain_is_said_for_all_hosts_and_by_task() -> None:
    found = against_sweep(swept({"digits": 20.0, "stdlib": 2.0}, reached=0.9))
    assert [(part["task"], part["hosts"]) for part in found] == [("", 16), ("digits", 8), ("stdlib", 8)]
    for part in found:
        share = part["share"]["mine"]
        assert (share["mean"], share["low"], share["high"]) == pytest.approx((0.9, 0.9, 0.9)), "the same on every host"
        assert part["operations"] == {"mine": 0.2}
    assert found[0]["gain"]["sweep"]["mean"] == pytest.approx(11.55)


def test_of_a_gain_that_may_be_nothing_no_share_has_bounds() -> None:
    arms = swept({"digits": 20.0}, reached=0.9)
    for i, each in enumerate(arms["sweep"]):
        each["score"] = arms["wait"][i]["score"] + (1.0 if i % 2 else -0.9)
    (found,) = against_sweep(arms)
    share = found["share"]["mine"]
    assert (share["low"], share["high"], share["unbounded"]) == (None, None, True)


@pytest.mark.parametrize("missing", ["wait", "sweep"])
def test_without_either_there_is_no_share(missing: str) -> None:
    arms = swept({"digits": 20.0}, reached=0.9)
    del arms[missing]
    assert against_sweep(arms) == []
