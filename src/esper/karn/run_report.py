"""The report of one or several recorded runs: a page that stands by itself, with the same bytes for the same input.

Times are those of the record, in UTC; of a path only the name of the folder is shown, so that a report does not depend on where it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from html import escape
from pathlib import Path
from typing import Any

from esper.karn import views
from esper.karn.charts import Chart
from esper.karn.page import Cell, Section, page, paragraph, table
from esper.karn.record import Record
from esper.karn.run_charts import CHARTS, accuracy_against_operations, accuracy_against_parameters
from esper.karn.views.hosts import host_rows
from esper.leyline.config import to_mapping
from esper.simic.runs.configs import CONFIGS
from esper.simic.runs.resuming import resume_command
from esper.simic.statistics import bounds

SHOWN_HOSTS, SHOWN_ARMS, SHOWN_FLAGS, SHOWN_NOTES = 40, 30, 40, 20
"""Rows of each table that a report shows; a sentence says how many there are in all."""

WHAT = {
    "run": "hosts under a controller",
    "learn": "a policy that learns by playing (PPO)",
    "bc": "a policy that imitates recorded runs",
    "iql": "a policy that learns offline from recorded runs (implicit Q-learning)",
    "compare": "a comparison of policies and baselines on the same unseen hosts",
    "headroom": "a search for what could be won",
    "tune": "a search of a controller's settings",
    "sweep": "one run for each of several values of a setting",
    "gardener": "growth in a training loop of its user's own",
}
"""What each kind of run is."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run in a report."""

    name: str
    record: Record
    overview: Mapping[str, Any]


def report_page(records: Sequence[Record]) -> str:
    """The whole page. Raises EventError for a run that cannot be read, and ConfigError where there is no matplotlib."""
    found = subjects(records)
    tabled: dict[str, Callable[[Sequence[Subject]], str]] = {"Arms": _arms, "Seeds": _blueprints}
    sections = [
        Section("Red flags", _flags(found)),
        Section("Headline", _headline(found)),
        Section("What was run", _about(found)),
    ]
    for title, (about, names) in CHARTED.items():
        shown = _charts(found, names) + (tabled[title](found) if title in tabled else "")
        if shown:
            sections.append(Section(title, paragraph(about) + shown))
        if title == "Accuracy" and (costs := _costs(found)):
            sections.append(Section("What accuracy costs", costs))
    for title, make in (("Hosts", _hosts), ("Remarks", _notes)):
        if shown := make(found):
            sections.append(Section(title, shown))
    return page(f"Report: {', '.join(subject.name for subject in found)}", sections, wide=len(found) > 1)


def subjects(records: Sequence[Record]) -> list[Subject]:
    """Runs with the names of their folders, told apart by a number where two are called the same."""
    names: list[str] = []
    found = []
    for record in records:
        record.check()
        plain = record.path.resolve().name
        names.append(plain)
        count = names.count(plain)
        name = plain if count == 1 else f"{plain} ({count})"
        found.append(Subject(name=name, record=record, overview=views.overview(record)))
    return found


def run_charts(record: Record) -> dict[str, Chart]:
    """Every chart that there is of a run, by name."""
    return {name: chart for name, make in CHARTS.items() if (chart := make(record)) is not None}


# What the run is


def _flags(found: Sequence[Subject]) -> str:
    parts = [_flag(sentence) for subject in found if (sentence := _unfinished(subject))]
    for subject in found:
        flags = subject.overview["flags"]
        for flag in flags[:SHOWN_FLAGS]:
            places = [f"host {flag['host']}" if flag["host"] is not None else "", f"epoch {flag['epoch']}" if flag["epoch"] else ""]
            where = ", ".join(filter(None, [*places, f"round {flag['round']}"]))
            parts.append(_flag(f"{_prefix(found, subject)}{flag['detector'].replace('_', ' ')} ({where}): {flag['text']}"))
        if len(flags) > SHOWN_FLAGS:
            parts.append(paragraph(f"{_prefix(found, subject)}the first {SHOWN_FLAGS} of {len(flags)}"))
    none = [subject.name for subject in found if not subject.overview["flags"]]
    if len(none) == len(found):
        parts.append(paragraph("none was raised"))
    elif none:
        parts.append(paragraph(f"none was raised by {', '.join(none)}"))
    return "".join(parts)


def _unfinished(subject: Subject) -> str:
    """How a run stands that has not ended."""
    status, progress = subject.overview["status"], subject.overview["progress"]
    if status == "finished":
        return ""
    far = f"{progress['done']} of {progress['total']} {_plural(progress['unit'])} done"
    if subject.overview["go_on"] is None:
        return f"{subject.name} is {'still running' if status == 'running' else status}: {far}; this is how it stands"
    command = resume_command(subject.overview["method"], Path(subject.name))
    return f"{subject.name} is {status}: {far}; to go on, in the folder that holds it: {command}"


def _about(found: Sequence[Subject]) -> str:
    columns = [_facts(subject) for subject in found]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    rows: list[dict[str, Cell]] = [
        {"": label, **{subject.name: column.get(label, "") for subject, column in zip(found, columns, strict=True)}} for label in labels
    ]
    commands = "".join(f"<pre>{escape(subject.overview['command'])}</pre>" for subject in found)
    settings: list[dict[str, Cell]] = [
        {**_run(found, subject), "setting": key, "value": value, "default": default}
        for subject in found
        for key, value, default in changed_settings(subject.record)
    ]
    return commands + table(rows) + (paragraph("Settings that are not the default:") + table(settings) if settings else "")


