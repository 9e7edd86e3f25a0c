"""The report of one or several recorded runs: a page that stands by itself, with the same bytes for the same input.

Times are those of the record, in UTC; of a path only the name of the folder is shown, so that a report does not depend on where it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from esper.karn import views
from esper.karn.charts import Chart
from esper.karn.host_charts import accuracy_against_operations, accuracy_against_parameters
from esper.karn.page import Cell, Section, page, paragraph, table
from esper.karn.record import Record
from esper.karn.run_charts import CHARTS
from esper.karn.run_facts import Subject, about, flag_lines, prefix, run_column, subjects
from esper.karn.views.hosts import host_rows
from esper.simic.statistics import bounds

SHOWN_HOSTS, SHOWN_ARMS, SHOWN_NOTES = 40, 30, 20
"""Rows of each table that a report shows; a sentence says how many there are in all."""

CHARTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "Accuracy": ("How far hosts come, beside the same hosts without growth where there are any.", ("accuracy", "growth")),
    "Arms": ("What is set against each other, on the same hosts.", ("arms", "differences")),
    "Seeds": (
        "Each lane is a slot: what grew in it, from birth until it was fossilised (kept for good) or pruned (a cross).",
        ("lives", "blueprints"),
    ),
    "Decisions": ("What is decided over time, and what it earns.", ("actions", "rewards")),
    "Learning": (
        "Whether the policy gets better, how open its decisions are where there is a choice, whether its critic's values come true (on the "
        "dotted line they do), and whether an update goes too far.",
        ("returns", "entropies", "calibration", "critic", "updates"),
    ),
}
"""Sections with charts: what they are about, and the names of the charts. Costs have one chart for all runs."""


def report_page(records: Sequence[Record]) -> str:
    """The whole page. Raises EventError for a run that cannot be read, and ConfigError where there is no matplotlib."""
    found = subjects(records)
    tabled: dict[str, Callable[[Sequence[Subject]], str]] = {"Arms": _arms, "Seeds": _blueprints}
    sections = [
        Section("Red flags", flag_lines(found)),
        Section("Headline", _headline(found)),
        Section("What was run", about(found)),
    ]
    for title, (sentence, names) in CHARTED.items():
        shown = _charts(found, names) + (tabled[title](found) if title in tabled else "")
        if shown:
            sections.append(Section(title, paragraph(sentence) + shown))
        if title == "Accuracy" and (costs := _costs(found)):
            sections.append(Section("What accuracy costs", costs))
    for title, make in (("Hosts", _hosts), ("Remarks", _notes)):
        if shown := make(found):
            sections.append(Section(title, shown))
    for record in records:
        record.check()  # a damaged line shows when it is read
    return page(f"Report: {', '.join(subject.name for subject in found)}", sections, wide=len(found) > 1)


# Figures


def _headline(found: Sequence[Subject]) -> str:
    if not any(subject.overview["headline"] for subject in found):
        return paragraph("there are no figures yet")
    if len(found) == 1:
        return f'<div class="figures">{"".join(map(_card, found[0].overview["headline"]))}</div>'
    labels = list(dict.fromkeys(figure["label"] for subject in found for figure in subject.overview["headline"]))
    head = "".join(f"<th>{escape(name)}</th>" for name in ["", *(subject.name for subject in found)])
    rows = []
    for label in labels:
        figures = [{figure["label"]: figure for figure in subject.overview["headline"]}.get(label) for subject in found]
        cells = "".join(f"<td>{'' if figure is None else _figure(figure)}</td>" for figure in figures)
        rows.append(f"<tr><td>{escape(label)}</td>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table></div>'


def _card(figure: Mapping[str, Any]) -> str:
    label, note = escape(figure["label"]), escape(figure["note"])
    return f'<div class="figure">{label}<b>{_value(figure)}</b>{_interval(figure)}<small>{note}</small></div>'


def _figure(figure: Mapping[str, Any]) -> str:
    return f'{_value(figure)} {_interval(figure)}<br><span class="faint">{escape(figure["note"])}</span>'


def _value(figure: Mapping[str, Any]) -> str:
    """A figure as it is shown, with all its digits for programs."""
    value = "" if figure["value"] is None else f' value="{figure["value"]!r}"'
    return f'<data title="{escape(figure["label"])}"{value}>{escape(figure["text"])}</data>'


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None or figure["high"] is None:
        return ""
    form = "+.2f" if figure["text"].startswith(("+", "-")) else ".2f"
    return f"<small>95 % interval {escape(bounds(figure['low'], figure['high'], form))}</small>"


# Charts and tables


def _charts(found: Sequence[Subject], names: Sequence[str]) -> str:
    """Charts of these names: those of one run beside each other; of several, each name in a row of its own."""
    drawn = [[(subject, chart) for subject in found if (chart := CHARTS[name](subject.record)) is not None] for name in names]
    rows = [[_captioned(found, subject, chart) for subject, chart in row] for row in drawn]
    if all(len(row) <= 1 for row in rows):
        rows = [[each for row in rows for each in row]]
    return "".join(f'<div class="charts">{"".join(row)}</div>' for row in rows if row)


def _captioned(found: Sequence[Subject], subject: Subject, chart: Chart) -> str:
    if len(found) == 1:
        return chart.svg()
    return f"<figure><figcaption>{escape(subject.name)}</figcaption>{chart.svg()}</figure>"


def _costs(found: Sequence[Subject]) -> str:
    records, names = [subject.record for subject in found], [subject.name if len(found) > 1 else "" for subject in found]
    costs = (accuracy_against_parameters, accuracy_against_operations)
    drawn = [chart for make in costs if (chart := make(*records, names=names)) is not None]
    return f'<div class="charts">{"".join(chart.svg() for chart in drawn)}</div>' if drawn else ""


def _arms(found: Sequence[Subject]) -> str:
    rows: list[dict[str, Cell]] = []
    total, differences = 0, list[str]()
    for subject in found:
        arms = views.arms(subject.record)
        total += len(arms)
        differences += [f"{prefix(found, subject)}{arm['difference_of']}" for arm in arms if arm["difference"] is not None]
        for arm in arms[:SHOWN_ARMS]:
            row = {"arm": arm["arm"], "hosts": arm["hosts"], "score": arm["score"], "accuracy": arm["accuracy"], "size x": arm["growth"]}
            row |= {"operations": None if arm["operations"] is None else round(arm["operations"]), "fossils": arm["fossils"]}
            row |= {"difference [95 %]": _difference(arm["difference"])}
            rows.append({**run_column(found, subject), **row})
    meant = "; ".join(dict.fromkeys(differences))
    told = paragraph(f"Difference in score, host by host: {meant}.") if meant else ""
    return (table(rows) + told + _counted(len(rows), total, "arms")) if rows else ""


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['mean']:+.2f}" + ("" if found["low"] is None else f" {bounds(found['low'], found['high'])}")


def _blueprints(found: Sequence[Subject]) -> str:
    rows: list[dict[str, Cell]] = []
    for subject in found:
        for row in views.blueprints(subject.record):
            survival = None if row["survival"] is None else f"{row['survival']:.0%}"
            named = {"blueprint": row["blueprint"], **{name: row[name] for name in ("created", "fossilized", "pruned", "unfinished")}}
            rows.append({**run_column(found, subject), **named, "kept": survival, "contribution, points": row["contribution"]})
    return table(rows) if rows else ""


def _hosts(found: Sequence[Subject]) -> str:
    rows: list[dict[str, Cell]] = []
    total = 0
    for subject in found:
        hosts = [row for row in host_rows(subject.record) if row["twin_of"] is None]
        total += len(hosts)
        for host in hosts[: SHOWN_HOSTS // len(found)]:
            row: dict[str, Cell] = {
                "host": host["number"],
                "seed": str(host["seed"]),
                "controller": host["controller"],
                "round": host["round"],
            }
            row |= {"arm": host["arm"], "epochs": host["epoch"], "val": host["val_accuracy"], "test": host["test_accuracy"]}
            row |= {"control, val": host["control_accuracy"], "size x": host["parameters_x"], "germinated": host["germinated"]}
            row |= {"fossils": host["fossils"], "pruned": host["pruned"], "reward": host["reward"]}
            rows.append({**run_column(found, subject), **row})
    if not rows:
        return ""
    empty = [name for name in ("round", "arm", "test", "control, val", "controller") if all(row[name] in (None, "", 0) for row in rows)]
    kept = [{name: value for name, value in row.items() if name not in empty} for row in rows]
    return table(kept) + _counted(len(rows), total, "hosts")


def _notes(found: Sequence[Subject]) -> str:
    rows = [(subject, row) for subject in found for row in subject.record.rows("note", "sink_failed", "sink_behind")]
    texts = [f"{prefix(found, subject)}{row['text'] if row['kind'] == 'note' else _sink(row)}" for subject, row in rows]
    return "".join(map(paragraph, texts[:SHOWN_NOTES])) + _counted(min(len(texts), SHOWN_NOTES), len(texts), "remarks")


def _sink(row: Mapping[str, Any]) -> str:
    what = f"failed and was dropped: {row['error']}" if row["kind"] == "sink_failed" else f"was too slow; events dropped: {row['dropped']}"
    return f"sink {row['sink']} {what}"


# Words


def _counted(shown: int, total: int, what: str) -> str:
    return paragraph(f"{shown} of {total:,} {what}; esper query shows all.") if shown < total else ""
