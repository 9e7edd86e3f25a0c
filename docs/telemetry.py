"""Writes docs/telemetry.md from the code: levels, events, anomalies.

    python docs/telemetry.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path

from esper.cli.flags import field_docs
from esper.leyline.events import EVENT_TYPES, EVENT_VERSION, Envelope, Event, SeedLife
from esper.nissa.anomalies import AnomalyConfig, describe
from esper.nissa.config import MINIMAL, TelemetryConfig

PAGE = Path(__file__).with_suffix(".md")

DEBUG = ("observed",)
"""Kinds that are recorded at debug alone."""

INTRODUCTION = f"""\
# Telemetry

*Written by `python docs/telemetry.py` from the code.*

Everything that happens in a run is an **event**: one line of JSON in the run's `events.jsonl`. The terminal, the [page](watch.md) of
`esper watch`, the [report](report.md), [`esper query` and `esper.load_run`](query.md) and [trackers](tracking.md) are made from these lines
and from nothing else, so that all of them say the same, while a run goes on and years later. The schema has version {EVENT_VERSION}; a
reader refuses a line of another one instead of guessing.

```json
{{"v":{EVENT_VERSION},"seq":4711,"time":1763320800.5,"host":3,"epoch":12,"kind":"rolled_back","data":{{"reason":"...","to_epoch":9,"pruned":["r0c1"]}}}}
```

JSON has no NaN and no infinities: such numbers are the words "NaN", "Infinity" and "-Infinity". Enums are written by name. Accuracies and
contributions are in points, 0 to 100. Lines are appended whole; one that a kill has torn is cut off when the run goes on, and left out by
whoever reads meanwhile. A run that is stopped and resumed has the same lines as one that never was, but for `time`.

From Python: `for envelope in esper.nissa.read_events(path)` gives them typed and checked; `esper.load_run(folder)` as tables.
"""

LEVELS = """\
## How much is recorded

`--telemetry off|minimal|normal|debug`, in a config file `[telemetry]`. A run can go on with another level.
"""

ENVELOPE = """\
## The envelope

Every line has these fields around its event, besides the version `v`.
"""

EVENTS = """\
## The events
"""

ANOMALIES = """\
## Anomalies

Detectors look at the events as they happen. What they notice is an event of its own, a remark in the terminal and a red flag on top of page
and report; nothing else in the run depends on it. Each says so once when it begins, and again only after it was over. Nothing is
remembered that a resumed run would not know.
"""


def text() -> str:
    """The page."""
    lines = [INTRODUCTION, LEVELS, *settings(TelemetryConfig, "telemetry"), ""]
    lines += [*by_level(), "", ENVELOPE, *fields(Envelope, without=("event",)), "", EVENTS]
    for kind, cls in EVENT_TYPES.items():
        lines += [f"### `{kind}`", "", *described(cls), ""]
    lines += ["### A seed's life", "", f"As in `seeds` of `host_finished`: {_first_lower(SeedLife)}", "", *fields(SeedLife), ""]
    lines += [ANOMALIES, *anomalies(), "", *settings(AnomalyConfig, "telemetry.anomalies"), ""]
    return "\n".join(lines).rstrip() + "\n"


def by_level() -> Iterator[str]:
    """Which kinds are recorded at which level."""
    minimal = [kind for kind, cls in EVENT_TYPES.items() if cls in MINIMAL]
    normal = [kind for kind, cls in EVENT_TYPES.items() if cls not in MINIMAL and kind not in DEBUG]
    yield from table(
        ("level", "kinds"),
        [("off", "none"), ("minimal", _names(minimal)), ("normal", "also " + _names(normal)), ("debug", "also " + _names(DEBUG))],
    )


def described(cls: type[Event]) -> Iterator[str]:
    """An event: what it says, and its fields."""
    yield inspect.cleandoc(cls.__doc__ or "").replace("\n", " ")
    yield ""
    yield from fields(cls)


def fields(cls: type, without: Iterable[str] = ()) -> Iterator[str]:
    """The fields of a dataclass as a table."""
    docs, kinds = field_docs(cls), inspect.get_annotations(cls)
    rows = [(f"`{name}`", f"`{kind}`", docs.get(name, "")) for name, kind in kinds.items() if name not in without]
    yield from table(("field", "type", ""), rows)


def settings(cls: type, prefix: str) -> Iterator[str]:
    """The settings of a config as a table, with their defaults."""
    docs, usual = field_docs(cls), cls()
    names = [name for name in inspect.get_annotations(cls) if not is_dataclass(getattr(usual, name))]
    rows = [(f"`{prefix}.{name}`", f"`{getattr(usual, name)}`", docs.get(name, "")) for name in names]
    yield from table(("setting", "default", ""), rows)


def anomalies() -> Iterator[str]:
    """Each detector, and the settings that it goes by."""
    yield from table(("detector", "notices", "goes by"), [(f"`{name}`", what, _names(read)) for name, what, read in describe()])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table of Markdown."""
    for row in (head, ("---",) * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _names(kinds: Iterable[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _first_lower(cls: type) -> str:
    doc = inspect.cleandoc(cls.__doc__ or "")
    return doc[:1].lower() + doc[1:]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(f"written: {PAGE.name}")