def _facts(subject: Subject) -> dict[str, str]:
    seen, record = subject.overview, subject.record
    progress, about = seen["progress"], seen["about"]
    facts = {
        "kind": WHAT.get(seen["method"], seen["method"]),
        "status": f"{seen['status']}, {progress['done']} of {progress['total']} {_plural(progress['unit'])}",
        "task": seen["task"],
        "controller": seen["controller"] or "",
        "seed": str(seen["seed"]),
        "began": f"{record.info.created.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "versions": ", ".join(f"{name} {version}" for name, version in seen["versions"].items()),
        "machine": ", ".join(_machine(seen["machine"])),
        "engine": ", ".join(str(about[name]) for name in ("engine", "engine_why", "devices") if name in about),
        "events": f"{progress['events']:,}",
    }
    return {name: text for name, text in facts.items() if text}


def _machine(machine: Mapping[str, Any]) -> list[str]:
    words = {"cores": "{} cores", "memory": "{:.0f} GiB"}
    return [
        words.get(name, "{}" if name in ("system", "processor") else f"{name} {{}}").format(value / 2**30 if name == "memory" else value)
        for name, value in machine.items()
    ]


def changed_settings(record: Record) -> list[tuple[str, str, str]]:
    """The settings of a run that are not the default, each with the default; all of them where no default is known."""
    kind = record.config.get("kind")
    known = CONFIGS.get(kind) if isinstance(kind, str) else None
    usual = dict(_flat(to_mapping(known()))) if known is not None else {}
    found = []
    for key, value in _flat(record.config):
        if key != "kind" and (key not in usual or usual[key] != value):
            found.append((key, _shown(value), _shown(usual[key]) if key in usual else ""))
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings by their dotted names."""
    found = []
    for key, value in settings.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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
    """Charts of these names: of one run beside each other; of several, each name in a row of its own."""
    rows = []
    for name in names:
        drawn = [(subject, chart) for subject in found if (chart := CHARTS[name](subject.record)) is not None]
        rows.append("".join(_captioned(found, subject, chart) for subject, chart in drawn))
    if len(found) == 1:
        rows = ["".join(rows)]
    return "".join(f'<div class="charts">{row}</div>' for row in rows if row)


def _captioned(found: Sequence[Subject], subject: Subject, chart: Chart) -> str:
    if len(found) == 1:
        return chart.svg()
    return f"<figure><figcaption>{escape(subject.name)}</figcaption>{chart.svg()}</figure>"


def _costs(found: Sequence[Subject]) -> str:
    records = [subject.record for subject in found]
    drawn = [chart for make in (accuracy_against_parameters, accuracy_against_operations) if (chart := make(*records)) is not None]
    return f'<div class="charts">{"".join(chart.svg() for chart in drawn)}</div>' if drawn else ""


def _arms(found: Sequence[Subject]) -> str:
    rows: list[dict[str, Cell]] = []
    total = 0
    for subject in found:
        arms = views.arms(subject.record)
        total += len(arms)
        for arm in arms[:SHOWN_ARMS]:
            row = {"arm": arm["arm"], "hosts": arm["hosts"], "score": arm["score"], "accuracy": arm["accuracy"], "size x": arm["growth"]}
            row |= {"operations": None if arm["operations"] is None else round(arm["operations"]), "fossils": arm["fossils"]}
            row |= {"difference [95 %]": _difference(arm)}
            rows.append({**_run(found, subject), **row})
    return (table(rows) + _counted(len(rows), total, "arms")) if rows else ""


def _difference(arm: Mapping[str, Any]) -> str:
    found = arm["difference"]
    return "" if found is None else f"{arm['difference_of']}: {found['mean']:+.2f} {bounds(found['low'], found['high'])}"


def _blueprints(found: Sequence[Subject]) -> str:
    rows: list[dict[str, Cell]] = []
    for subject in found:
        for row in views.blueprints(subject.record):
            survival = None if row["survival"] is None else f"{row['survival']:.0%}"
            named = {"blueprint": row["blueprint"], **{name: row[name] for name in ("created", "fossilized", "pruned", "unfinished")}}
            rows.append({**_run(found, subject), **named, "kept": survival, "contribution, points": row["contribution"]})
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
            rows.append({**_run(found, subject), **row})
    if not rows:
        return ""
    empty = [name for name in ("round", "arm", "test", "control, val", "controller") if all(row[name] in (None, "", 0) for row in rows)]
    kept = [{name: value for name, value in row.items() if name not in empty} for row in rows]
    return table(kept) + _counted(len(rows), total, "hosts")


def _notes(found: Sequence[Subject]) -> str:
    rows = [(subject, row) for subject in found for row in subject.record.rows("note", "sink_failed", "sink_behind")]
    texts = [f"{_prefix(found, subject)}{row['text'] if row['kind'] == 'note' else _sink(row)}" for subject, row in rows]
    return "".join(map(paragraph, texts[:SHOWN_NOTES])) + _counted(min(len(texts), SHOWN_NOTES), len(texts), "remarks")


def _sink(row: Mapping[str, Any]) -> str:
    what = f"failed and was dropped: {row['error']}" if row["kind"] == "sink_failed" else f"was too slow; events dropped: {row['dropped']}"
    return f"sink {row['sink']} {what}"


# Words


def _counted(shown: int, total: int, what: str) -> str:
    return paragraph(f"{shown} of {total:,} {what}; esper query shows all.") if shown < total else ""


def _run(found: Sequence[Subject], subject: Subject) -> dict[str, str]:
    """The column that says whose row it is, where there are several runs."""
    return {"run": subject.name} if len(found) > 1 else {}


def _prefix(found: Sequence[Subject], subject: Subject) -> str:
    return f"{subject.name}: " if len(found) > 1 else ""


def _plural(unit: str) -> str:
    return f"{unit}es" if unit.endswith("s") else f"{unit}s"


def _flag(text: str) -> str:
    return f'<p class="flag">{escape(text)}</p>'
