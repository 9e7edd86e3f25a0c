"""The few figures that a run is about, each with its interval and its course. Of a finished run they are those of its summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from esper.karn.record import SUMMARY, Record
from esper.karn.views.arms import arms
from esper.karn.views.hosts import Course, course_of, courses, finished, grown, latest_play, started, twins
from esper.karn.views.learning import RETURN, rounds
from esper.karn.views.plain import mean, thinned
from esper.leyline.errors import RunError
from esper.simic.statistics import TOO_FEW, interval, paired_difference

Figure = dict[str, Any]
"""label, value, text (as it is shown), low, high, note (against what, of how many hosts), trend (its course so far)."""
Curve = tuple[list[float], str]
"""A small curve, and what it shows."""


def figure(
    label: str, value: float | None, form: str = ".2f", note: str = "", *, found: Any = None, trend: Sequence[float | None] = ()
) -> Figure:
    """One figure. found: a table with the bounds of its interval. form: how it is shown, "x" in front for multiples."""
    prefix, form = ("x", form[1:]) if form.startswith("x") else ("", form)
    bounds = found or {}
    return {
        "label": label,
        "value": value,
        "text": "-" if value is None else prefix + format(value, form),
        "low": bounds.get("low"),
        "high": bounds.get("high"),
        "note": note,
        "trend": thinned([each for each in trend if each is not None]),
    }


def headline(record: Record, method: str) -> list[Figure]:
    """The figures of a run of that kind; the first is what it is judged by. Raises RunError for a summary that lacks figures."""
    try:
        return _figures(record, method)
    except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        if record.summary is None:
            raise
        raise RunError(f"{record.path / SUMMARY} was edited: it lacks figures") from error


def _figures(record: Record, method: str) -> list[Figure]:
    summary = record.summary or {}
    by_key: dict[str, Callable[[Record, dict[str, Any]], list[Figure]]] = {
        "examination": _examined,
        "comparison": _compared,
        "adaptivity": _headroom,
        "search": _searched,
        "sweep": _swept,
        "study": _studied,
    }
    for key, make in by_key.items():
        if key in summary:
            return make(record, summary)
    if "hosts" in summary:
        return _grown(record, summary)
    if "history" in summary:
        return _gardened(summary["history"])
    running: dict[str, Callable[[Record], list[Figure]]] = {"learn": _learning, "bc": _passes, "iql": _passes, "headroom": _plans}
    if method in ("compare", "tune", "sweep"):
        return _ahead(record)
    return running.get(method, _growing)(record)


def curve(record: Record, method: str) -> Curve:
    """The small curve of a run of that kind."""
    if method == "learn":
        return _metric(record, RETURN), "return by round"
    if method in ("bc", "iql"):
        return _metric(record, "held_out/log_likelihood"), "held-out log-likelihood by pass"
    if method == "headroom":
        return thinned([row["score"] for row in record.rows("plans_played") if row["best"]]), "best score by round"
    if method in ("compare", "tune", "sweep"):
        return thinned([row["score"] for row in arms(record) if row["score"] is not None]), "score by arm"
    val, _ = _means(record)
    return thinned(val), "val accuracy by epoch"


# Hosts under a controller


def _grown(record: Record, summary: dict[str, Any]) -> list[Figure]:
    hosts = summary["hosts"]
    split = "val" if hosts[0]["test_accuracy"] is None else "test"
    values = [float(host[f"{split}_accuracy"]) for host in hosts]
    val, control = _means(record)
    shown = val or [each for each in _mean_course([host["val_accuracies"] for host in hosts]) if each is not None]
    figures = [figure(f"{split} accuracy", mean(values), note=_over(len(hosts), "harvested network"), found=_interval(values), trend=shown)]
    if "against_control" in summary:
        found, spent = summary["against_control"][f"{split}_accuracy"], summary["operations_x"]
        figures.append(figure("against the control", found["mean"], "+.2f", _paired(found), found=found, trend=_differences(val, control)))
        figures.append(figure("size", _growth(hosts), "x.2f", "of the bare host"))
        share = f"of the same hosts without growth, x{spent['counterfactual']:.1f} of it for counterfactuals"
        figures.append(figure("operations", spent["all"], "x.1f", share))
    else:
        figures.append(figure("size", _growth(hosts), "x.2f", "of the bare host"))
    germinated = mean([host["germinated"] for host in hosts])
    figures.append(figure("fossils", mean([host["fossilized"] for host in hosts]), note=f"a host, of {germinated:.2f} seeds germinated"))
    return figures


def _growing(record: Record) -> list[Figure]:
    """Hosts that have not all ended: as they stand, harvested or not."""
    mine, beside = grown(record), twins(record)
    now = {number: course_of(record, number) for number in mine}
    values = [value for course in now.values() if (value := course.val.get(course.epoch)) is not None]
    if not values:
        return []
    val, control = _means(record)
    figures = [figure("val accuracy", mean(values), note=_over(len(values), "host"), found=_interval(values), trend=val)]
    pairs = []
    for number, course in now.items():
        twin = course_of(record, beside[number]).val.get(course.epoch) if number in beside else None
        mine_now = course.val.get(course.epoch)
        if twin is not None and mine_now is not None:
            pairs.append((mine_now, twin))
    if pairs:
        found = _difference(pairs)
        figures.append(figure("against the control", found["mean"], "+.2f", _paired(found), found=found, trend=_differences(val, control)))
    sizes = [course.parameters[course.epoch] / started(record)[number]["parameters"] for number, course in now.items() if course.epoch]
    figures.append(figure("size", mean(sizes), "x.2f", "of the bare host"))
    return figures


def _gardened(history: list[dict[str, Any]]) -> list[Figure]:
    """A network that grew in a loop of its user's own."""
    if not history:
        return []
    last = history[-1]
    trend = [entry["accuracy"] for entry in history]
    figures = [figure("val accuracy", last["accuracy"], note=f"{last['score']} after epoch {last['epoch']}", trend=trend)]
    return [*figures, figure("size", last["parameters"] / history[0]["parameters"], "x.2f", "of what it was after the first epoch")]


