"""Charts of the hosts of a run: how far they come, how they grow, what that costs, and the lives of their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper.karn import views
from esper.karn.chart_values import FEW, POINTS, SIZE, by_round, numbers, quantile
from esper.karn.charts import Chart, Lane, Series, Span, bars, fan, lanes, lines, points
from esper.karn.charts.style import STAGES
from esper.karn.record import Record
from esper.karn.views.hosts import course_of, courses, grown, host_rows, latest_play, started, twins
from esper.karn.views.overview import method_of
from esper.simic.runs.resuming import PRACTICE

LANES = 40
"""Lanes that a chart of lives has room for."""
NAMED = 4
"""Arms whose names stand beside their points, the best ones, where there are too many for all."""
FAN = "median, middle half, middle 80 %"
QUANTILES = {"10": 0.1, "25": 0.25, "50": 0.5, "75": 0.75, "90": 0.9}
BY_EPOCH = ("run", "gardener")
"""Kinds of run that are about hosts from epoch to epoch."""


def accuracy(record: Record) -> Chart | None:
    """Val accuracy by epoch beside the control's; of a policy that learns, by round; of one that imitates, how often it agrees."""
    method = method_of(record)
    if method in PRACTICE:
        return _played(record)
    if method in ("bc", "iql"):
        shown = {"accuracy/op": "op", "accuracy/decision": "whole decision", "accuracy/acts": "where it acted", "waiting": "always waiting"}
        shares = {f"held_out/{name}": word for name, word in shown.items()}
        return by_round(record, "Agreement on held-out episodes", "share of decisions", shares, x_label="pass")
    if method == "headroom":
        played = [row for row in record.rows("plans_played") if row["best"]]
        course = Series("best", [row["episodes"] for row in played], numbers([row["score"] for row in played]))
        return lines([course], title="Score of the best plan so far", x_label="episodes", y_label=POINTS) if played else None
    if method not in BY_EPOCH:
        return None
    words: dict[str, Any] = {"title": "Val accuracy by epoch", "x_label": "epoch", "y_label": POINTS}
    mine, beside = grown(record), twins(record)
    if len(mine) > FEW:
        found, control = views.distribution(record), _medians(record, [beside[number] for number in mine if number in beside])
        if not found["epochs"]:
            return None
        quantiles = {name: numbers(values) for name, values in found["quantiles"].items()}
        words["title"] = f"Val accuracy of {len(mine)} hosts: {FAN}"
        return fan(found["epochs"], quantiles, [control] if control.y else [], **words)
    series = []
    for place, number in enumerate(mine):
        course = views.host(record, number)["curve"]
        series.append(Series(f"host {number}", course["epochs"], numbers(course["val"]), colour=place, dash=0))
        if any(value is not None for value in course["control"]):
            series.append(Series(f"control of {number}", course["epochs"], numbers(course["control"]), colour=place, dash=2))
    return lines(series, **words, whole_x=True) if any(each.y for each in series) else None


def growth(record: Record) -> Chart | None:
    """How much larger hosts become: by epoch, or by round where a policy learns."""
    if method_of(record) in PRACTICE:
        return by_round(record, "Size of the networks that were grown", SIZE, {"rollout/growth": "size"})
    if method_of(record) not in BY_EPOCH:
        return None
    mine = grown(record)
    sizes = {number: _multiples(record, number) for number in mine}
    if len(mine) > FEW:
        epochs = sorted({epoch for size in sizes.values() for epoch in size})
        by_epoch = [[size[epoch] for size in sizes.values() if epoch in size] for epoch in epochs]
        ends = {name: [quantile(values, share) for values in by_epoch] for name, share in QUANTILES.items()}
        return fan(epochs, ends, title=f"Size of {len(mine)} hosts: {FAN}", x_label="epoch", y_label=SIZE) if epochs else None
    series = [Series(f"host {number}", list(size), list(size.values()), dash=0) for number, size in sizes.items()]
    return lines(series, title="Size by epoch", x_label="epoch", y_label=SIZE, whole_x=True) if any(each.y for each in series) else None


