"""What a person sees while hosts train: a live table on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from esper.leyline.reports import EpochReport, SeedReport
from esper.leyline.stages import Stage

if TYPE_CHECKING:
    from rich.console import Group

    from esper.simic.runs.controller import ControllerRun

SHOWN_HOSTS = 16
"""Rows of the live table; the rest is summed up in a line."""

STAGE_WORDS: dict[Stage, str] = {
    Stage.DORMANT: "-",
    Stage.GERMINATED: "germinated",
    Stage.TRAINING: "training",
    Stage.BLENDING: "blending",
    Stage.HOLDING: "holding",
    Stage.FOSSILIZED: "fossil",
    Stage.PRUNED: "pruned",
    Stage.EMBARGOED: "embargo",
    Stage.RESETTING: "resetting",
}
STAGE_COLOURS: dict[Stage, str] = {
    Stage.TRAINING: "cyan",
    Stage.BLENDING: "yellow",
    Stage.HOLDING: "magenta",
    Stage.FOSSILIZED: "green",
    Stage.PRUNED: "red",
}


class Display(Protocol):
    """Whatever is told how a run goes."""

    def start(self, work: Any) -> None:
        """The run begins, or goes on."""

    def progress(self, done: int) -> None:
        """So many hosts of the present epoch are trained."""

    def epoch(self, work: Any) -> None:
        """An epoch of all hosts is over."""

    def stop(self) -> None:
        """Nothing more will come."""


class Clock:
    """Time per epoch and time to go, from the epochs of this process alone."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first = 0

    def begin(self, done: int) -> None:
        self.started, self.first = time.monotonic(), done

    def per_epoch(self, done: int) -> float:
        return (time.monotonic() - self.started) / max(1, done - self.first)

    def left(self, done: int, total: int) -> str:
        return duration(self.per_epoch(done) * (total - done))


class PlainDisplay:
    """One line per epoch, for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.clock = Clock()

    def start(self, session: ControllerRun) -> None:
        print(headline(session), file=self.out, flush=True)
        self.clock.begin(session.round)

    def progress(self, done: int) -> None:
        """Nothing: a line per epoch is enough for a log."""

    def epoch(self, session: ControllerRun) -> None:
        done, total = session.round, session.epochs
        pace = f"{self.clock.per_epoch(done):.2f} s an epoch, {self.clock.left(done, total)} left"
        print(f"epoch {done}/{total}: {totals(session)}; {pace}", file=self.out, flush=True)

    def stop(self) -> None:
        """Nothing to put away."""


class LiveDisplay:
    """A table that is redrawn in place: each host's accuracy, size and slots, and the time to go."""

    def __init__(self) -> None:
        from rich.live import Live

        self.clock = Clock()
        self.session: ControllerRun | None = None
        self.done = 0
        self.live = Live(refresh_per_second=8, get_renderable=self.render)

    def start(self, session: ControllerRun) -> None:
        self.session = session
        self.clock.begin(session.round)
        self.live.start()

    def progress(self, done: int) -> None:
        self.done = done

    def epoch(self, session: ControllerRun) -> None:
        self.done = 0
        self.live.refresh()

    def stop(self) -> None:
        self.live.stop()

    def render(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        session = self.session
        if session is None:
            return Group()
        twins = {plot.index: plot.host.last for plot in session.plots if plot.control}
        grown = [plot for plot in session.plots if not plot.control]
        table = Table(box=None, padding=(0, 1))
        slots = grown[0].host.model.slot_ids
        for name in ("host", "epoch", "val", *(["control"] if twins else []), "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for slot in slots:  # broken over lines where the terminal is narrow
            table.add_column(slot)
        for plot in grown[:SHOWN_HOSTS]:
            last = plot.host.last
            cells = [str(plot.index), f"{plot.host.epoch}/{plot.host.member.epochs}", points(last)]
            cells += [points(twins[plot.index])] if twins else []
            cells.append(f"x{last.parameters / last.start_parameters:.2f}" if last else "")
            reports = last.seeds if last else ()
            table.add_row(*cells, *(Text(slot_text(r), style=STAGE_COLOURS.get(r.stage, "dim")) for r in reports))
        # Not the table's title, which would be broken off where a narrow table ends.
        lines: list[object] = [Text(headline(session), style="bold"), table]
        if len(grown) > SHOWN_HOSTS:
            lines.append(Text(f"and {len(grown) - SHOWN_HOSTS} hosts more", style="dim"))
        lines.append(Text(totals(session)))
        done, total = session.round, session.epochs
        share = (done + self.done / len(session.plots)) / total
        pace = f" epoch {done}/{total}" + (f", {self.clock.left(done, total)} left" if done > self.clock.first else "")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=1.0, completed=min(1.0, share), width=40), Text(pace))
        lines.append(bar)
        return Group(*lines)  # type: ignore[arg-type]


def make_display(quiet: bool, live: bool = True) -> Display:
    """The display that fits where the output goes."""
    if quiet:
        return Silent()
    return LiveDisplay() if live and sys.stdout.isatty() else PlainDisplay()


class Silent:
    """Shows nothing."""

    def start(self, work: Any) -> None:
        """Nothing."""

    def progress(self, done: int) -> None:
        """Nothing."""

    def epoch(self, work: Any) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


def headline(session: ControllerRun) -> str:
    """What is being done, in a line."""
    config = session.config
    twins = " and as many control twins" if any(plot.control for plot in session.plots) else ""
    hosts = f"{config.hosts} host{'s' if config.hosts > 1 else ''}"
    return f"{config.controller} grows {hosts}{twins} on {config.task} for {session.epochs} epochs"


def totals(session: ControllerRun) -> str:
    """All hosts together: accuracy, against the control, size, and what the slots hold."""
    grown = [plot.host.last for plot in session.plots if not plot.control and plot.host.last is not None]
    control = [plot.host.last for plot in session.plots if plot.control and plot.host.last is not None]
    if not grown:
        return "waiting for the first epoch"
    val = _mean([report.val_accuracy for report in grown])
    text = f"val {val:.2f}"
    if control:
        text += f" ({val - _mean([report.val_accuracy for report in control]):+.2f} against the control)"
    text += f", size x{_mean([report.parameters / report.start_parameters for report in grown]):.2f}"
    stages = [seed.stage for report in grown for seed in report.seeds]
    counts = [f"{stages.count(stage)} {STAGE_WORDS[stage]}" for stage in STAGE_WORDS if stage in stages and stage is not Stage.DORMANT]
    return text + (", " + ", ".join(counts) if counts else "")


def slot_text(report: SeedReport) -> str:
    """One slot in a few characters."""
    if report.stage in (Stage.DORMANT, Stage.EMBARGOED, Stage.RESETTING, Stage.PRUNED):
        return STAGE_WORDS[report.stage]
    alpha = f" {report.alpha:.2f}" if report.stage is Stage.BLENDING else ""
    return f"{report.blueprint} {STAGE_WORDS[report.stage]}{alpha}"


def points(report: EpochReport | None) -> str:
    return "" if report is None else f"{report.val_accuracy:.2f}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