def _means(record: Record) -> tuple[list[float], list[float]]:
    """Mean val accuracy by epoch, of the hosts and of their twins."""

    def find() -> tuple[list[float], list[float]]:
        mine, beside = grown(record), twins(record)
        known = courses(record) if set(mine) <= set(latest_play(record)) else {}
        of_hosts = [known.get(number, Course()) for number in mine]
        of_twins = [known.get(beside[number], Course()) for number in mine if number in beside]
        return _by_epoch(of_hosts), _by_epoch(of_twins)

    return record.remembered("means", find)


def _by_epoch(found: Sequence[Course]) -> list[float]:
    longest = max((course.epoch for course in found), default=0)
    means = [mean([value for course in found if (value := course.val.get(epoch)) is not None]) for epoch in range(1, longest + 1)]
    return [each for each in means if each is not None]


def _mean_course(values: Sequence[Sequence[float]]) -> list[float | None]:
    return [mean([float(each[epoch]) for each in values if epoch < len(each)]) for epoch in range(max(map(len, values)))]


# A policy that learns


def _examined(record: Record, summary: dict[str, Any]) -> list[Figure]:
    examination = summary["examination"]
    policy = examination["arms"]["policy"]
    scores = [row["policy_score"] for row in examination.get("rows", ())]
    note = f"val accuracy minus rent, {_over(examination['hosts'], 'unseen host')}" if "hosts" in examination else "val accuracy minus rent"
    figures = [figure("score", policy["score"], note=note, found=_interval(scores), trend=_metric(record, "rollout/accuracy"))]
    for arm, found in examination.get("policy_against", {}).items():
        figures.append(figure(f"against {arm}", found["mean"], "+.2f", _paired(found), found=found))
    if "growth" in policy:
        figures.append(figure("size", policy["growth"], "x.2f", "of the bare host", trend=_metric(record, "rollout/growth")))
        if "wait" in examination["arms"]:
            spent = policy["operations"] / examination["arms"]["wait"]["operations"]
            figures.append(figure("operations", spent, "x.1f", "of the same hosts without growth"))
    return figures


def _learning(record: Record) -> list[Figure]:
    found = rounds(record)
    if not found["rounds"]:
        return []
    shown = (
        (RETURN, "return", "+.3f", "of an episode"),
        ("rollout/accuracy", "val accuracy", ".2f", "of harvested networks"),
        ("rollout/against_control", "against the control", "+.2f", ""),
        ("rollout/growth", "size", "x.2f", "of the bare host"),
        ("rollout/fossils", "fossils", ".2f", "a host"),
        ("train/explained_variance", "explained variance", ".2f", "of returns, by the critic"),
        ("train/entropy/op", "op entropy", ".2f", "1 is drawn by lot"),
    )
    figures = []
    for name, label, form, note in shown:
        if name not in found["metrics"]:
            continue
        course = found["metrics"][name]
        bounds = _last_round(record) if name == "rollout/against_control" else None
        note = _paired(bounds) + " of the last round" if bounds else note
        figures.append(figure(label, course[-1], form, note, found=bounds, trend=course))
    return figures


def _last_round(record: Record) -> dict[str, Any] | None:
    """The hosts of the last round that ended against their twins."""
    ended = [finished(record)[number] for number in grown(record) if number in finished(record)]
    last = max((started(record)[row["host"]]["round"] for row in ended), default=0)
    pairs = [
        (row["val_accuracy"], row["control_accuracy"])
        for row in ended
        if started(record)[row["host"]]["round"] == last and row["control_accuracy"] is not None and row["val_accuracy"] is not None
    ]
    return _difference(pairs) if pairs and last == rounds(record)["rounds"][-1] else None