def accuracy_against_parameters(*records: Record, names: Sequence[str] = ("",)) -> Chart | None:
    """What accuracy costs in parameters: every host beside its control, or every arm. Several runs are drawn in one chart, by names."""
    return _against(records, names, "parameters")


def accuracy_against_operations(*records: Record, names: Sequence[str] = ("",)) -> Chart | None:
    """The same in operations."""
    return _against(records, names, "operations")


def lives(record: Record) -> Chart | None:
    """Swim lanes: the seeds of every slot of every host, from birth to what became of them. Of a policy that learns, the last round's."""
    every = views.lives(record)
    rounds = {number: row["round"] for number, row in started(record).items() if number in set(grown(record))}
    latest = max((rounds[life["host"]] for life in every if life["host"] in rounds), default=0)
    by_slot: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for life in every:
        if rounds.get(life["host"]) == latest:
            by_slot.setdefault((life["host"], life["slot"]), []).append(life)
    if not by_slot:
        return None
    order = {(host, slot): place for host in rounds for place, slot in enumerate(started(record)[host]["slots"])}
    shown = sorted(by_slot, key=lambda key: (key[0], order[key]))
    ends = {row["number"]: row["epoch"] for row in host_rows(record)}
    rows = [_lane(host, slot, by_slot[host, slot], ends[host]) for host, slot in shown[:LANES]]
    more = f"and {len(shown) - LANES} slots more, of {len({host for host, _ in shown})} hosts" if len(shown) > LANES else ""
    title = "Lives of the seeds" + (f" in round {latest}" if latest else "")
    return lanes(rows, title=title, x_label="epoch", end=max(ends[host] for host, _ in shown[:LANES]), note=more)


def blueprints(record: Record) -> Chart | None:
    """What became of the seeds of each blueprint."""
    found = views.blueprints(record)
    colours = {"fossilized": 2, "pruned": 6, "unfinished": 3}
    series = [Series(name, range(len(found)), [row[name] for row in found], colour=colour) for name, colour in colours.items()]
    return bars([row["blueprint"] for row in found], series, title="Seeds by blueprint", y_label="seeds") if found else None


# What they share


def _against(records: Sequence[Record], names: Sequence[str], cost: str) -> Chart | None:
    """Accuracy against a cost: parameters or operations."""
    armed = [bool(views.arms(record)) for record in records]
    # Arms have no size of their own, only multiples, and so has whatever is drawn beside them.
    relative = cost == "parameters" and (any(armed) or len(records) > 1)
    series: list[Series] = []
    for record, has_arms, name in zip(records, armed, names, strict=True):
        prefix = f"{name}: " if name else ""
        if has_arms:
            series += _arm_points(views.arms(record), "growth" if relative else cost, prefix)
        else:
            series += _host_points(record, "parameters_x" if relative else cost, prefix)
    if not series:
        return None
    label = "operations spent on a host" if cost == "operations" else SIZE if relative else "parameters of the harvested network"
    splits = {_split(record, has_arms) for record, has_arms in zip(records, armed, strict=True)}
    accuracy = f"{splits.pop()} accuracy" if len(splits) == 1 else "accuracy"
    return points(series, title=f"Accuracy against {cost}", x_label=label, y_label=f"{accuracy}, points", log_x=True)


def _arm_points(found: Sequence[Mapping[str, Any]], cost: str, prefix: str) -> list[Series]:
    """A point for each arm: as a series of its own where they are few, else with the names of the best beside them."""
    shown = [row for row in found if row[cost] is not None and row["accuracy"] is not None]
    if len(shown) <= FEW + 1:
        return [Series(f"{prefix}{row['arm']}", [row[cost]], [row["accuracy"]]) for row in shown]
    best = sorted(row["score"] for row in shown)[-NAMED:]
    labels = [row["arm"] if row["score"] in best else "" for row in shown]
    return [Series(f"{prefix}all", [row[cost] for row in shown], [row["accuracy"] for row in shown], labels=labels)]


