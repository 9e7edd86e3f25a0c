"""A comparison as people read it: tables and a verdict in words, and the same as a page with plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from esper.cli.results import join, say
from esper.cli.tables import Row, print_rows
from esper.simic.runs.compare_config import STATIC_FINAL, SWEEP
from esper.simic.runs.comparison import RUINED
from esper.simic.statistics import LEAST_HOSTS, TOO_FEW, bounds

if TYPE_CHECKING:
    from esper.karn.charts import Chart

Summary = dict[str, Any]
WIDTH = 100
"""Columns that tables are laid out for: a pair of arms with long names and two figures with their intervals."""
WHOSE = ("of hosts", "hosts")
"""Which hosts a row is of where arms have columns."""
WHOLE = ("score", "test", "IQM", "P(better)", "ruined", "over wait", "share", "task", *WHOSE)
"""Columns that no terminal should break."""
ENDS = ("low", "mean", "high")
FRONTS = {"parameters": "size", "operations": "ops"}
"""Costs at which no other arm may be better, as the table names them."""


def print_comparison(summary: Summary) -> None:
    """All of it, for a terminal or a log."""
    say(f"\n{headline(summary)}")
    for title, rows in tables(summary).items():
        print()
        say(title)
        for columns in _pieces(rows):
            print_rows(rows, columns, wrapped=[name for name in columns if name not in WHOLE], right=["ruined"], width=WIDTH)
    print()
    for sentence in verdict(summary):
        say(sentence)
    print(f"run folder: {summary['run']}")


def _pieces(rows: Sequence[Row]) -> list[list[str]]:
    """The columns of a table; those of one with a column for each arm in pieces that fit, each beginning with what the rows are of."""
    if not {*WHOSE} <= {*rows[0]}:
        return [list(rows[0])]

    def width(columns: Sequence[str]) -> int:
        cells = {name: [len(str(row[name])) if name in WHOSE else len("100.00") for row in rows] for name in columns}
        return sum(max(len(name), *lengths) + len(" │ ") for name, lengths in cells.items())

    pieces = [[*WHOSE]]
    for arm in [name for name in rows[0] if name not in WHOSE]:
        if width([*pieces[-1], arm]) > WIDTH:
            pieces.append([*WHOSE])
        pieces[-1].append(arm)
    return pieces


def headline(summary: Summary) -> str:
    """What was compared, and what the figures mean."""
    seeds = summary["seeds"]
    hosts = f"{seeds['count']} unseen hosts of {join(summary['task'])}" + (" each" if len(summary["task"]) > 1 else "")
    return f"{hosts}, seeds from {seeds['first']}; score is the test accuracy of the harvested network in points, minus rent"


def tables(summary: Summary) -> dict[str, list[Row]]:
    """The tables by what they show: arms, every pair of them, and where hosts differ."""
    comparison = summary["comparison"]
    interval = _interval(next(iter(comparison["arms"].values()))["hosts"])
    ruined = f"ruined: hosts on which the first ended more than {RUINED:.0f} points behind"
    found = {
        f"each arm: means over hosts{interval}; operations as multiples of {_reference(summary)}'s": _arms(summary),
        "what happened, means over hosts; front: no other arm is as accurate for less": _happened(summary),
        "what the training operations went to, in millions a host": _operations(summary),
        f"every pair: the first minus the second on the same hosts{interval}": _pairs(summary),
        f"every pair: interquartile mean of that difference, probability of being better{interval}; {ruined}": _robust_pairs(summary),
        f"every pair: the difference in test accuracy, without rent{interval}": _test_pairs(summary),
    }
    if comparison["sweep"]:
        gained = f"gain in score over wait and share of the sweep's gain{interval}"
        if any(share["unbounded"] for part in comparison["sweep"] for share in part["share"].values()):
            gained += ", unbounded where that gain may be nothing"
        found[f"{_sweep(summary)}: {gained}; operations as multiples of the sweep's"] = _against_sweep(summary)
    if by_task := [part for part in comparison["members"] if not part["field"]]:
        first = next(iter(comparison["arms"]))
        found[f"by task: {first} minus each arm on the same hosts{_interval(by_task[0]['hosts'])}; {ruined}"] = _by_task(by_task)
    if comparison["members"]:
        found["score by what hosts differ in"] = _members(summary)
    return found


def _interval(hosts: int) -> str:
    """What a title says of intervals over so many hosts."""
    return f" ({TOO_FEW})" if hosts < LEAST_HOSTS else ", with 95 % intervals"


def _sweep(summary: Summary) -> str:
    return f"the sweep over {summary['sizes']} sizes"


def verdict(summary: Summary) -> list[str]:
    """A sentence for each policy that the intervals of its score bear out, with what it spent; none where there are too few hosts."""
    comparison = summary["comparison"]
    hosts = next(iter(comparison["arms"].values()))["hosts"]
    if hosts < LEAST_HOSTS:
        return [f"{TOO_FEW}, and so for a verdict: {hosts} played, {LEAST_HOSTS} needed"]
    said = []
    for policy in summary["policies"]:
        said.append(_sentence(policy, comparison["pairs"]))
        said += [_ruined(pair) for pair in comparison["pairs"] if (pair["first"], pair["second"]) == (policy, "wait")]
    return said + [sentence for part in comparison["sweep"] for sentence in _shares(part, summary)]


def _sentence(policy: str, pairs: Sequence[dict[str, Any]]) -> str:
    said: dict[str, list[str]] = {"does better than": [], "does worse than": [], "cannot be told apart from": []}
    for pair in pairs:
        if policy not in (pair["first"], pair["second"]):
            continue
        mine = pair["first"] == policy
        other, sign, found = pair["second" if mine else "first"], 1 if mine else -1, pair["score"]["difference"]
        low, high = sorted((sign * found["low"], sign * found["high"]))
        how = "does better than" if low > 0 else "does worse than" if high < 0 else "cannot be told apart from"
        spent = times(pair["operations"] if mine else 1 / pair["operations"])
        said[how].append(f"{other} ({sign * found['mean'] + 0.0:+.2f} points, {spent})")  # no -0.00
    return f"{policy} " + "; it ".join(f"{how} {join(others)}" for how, others in said.items() if others)


def _ruined(pair: dict[str, Any]) -> str:
    """How many hosts a policy made much worse than they would have been."""
    found = pair["ruined"]
    behind = f"ended more than {RUINED:.0f} points behind {pair['second']}"
    return f"{pair['first']} {behind} on {round(found['mean'] * found['n'])} of {found['n']} hosts, {_percent(found, 1)}"


def _shares(part: dict[str, Any], summary: Summary) -> list[str]:
    """Which share of a sweep's gain each policy reached, on all hosts or on those of a task; or in words why none can be said."""
    where, sweep, gain = f"on {part['task']} " if part["task"] else "", _sweep(summary), part["gain"][SWEEP]
    known = f"{_with_bounds(gain, '+')} points over wait"
    if gain["low"] is None:
        return []
    if gain["high"] < 0:
        return [f"{where}{sweep} does worse than wait ({known}), so there is no gain to reach a share of"]
    if gain["low"] <= 0:
        return [f"{where}the gain of {sweep} ({known}) cannot be told from zero, so nothing bounds which share of it is reached"]
    shares = {policy: _percent(part["share"][policy], 0) for policy in summary["policies"] if policy in part["share"]}
    spent = {policy: f"{part['operations'][policy]:.2f} times its operations" for policy in shares}
    return [f"{where}{policy} reaches {share} of the gain of {sweep} for {spent[policy]}" for policy, share in shares.items()]