def _studied(record: Record, summary: dict[str, Any]) -> list[Figure]:
    study = summary["study"]
    found = study["agreement"]
    held_out = f"of decisions on {study['held_out']} held-out episodes"
    shown = (("accuracy/op", "op agreed"), ("accuracy/decision", "whole decision agreed"), ("accuracy/acts", "acts agreed"))
    return [
        figure(label, found[name], ".1%", held_out, trend=_metric(record, f"held_out/{name}")) for name, label in shown if name in found
    ]


def _passes(record: Record) -> list[Figure]:
    shown = (("held_out/accuracy/op", "op agreed", ".1%"), ("held_out/log_likelihood", "log-likelihood", ".3f"))
    return [
        figure(label, course[-1], form, "on held-out hosts", trend=course)
        for name, label, form in shown
        if (course := _metric(record, name))
    ]


# Runs that play many hosts to find something out


def _compared(record: Record, summary: dict[str, Any]) -> list[Figure]:
    first = summary["policies"][0]
    found = summary["comparison"]["arms"][first]
    note = f"test accuracy minus rent, {_over(found.get('hosts', 0), 'unseen host')}"
    figures = [figure(f"score of {first}", found["score"]["mean"], note=note, found=found["score"])]
    for pair in summary["comparison"].get("pairs", ()):
        if pair["first"] == first:
            difference = pair["score"]["difference"]
            figures.append(figure(f"against {pair['second']}", difference["mean"], "+.2f", _paired(difference), found=difference))
    return figures


def _headroom(record: Record, summary: dict[str, Any]) -> list[Figure]:
    found = summary["adaptivity"]
    figures = [
        figure("by deciding for each host", found["during"]["mean"], "+.2f", "points of score, from what it shows", found=found["during"])
    ]
    if "before" in found:
        figures.append(figure("by what is known before", found["before"]["mean"], "+.2f", "points of score", found=found["before"]))
    if "best" in summary:
        best = summary["best"]
        figures.append(figure("best single plan", best["score"]["mean"], note=best["described"], found=best["score"]))
    return figures


def _plans(record: Record) -> list[Figure]:
    played = [row for row in record.rows("plans_played") if row["best"]]
    if not played:
        return []
    note = f"{played[-1]['best']}, of {played[-1]['plans']} plans"
    return [figure("best score", played[-1]["score"], note=note, trend=[row["score"] for row in played])]


def _searched(record: Record, summary: dict[str, Any]) -> list[Figure]:
    fresh = summary["search"]["fresh"]
    if fresh is None:
        return [{**figure("found", None, note="nothing better than the present settings"), "text": "nothing better"}]
    difference = fresh["difference"]
    note = f"the best minus the present settings, {_over(fresh['hosts'], 'fresh host')}"
    return [figure("gained", difference["mean"], "+.2f", note, found=difference)]


def _swept(record: Record, summary: dict[str, Any]) -> list[Figure]:
    best = summary["sweep"]["points"][0]
    if best["failed"]:
        return [{**figure("best score", None, note="every point failed"), "text": "every point failed"}]
    values = ", ".join(f"{key} {value}" for key, value in best.get("values", {}).items())
    return [figure("best score", best["score"]["mean"], note=f"point {best['point']}: {values}", found=best["score"])]


def _ahead(record: Record) -> list[Figure]:
    """The arm that came furthest and did best so far."""
    ranked = sorted((row for row in arms(record) if row["score"] is not None), key=lambda row: (-row["hosts"], -row["score"]))
    return (
        [figure("best score so far", ranked[0]["score"], note=f"{ranked[0]['arm']}, {_over(ranked[0]['hosts'], 'host')}")] if ranked else []
    )


# Words and numbers


def _metric(record: Record, name: str) -> list[float]:
    return thinned([value for value in rounds(record)["metrics"].get(name, ()) if value is not None])


def _growth(hosts: Sequence[dict[str, Any]]) -> float | None:
    return mean([host["parameters"] / host["host_parameters"] for host in hosts])


def _interval(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    found = interval(values)
    return {"low": found.low, "high": found.high}


def _difference(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return {"mean": found.mean, "low": found.low, "high": found.high, "wins": found.wins, "pairs": found.pairs}


def _differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=False)]


def _paired(found: dict[str, Any]) -> str:
    few = f", {TOO_FEW}" if found["low"] is None else ""
    return f"better on {found['wins']} of {found['pairs']} hosts{few}"


def _over(count: int, what: str) -> str:
    return f"mean of {count} {what}s" if count != 1 else f"one {what}"
