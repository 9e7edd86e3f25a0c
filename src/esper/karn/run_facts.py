"""What a report says of a run besides its figures: what it is, how it stands, what was asked for, and what looked wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from html import escape
from pathlib import Path
from typing import Any

from esper.karn import views
from esper.karn.page import Cell, paragraph, table
from esper.karn.record import Record
from esper.leyline.config import to_mapping
from esper.simic.runs.configs import CONFIGS
from esper.simic.runs.resuming import resume_command

SHOWN_FLAGS = 40
"""Flags of a run that are shown; a sentence says how many there are in all."""

WHAT = {
    "run": "hosts under a controller",
    "learn": "a policy that learns by playing (PPO)",
    "expert": "a policy that learns by forked search (expert iteration)",
    "bc": "a policy that imitates recorded runs",
    "iql": "a policy that learns offline from recorded runs (implicit Q-learning)",
    "compare": "a comparison of policies and baselines on the same unseen hosts",
    "headroom": "a search for what could be won",
    "tune": "a search of a controller's settings",
    "sweep": "one run for each of several values of a setting",
    "gardener": "growth in a training loop of its user's own",
}
"""What each kind of run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run in a report."""

    name: str
    record: Record
    overview: Mapping[str, Any]


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


def flag_lines(found: Sequence[Subject]) -> str:
    """Runs that have not ended, and what looked wrong in each."""
    parts = [_flag(sentence) for subject in found if (sentence := _unfinished(subject))]
    for subject in found:
        flags = subject.overview["flags"]
        for flag in flags[:SHOWN_FLAGS]:
            places = [f"host {flag['host']}" if flag["host"] is not None else "", f"epoch {flag['epoch']}" if flag["epoch"] else ""]
            where = ", ".join(filter(None, [*places, f"round {flag['round']}"]))
            parts.append(_flag(f"{prefix(found, subject)}{flag['detector'].replace('_', ' ')} ({where}): {flag['text']}"))
        if len(flags) > SHOWN_FLAGS:
            parts.append(paragraph(f"{prefix(found, subject)}the first {SHOWN_FLAGS} of {len(flags)}"))
    none = [subject.name for subject in found if not subject.overview["flags"]]
    if len(none) == len(found):
        parts.append(paragraph("none was raised"))
    elif none:
        parts.append(paragraph(f"none was raised by {', '.join(none)}"))
    return "".join(parts)


def _unfinished(subject: Subject) -> str:
    """How a run stands that has not ended."""
    status, progress, go_on = subject.overview["status"], subject.overview["progress"], subject.overview["go_on"]
    if status == "finished":
        return ""
    words = {"running": "is still running", "interrupted": "is interrupted", "new": "has not begun"}
    far = f"{subject.name} {words[status]}: {progress['done']} of {progress['total']} {_plural(progress['unit'])} done"
    if go_on is None:
        return f"{far}; this is how it stands"
    command = resume_command(subject.overview["method"], Path(subject.record.path.resolve().name))
    return f"{far}; to go on, in the folder that holds it: {command}"


def about(found: Sequence[Subject]) -> str:
    """Commands, facts, and settings that are not the default."""
    columns = [_facts(subject) for subject in found]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    rows: list[dict[str, Cell]] = [
        {"": label, **{subject.name: column.get(label, "") for subject, column in zip(found, columns, strict=True)}} for label in labels
    ]
    commands = "".join(f"<pre>{escape(subject.overview['command'])}</pre>" for subject in found)
    settings: list[dict[str, Cell]] = [
        {**run_column(found, subject), "setting": key, "value": value, "default": default}
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
    """The settings of a run that are not the default, each with the default; those too of which no default is known."""
    usual = _defaults(record.config)
    found = []
    for key, value in _flat(record.config):
        if key.split(".")[-1] != "kind" and (key not in usual or usual[key] != value):
            found.append((key, _shown(value), _shown(usual[key]) if key in usual else ""))
    return found


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings of such a run are by themselves, by their dotted names; a sweep is judged by the method that it sweeps."""
    kind = config.get("kind")
    if kind == "sweep":
        swept = [table for table in ("run", "learn", "expert") if table in config]
        return {f"{table}.{key}": value for table in swept for key, value in _flat(to_mapping(CONFIGS[table]()))}
    return dict(_flat(to_mapping(CONFIGS[kind]()))) if isinstance(kind, str) and kind in CONFIGS else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings by their dotted names."""
    found = []
    for key, value in settings.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def run_column(found: Sequence[Subject], subject: Subject) -> dict[str, str]:
    """The column that says whose row it is, where there are several runs."""
    return {"run": subject.name} if len(found) > 1 else {}


def prefix(found: Sequence[Subject], subject: Subject) -> str:
    """The same before a sentence."""
    return f"{subject.name}: " if len(found) > 1 else ""


def _plural(unit: str) -> str:
    return f"{unit}es" if unit.endswith("s") else f"{unit}s"


def _flag(text: str) -> str:
    return f'<p class="flag">{escape(text)}</p>'
