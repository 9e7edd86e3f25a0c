"""The headline of hosts under a controller, and of one in a loop of its user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esper.karn.record import Record
from esper.karn.views.figures import Figure, bounds_of, difference_of, figure, over, paired
from esper.karn.views.hosts import Course, course_of, courses, grown, latest_play, started, twins
from esper.karn.views.plain import mean


def grown_figures(record: Record, summary: dict[str, Any]) -> list[Figure]:
    """Hosts that have all ended: their harvested networks, against their twins and in what that took."""
    hosts = summary["hosts"]
    split = "val" if hosts[0]["test_accuracy"] is None else "test"
    values = [float(host[f"{split}_accuracy"]) for host in hosts]
    val, control = mean_courses(record)
    figures = [figure(f"{split} accuracy", mean(values), note=over(len(hosts), "harvested network"), found=bounds_of(values), trend=val)]
    if "against_control" in summary:
        found, spent = summary["against_control"][f"{split}_accuracy"], summary["operations_x"]
        figures.append(figure("against the control", found["mean"], "+.2f", paired(found), found=found, trend=_differences(val, control)))
        figures.append(figure("size", _growth(hosts), "x.2f", "of the bare host"))
        share = f"of the same hosts without growth, x{spent['counterfactual']:.1f} of it for counterfactuals"
        figures.append(figure("operations", spent["all"], "x.1f", share))
    else:
        figures.append(figure("size", _growth(hosts), "x.2f", "of the bare host"))
    germinated = mean([host["germinated"] for host in hosts])
    figures.append(figure("fossils", mean([host["fossilized"] for host in hosts]), note=f"a host, of {germinated:.2f} seeds germinated"))
    return figures


def growing_figures(record: Record) -> list[Figure]:
    """Hosts that have not all ended: as they stand, harvested or not."""
    mine, beside = grown(record), twins(record)
    now = {number: course_of(record, number) for number in mine}
    values = [value for course in now.values() if (value := course.val.get(course.epoch)) is not None]
    if not values:
        return []
    val, control = mean_courses(record)
    figures = [figure("val accuracy", mean(values), note=over(len(values), "host"), found=bounds_of(values), trend=val)]
    pairs = []
    for number, course in now.items():
        twin = course_of(record, beside[number]).val.get(course.epoch) if number in beside else None
        mine_now = course.val.get(course.epoch)
        if twin is not None and mine_now is not None:
            pairs.append((mine_now, twin))
    if pairs:
        found = difference_of(pairs)
        figures.append(figure("against the control", found["mean"], "+.2f", paired(found), found=found, trend=_differences(val, control)))
    sizes = [course.parameters[course.epoch] / started(record)[number]["parameters"] for number, course in now.items() if course.epoch]
    figures.append(figure("size", mean(sizes), "x.2f", "of the bare host"))
    return figures


def gardened_figures(history: list[dict[str, Any]]) -> list[Figure]:
    """A network that grew in a loop of its user's own."""
    if not history:
        return []
    last = history[-1]
    trend = [entry["accuracy"] for entry in history]
    figures = [figure("val accuracy", last["accuracy"], note=f"{last['score']} after epoch {last['epoch']}", trend=trend)]
    return [*figures, figure("size", last["parameters"] / history[0]["parameters"], "x.2f", "of what it was after the first epoch")]


def mean_courses(record: Record) -> tuple[list[float], list[float]]:
    """Mean val accuracy by epoch, of the hosts and of their twins."""

    def find() -> tuple[list[float], list[float]]:
        mine, beside = grown(record), twins(record)
        if not record.count("hosts_trained", "epoch_finished"):
            return _summed_up(record, "hosts"), _summed_up(record, "control")
        known = courses(record) if set(mine) <= set(latest_play(record)) else {}
        of_hosts = [known.get(number, Course()) for number in mine]
        of_twins = [known.get(beside[number], Course()) for number in mine if number in beside]
        return _by_epoch(of_hosts), _by_epoch(of_twins)

    return record.remembered("means", find)


def _by_epoch(found: Sequence[Course]) -> list[float]:
    longest = max((course.epoch for course in found), default=0)
    means = [mean([value for course in found if (value := course.val.get(epoch)) is not None]) for epoch in range(1, longest + 1)]
    return [each for each in means if each is not None]


def _summed_up(record: Record, whose: str) -> list[float]:
    """The same from the summary, of a run that did not record it."""
    rows = (record.summary or {}).get(whose, [])
    values = [row["val_accuracies"] for row in rows] if isinstance(rows, list) else []
    means = [mean([float(each[epoch]) for each in values if epoch < len(each)]) for epoch in range(max(map(len, values), default=0))]
    return [each for each in means if each is not None]


def _growth(hosts: Sequence[dict[str, Any]]) -> float | None:
    return mean([host["parameters"] / host["host_parameters"] for host in hosts])


def _differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=False)]
