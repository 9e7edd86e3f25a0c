"""`esper watch --terminal`: the picture that `esper train` shows of a run, made from its files alone, by another process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.display import duration, picture
from esper.cli.scene import Scene
from esper.cli.scenes import scene_of
from esper.karn.record import Record
from esper.karn.views import flags, overview
from esper.karn.views.overview import go_on, method_of, progress
from esper.leyline.errors import EventError, RunError
from esper.leyline.events import RunStarted, from_json_line
from esper.tolaria.storage.runs import list_runs

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

EVERY = 0.5
"""Seconds between two looks at the files."""
FLAGS = 5
"""Red flags that are shown: the newest."""
SHOWN_FIGURES = 3
"""Of the headline, once a run is finished."""
NEWEST = 20_000
"""Of events that only tell how hosts stand now, so many are looked at when the watching begins."""
PACED = 10
"""Rounds by which the time to go is told."""

SCENES = {
    "run": ("host_started", "stage_changed", "hosts_trained", "epoch_finished", "seed_measured"),
    "gardener": ("host_started", "stage_changed", "hosts_trained", "epoch_finished", "seed_measured"),
    "compare": ("host_started", "host_finished"),
}
"""Kinds of event that the scene of each kind of run is made from."""
OTHERS = ("policy_updated", "arm_examined", "plans_played")
"""Those of the other kinds of run."""
PASSING = ("hosts_trained", "epoch_finished", "seed_measured")
"""Kinds of which the newest say all."""


NO_COURSES = "how hosts do while they grow is not recorded at the level of telemetry minimal"


class Watch:
    """One run as it is seen in a terminal. `look` reads on."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.scene: Scene | None = None
        self._generation, self._seen = -1, 0

    def look(self) -> None:
        """Read what is new and show it to the scene. Raises RunError when the run is gone, EventError when its events are damaged."""
        self.record.refresh()
        self.record.check()
        if self._generation != self.record.generation:
            self.scene, self._seen, self._generation = None, 0, self.record.generation
        end = len(self.record)
        wanted = [*self._new("run_started")] if self.scene is None else []
        for kind in SCENES.get(method_of(self.record), OTHERS):
            since = max(self._seen, end - NEWEST) if kind in PASSING else self._seen
            wanted += [seq for seq in self._new(kind) if seq >= since]
        lines = self.record.lines(sorted(wanted))
        if self._generation != self.record.generation:
            return  # it went on from an earlier checkpoint at this moment; the next look begins anew
        for line in lines:
            envelope = from_json_line(line.decode("ascii"))
            if isinstance(envelope.event, RunStarted):
                self.scene = scene_of(envelope.event)
            elif self.scene is not None:
                self.scene.see(envelope)
        self._seen = end

    def _new(self, kind: str) -> list[int]:
        return [seq for seq in self.record.numbers(kind) if seq >= self._seen]

    def render(self) -> Group:
        """The picture as it is now, with what looked wrong above it and how the run stands below."""
        from rich.console import Group
        from rich.text import Text

        found, status = progress(self.record), self.record.info.status
        lines: list[RenderableType] = []
        shown = flags(self.record)
        if len(shown) > FLAGS:
            lines.append(Text(f"{len(shown) - FLAGS} red flags before these", style="red"))
        lines += [Text(f"! {each['text']}", style="bold red") for each in shown[-FLAGS:]]
        if self.scene is not None:
            left = self._left() if status == "running" else ""
            body = self.scene.body() if self._courses() else [Text(NO_COURSES, style="dim")]
            lines.append(picture(self.scene, body, found["share"], f"{found['unit']} {found['done']} of {found['total']}{left}"))
        return Group(*lines, *self._standing(found["updated"]))

    def _courses(self) -> bool:
        """Whether there is something for the scene to show."""
        shows_hosts = "hosts_trained" in SCENES.get(method_of(self.record), OTHERS)
        return not shows_hosts or self.record.count("hosts_trained") > 0 or self.record.count("round_finished") == 0

    def _standing(self, updated: float | None) -> list[RenderableType]:
        from rich.text import Text

        status, path = self.record.info.status, self.record.path
        if status == "running":
            told = "nothing recorded yet" if updated is None else f"last event {duration(max(0.0, time.time() - updated))} ago"
            return [Text(f"{path}: running, {told}", style="dim")]
        if status == "finished":
            figures = "; ".join(f"{each['label']} {each['text']}" for each in overview(self.record)["headline"][:SHOWN_FIGURES])
            return [Text(f"{path}: finished" + (f"; {figures}" if figures else ""), style="green")]
        command = go_on(self.record)
        stopped = [Text(f"{path}: stopped", style="yellow")]
        return [*stopped, *([Text(f"go on with: {command}", style="yellow")] if command else [])]

    def _left(self) -> str:
        """The time to go, by the last rounds; nothing before there is a pace."""
        rounds = self.record.at(self.record.numbers("round_finished")[-PACED - 1 :])
        timed = [row for row in rounds if row["time"] is not None]
        if len(timed) < 2:
            return ""
        pace = (timed[-1]["time"] - timed[0]["time"]) / (timed[-1]["round"] - timed[0]["round"])
        total = self.scene.total() if self.scene is not None else timed[-1]["rounds"]
        return f", about {duration(pace * max(0, total - timed[-1]['round']))} left"


def watch_terminal(path: Path) -> int:
    """Show a run until it is finished or Ctrl-C; one picture where the output is no terminal. Of a folder of runs, the one that goes on,
    or the newest. Raises RunError where there is no run."""
    watch = Watch(Record(_the_run(path)))
    try:
        watch.look()
        return _live(watch) if sys.stdout.isatty() else _once(watch)
    except KeyboardInterrupt:
        return 0


def _the_run(path: Path) -> Path:
    runs, _ = list_runs(path) if path.is_dir() and not (path / "run.json").exists() else ([], [])
    if not runs:
        return path
    return max(reversed(runs), key=lambda run: (run.status == "running", run.created)).path  # of one second the last by its number


def _once(watch: Watch) -> int:
    from io import StringIO

    from rich.console import Console

    text = StringIO()  # as a Console of stdout ends the process when nobody reads it
    Console(file=text, width=120, markup=False, emoji=False, highlight=False).print(watch.render())
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
    return 0


def _live(watch: Watch) -> int:
    from rich.live import Live

    problem: EventError | RunError | None = None
    with Live(auto_refresh=False, get_renderable=watch.render) as live:
        while watch.record.info.status != "finished":
            live.refresh()
            time.sleep(EVERY)
            try:
                watch.look()
            except (EventError, RunError) as error:
                problem = error
                break
        live.refresh()
    if problem is not None:
        raise problem
    return 0
