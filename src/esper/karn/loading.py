"""A recorded run in Python: `run = esper.load_run("runs/digits-ppo-001")`, while it goes on and after it, without torch."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.karn import views
from esper.karn.event_index import KINDS, Row
from esper.karn.query import ask
from esper.karn.query_tables import TABLES
from esper.karn.record import Record
from esper.karn.views.hosts import host_rows
from esper.leyline.errors import ConfigError, unknown
from esper.tolaria.storage.runs import RunInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def load_run(path: str | os.PathLike[str]) -> Run:
    """The run in a folder. Raises RunError where there is none, and EventError where its events are damaged."""
    run = Run(Record(Path(path)))
    run.record.check()
    return run


class Run:
    """A run as it was when it was loaded; `refresh()` reads what came since. What page and report show are its methods, as plain values:

    run.overview(), run.hosts(), run.host(3), run.lives(), run.rounds(), run.arms(), ...; run.events("decided") are the events themselves;
    run.frame("hosts") is a data frame; run.query("select ...") answers SQL; run.plot("accuracy") draws.
    """

    def __init__(self, record: Record) -> None:
        self.record = record

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.record.path

    @property
    def info(self) -> RunInfo:
        """Id, command, when it began, and how it stands."""
        return self.record.info

    @property
    def config(self) -> dict[str, Any]:
        """What config.toml holds."""
        return self.record.config

    @property
    def summary(self) -> dict[str, Any] | None:
        """What summary.json holds; None before the run is finished."""
        return self.record.summary

    def refresh(self) -> bool:
        """Read what is new; whether anything is."""
        new = self.record.refresh()
        self.record.check()
        return new

    # The views

    def overview(self) -> dict[str, Any]:
        """The run at a glance: what it is, how it stands, how far it is, and its headline figures."""
        return views.overview(self.record)

    def headline(self) -> list[dict[str, Any]]:
        """The figures that the run is about, with their intervals; the first is what it is judged by."""
        found: list[dict[str, Any]] = self.overview()["headline"]
        return found

    def flags(self) -> list[dict[str, Any]]:
        """What looked wrong."""
        return views.flags(self.record)

    def hosts(self) -> list[dict[str, Any]]:
        """Every host, twins among them, as it stands or as it ended."""
        return host_rows(self.record)

    def host(self, number: int) -> dict[str, Any]:
        """One host: its course, its network as it grows, the lives of its seeds, its decisions."""
        return views.host(self.record, number)

    def decision(self, number: int, epoch: int) -> dict[str, Any]:
        """One decision: what was seen, what was legal, how likely each choice was, what was done, what came of it."""
        return views.decision(self.record, number, epoch)

    def distribution(self) -> dict[str, Any]:
        """Val accuracy over the hosts of the latest play, by epoch."""
        return views.distribution(self.record)

    def lives(self) -> list[dict[str, Any]]:
        """Every seed, from its birth to what became of it."""
        return views.lives(self.record)

    def blueprints(self) -> list[dict[str, Any]]:
        """What became of the seeds of each blueprint."""
        return views.blueprints(self.record)

    def actions(self) -> dict[str, Any]:
        """How often each op is decided, by epoch and by round."""
        return views.actions(self.record)

    def rounds(self) -> dict[str, Any]:
        """What was learned, round by round."""
        return views.rounds(self.record)

    def entropies(self) -> dict[str, Any]:
        """How open the choice of each head is, round by round."""
        return views.entropies(self.record)

    def rewards(self) -> dict[str, Any]:
        """What is earned, by component."""
        return views.rewards(self.record)

    def calibration(self) -> dict[str, Any] | None:
        """The critic's values against the returns that followed."""
        return views.calibration(self.record)

    def arms(self) -> list[dict[str, Any]]:
        """Arms, trials, points or plans that are set against each other."""
        return views.arms(self.record)

    # Everything else

    def events(self, *kinds: str, host: int | None = None) -> list[Row]:
        """The events of these kinds, of a host or of all, in order; without kinds, of all."""
        for kind in kinds:
            if kind not in KINDS:
                raise unknown("kind of event", kind, KINDS)
        return [dict(row) for row in self.record.rows(*kinds, host=host)]

    def query(self, sql: str) -> list[dict[str, Any]]:
        """What a query gives, a dict for each row; `esper query --views` lists what can be asked. Needs the extra `query`."""
        return ask({self.path.name: self.record}, sql).dicts()

    def frame(self, name: str) -> DataFrame:
        """A view of `esper query`, or a kind of event, as a pandas DataFrame. Needs the extra `frames`."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("data frames need pandas, which is not installed: pip install 'esper-lite[frames]'") from None
        if name not in TABLES:
            raise unknown("view", name, TABLES)
        table = TABLES[name]
        if table.rows is not None:
            rows = [{column: row[column] for column in table.columns} for row in table.rows(self.record)]
        elif table.event:
            rows = [{column: row[column] for column in table.columns} for row in self.record.rows(name)]
        else:
            rows = self.query(f"select * from {name}")
        return pandas.DataFrame(rows, columns=list(table.columns))

    def plot(self, name: str | None = None) -> Figure | list[Figure]:
        """Draw a chart of the report, which a notebook shows; without a name, all that the run has something for."""
        from esper.karn.run_charts import CHARTS

        if name is not None and name not in CHARTS:
            raise unknown("chart", name, CHARTS)
        found = {each: made for each in ([name] if name else CHARTS) if (made := CHARTS[each](self.record)) is not None}
        if name is not None and not found:
            raise ConfigError(f"the run {self.path} has nothing to draw as {name!r}")
        figures: list[Figure] = [chart.figure() for chart in found.values()]
        return figures[0] if name is not None else figures

    # How it shows itself

    def __repr__(self) -> str:
        found = self.overview()
        done = found["progress"]
        figures = "; ".join(f"{each['label']} {each['text']}" for each in found["headline"][:2])
        place = "" if found["status"] == "finished" else f", {done['unit']} {done['done']} of {done['total']}"
        return f"<Run {self.path}: {found['method']} on {found['task']}, {found['status']}{place}" + (f"; {figures}>" if figures else ">")

    def _repr_html_(self) -> str:
        """For a notebook: a line on what it is, and its headline figures."""
        found = self.overview()
        cells = [(each["label"], each["text"], _bounds(each), each["note"]) for each in found["headline"]]
        rows = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<p><b>{escape(found['name'])}</b>: {escape(found['command'])} ({escape(found['status'])})</p><table>{rows}</table>"


def _bounds(figure: dict[str, Any]) -> str:
    return "" if figure["low"] is None or figure["high"] is None else f"[{figure['low']:.2f}, {figure['high']:.2f}]"