def times(ratio: float) -> str:
    """How many times another arm's operations were spent, in words."""
    if 0.95 <= ratio < 1.05:
        return "for as many operations"
    return f"for {ratio:.1f} times the operations" if ratio < 9.95 else f"for {ratio:.0f} times the operations"


def _reference(summary: Summary) -> str:
    """The arm whose operations the others' are multiples of: the one that does not grow, if it is there, else the last."""
    arms = list(summary["comparison"]["arms"])
    return "wait" if "wait" in arms else arms[-1]


def _arms(summary: Summary) -> list[Row]:
    arms = summary["comparison"]["arms"]
    unit = arms[_reference(summary)]["operations"]
    return [
        {
            "arm": name,
            "score": _with_bounds(arm["score"], ""),
            "test": _with_bounds(arm["test_accuracy"], ""),
            "size x": arm["growth"],
            "operations x": arm["operations"] / unit,
        }
        for name, arm in arms.items()
    ]


def _happened(summary: Summary) -> list[Row]:
    arms, fronts = summary["comparison"]["arms"], summary["comparison"]["front"]
    return [
        {
            "arm": name,
            "seeds": arm["germinated"],
            "fossils": arm["fossilized"],
            "pruned": arm["pruned"],
            "rollbacks": arm["rollbacks"],
            "parameters": round(arm["parameters"]),
            "seconds": summary["wall_clock"][name] / arm["hosts"],
            "front": ", ".join(word for cost, word in FRONTS.items() if name in fronts[cost]),
        }
        for name, arm in arms.items()
    ]


def _operations(summary: Summary) -> list[Row]:
    parts = ("forward", "backward", "validation", "counterfactual")
    return [
        {"arm": name, "epochs": arm["epochs"], **{part: arm[part] / 1e6 for part in parts}, "all": arm["operations"] / 1e6}
        for name, arm in summary["comparison"]["arms"].items()
    ]