def _host_points(record: Record, cost: str, prefix: str) -> list[Series]:
    """Every host that has ended, and its control."""
    accuracy, mine = f"{_split(record)}_accuracy", set(grown(record))
    series = []
    for name, wanted in (("hosts", mine), ("controls", {twin for host, twin in twins(record).items() if host in mine})):
        rows = [row for row in host_rows(record) if row["number"] in wanted and row["ended"] and row[accuracy] is not None]
        if rows:
            series.append(Series(f"{prefix}{name}", [row[cost] for row in rows], [row[accuracy] for row in rows]))
    return series


def _split(record: Record, has_arms: bool = False) -> str:
    """The split that accuracies of a run are on: test where hosts were measured on it; of arms, in a comparison alone."""
    if has_arms:
        return "test" if method_of(record) == "compare" else "val"
    ended = [row for row in host_rows(record) if row["ended"]]
    return "test" if ended and all(row["test_accuracy"] is not None for row in ended) else "val"


def _played(record: Record) -> Chart | None:
    """Val accuracy of the hosts of each round in which a policy learns, and of their controls."""
    found = views.rounds(record)
    val, ahead = (numbers(found["metrics"].get(f"rollout/{name}", ())) for name in ("accuracy", "against_control"))
    series = [Series("val accuracy", found["rounds"], val)] if val else []
    if ahead:
        series.append(
            Series("of the same hosts without growth", found["rounds"], [mine - more for mine, more in zip(val, ahead, strict=True)])
        )
    words: dict[str, Any] = {"title": "Val accuracy of the hosts of each round", "x_label": "round", "y_label": POINTS}
    return lines(series, **words, whole_x=True) if series else None


def _lane(host: int, slot: str, seeds: Sequence[Mapping[str, Any]], end: int) -> Lane:
    spans, ends = [], []
    for seed in seeds:
        last = end if seed["ended"] is None else seed["ended"]
        stages = seed["stages"] or [[seed["born"], "LIVED"]]
        if not seed["stages"] and seed["outcome"] == "fossilized":
            stages.append([last, "FOSSILIZED"])
        closing = end if seed["outcome"] == "fossilized" else last
        brought = "" if seed["contribution"] is None else f", {seed['contribution']:+.2f} points"
        longest = max(_lengths(stages, closing), default=0)
        for (epoch, stage), wide in zip(stages, _lengths(stages, closing), strict=True):
            if stage not in STAGES or stage == "PRUNED" or wide <= 0:
                continue
            when = f"{stage.lower()} from epoch {epoch} to {epoch + wide}"
            about = f"host {host}, {slot}: {seed['blueprint']}, {when}; {seed['outcome']}{brought}"
            label = seed["blueprint"] if wide == longest else ""
            spans.append(Span(start=epoch, end=epoch + wide, stage=stage, label=label, about=about))
        if seed["outcome"] == "pruned":
            ends.append(last)
    return Lane(name=f"host {host} · {slot}", spans=spans, ends=ends)


def _lengths(stages: Sequence[Sequence[Any]], closing: int) -> list[int]:
    """Epochs that each stage lasted."""
    return [
        after - before for before, after in zip([epoch for epoch, _ in stages], [*(epoch for epoch, _ in stages[1:]), closing], strict=True)
    ]


def _medians(record: Record, numbers: Sequence[int]) -> Series:
    """The median course of some hosts of the latest play."""
    known = [courses(record)[number].val for number in numbers if number in courses(record) and number in latest_play(record)]
    epochs = sorted({epoch for course in known for epoch in course})
    values = [[value for course in known if (value := course.get(epoch)) is not None] for epoch in epochs]
    return Series("control, median", epochs, [quantile(each, 0.5) for each in values])


def _multiples(record: Record, number: int) -> dict[int, float]:
    """A host's parameters by epoch, as multiples of those it began with."""
    bare = started(record)[number]["parameters"]
    return {epoch: parameters / bare for epoch, parameters in sorted(course_of(record, number).parameters.items())}