def _pairs(summary: Summary) -> list[Row]:
    return [
        {
            "first": pair["first"],
            "second": pair["second"],
            "score": _with_bounds(pair["score"]["difference"], "+"),
            "operations x": pair["operations"],
        }
        for pair in summary["comparison"]["pairs"]
    ]


def _robust_pairs(summary: Summary) -> list[Row]:
    return [
        {
            "first": pair["first"],
            "second": pair["second"],
            "IQM": _with_bounds(pair["score"]["iqm"], "+"),
            "P(better)": _with_bounds(pair["score"]["improvement"], ""),
            "ruined": f"{100 * pair['ruined']['mean']:.1f} %",
        }
        for pair in summary["comparison"]["pairs"]
    ]


def _test_pairs(summary: Summary) -> list[Row]:
    return [
        {
            "first": pair["first"],
            "second": pair["second"],
            "test": _with_bounds(pair["test_accuracy"]["difference"], "+"),
            "parameters x": pair["parameters"],
        }
        for pair in summary["comparison"]["pairs"]
    ]


def _against_sweep(summary: Summary) -> list[Row]:
    """The policies that were named, what the first of them grew as a static network, and the sweep itself."""
    parts = summary["comparison"]["sweep"]
    shown = [arm for arm in parts[0]["share"] if arm in (*summary["policies"], STATIC_FINAL)]
    return [
        {
            **({"task": part["task"] or "all"} if len(parts) > 1 else {}),
            "arm": arm,
            "over wait": _with_bounds(part["gain"][arm], "+"),
            "share": "100 %" if arm == SWEEP else _share(part["share"][arm], part["gain"][SWEEP]["mean"]),
            "operations x": 1.0 if arm == SWEEP else part["operations"][arm],
        }
        for part in parts
        for arm in (*shown, SWEEP)
    ]


def _share(found: dict[str, Any], gain: float) -> str:
    """A share of a sweep's gain, or why it says nothing."""
    if gain <= 0:
        return "no gain to share"
    return f"{_percent(found, 0)}, but unbounded" if found["unbounded"] else _percent(found, 0)


def _by_task(parts: Sequence[dict[str, Any]]) -> list[Row]:
    return [
        {
            "task": part["task"],
            "hosts": part["hosts"],
            "arm": arm,
            "score": _with_bounds(difference, "+"),
            "ruined": _percent(part["ruined"][arm], 1),
        }
        for part in parts
        for arm, difference in part["against"].items()
    ]


def _members(summary: Summary) -> list[Row]:
    parts = summary["comparison"]["members"]
    named = len({part["task"] for part in parts}) > 1
    return [
        {
            "of hosts": " ".join(filter(None, [part["task"] if named else "", part["field"], str(part["value"])])),
            "hosts": part["hosts"],
            **part["score"],
        }
        for part in parts
    ]


def _with_bounds(found: dict[str, Any], sign: str) -> str:
    text = f"{found['mean']:{sign}.2f}"
    return text if found["low"] is None else f"{text} {bounds(found['low'], found['high'], f'{sign}.2f')}"


def _percent(found: dict[str, Any], digits: int) -> str:
    """A share with its bounds, where it has some."""
    low, mean, high = (None if found[end] is None else f"{round(100 * found[end], digits) + 0.0:.{digits}f} %" for end in ENDS)
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


# The page


def make_page(summary: Summary) -> str:
    """A page that stands by itself: the verdict, the fronts as plots, and the tables."""
    from esper.karn.page import Section, charts, page, paragraph, table

    about = [headline(summary), f"made by: {summary['command']}"]
    sections = [
        Section("Verdict", "".join(paragraph(text) for text in [*verdict(summary), *about])),
        Section(
            "Fronts", charts(_front(summary, "parameters"), _front(summary, "operations")) + "".join(map(paragraph, _on_fronts(summary)))
        ),
    ]
    sections += [Section(f"{title[0].upper()}{title[1:]}", table(rows)) for title, rows in tables(summary).items()]
    return page("Comparison on " + join(summary["task"]), sections)


def _front(summary: Summary, cost: str) -> Chart:
    """Accuracy against what it costs, a point for each arm. No rent has to be believed in here."""
    from esper.karn.charts import Series, points

    series = []
    for name, arm in summary["comparison"]["arms"].items():
        found = arm["test_accuracy"]
        ends: dict[str, Any] = {} if found["low"] is None else {"low": [found["low"]], "high": [found["high"]]}
        series.append(Series(name, [arm[cost]], [found["mean"]], **ends))
    words = {"parameters": "parameters of the harvested network", "operations": "training operations of a host"}
    return points(series, title=f"Accuracy against {cost}", x_label=words[cost], y_label="test accuracy, points", log_x=True)


def _on_fronts(summary: Summary) -> list[str]:
    return [f"No other arm is as accurate for fewer {cost}: {join(arms)}." for cost, arms in summary["comparison"]["front"].items()]
