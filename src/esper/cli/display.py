"""What a person sees while a run goes on: a live picture on a terminal, plain lines elsewhere. A sink of the hub like any other."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from esper.cli.scene import Scene
from esper.cli.scenes import scene_of
from esper.leyline.events import Anomaly, Envelope, Note, RoundFinished, RunStarted, SinkBehind, SinkFailed

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

REDRAW_AFTER = 0.25
"""Seconds that a picture stays at least."""


class Clock:
    """Pace and time to go, from what was done since this process began."""

    def __init__(self, done: float, total: float) -> None:
        self.began, self.first, self.total = time.monotonic(), done, total

    def pace(self, done: float) -> float:
        """Seconds for one round."""
        return (time.monotonic() - self.began) / max(1e-9, done - self.first)

    def left(self, done: float) -> str:
        """The time to go, in words; nothing before there is a pace."""
        return duration(self.pace(done) * max(0.0, self.total - done)) if done > self.first else ""


class QuietDisplay:
    """Remarks alone, on stderr: what should never be lost, such as a checkpoint that was passed over."""

    def write(self, envelope: Envelope) -> None:
        """Take an event, and show it if it is a remark."""
        match envelope.event:
            case Note(text=text):
                self.remark(text)
            case Anomaly(text=text):
                where = "" if envelope.host is None else f"host {envelope.host}: "
                self.remark(f"red flag: {where}{text}")
            case SinkFailed(sink=sink, error=error):
                self.remark(f"sink {sink} failed and is dropped: {error}")
            case SinkBehind(sink=sink, dropped=dropped):
                self.remark(f"sink {sink} is too slow: {dropped:,} events dropped")

    def remark(self, text: str) -> None:
        """Show a remark."""
        print(f"esper: {text}", file=sys.stderr, flush=True)

    def progress(self, share: float) -> None:
        """So much of the present round is done, from 0 to 1; nothing shows it here."""

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to put away."""


class PlainDisplay(QuietDisplay):
    """One line per round on stdout, for logs and pipes. rewards: also a line for what each decision earned."""

    def __init__(self, rewards: bool = False) -> None:
        self.rewards = rewards
        self.scene: Scene | None = None
        self.clock = Clock(0, 1)
        self.round = self.beyond = 0
        self.share = 0.0

    def write(self, envelope: Envelope) -> None:
        """Take an event, and show what is worth a line."""
        super().write(envelope)
        event = envelope.event
        if isinstance(event, RunStarted):
            self.scene, self.round, self.beyond = scene_of(event), int(event.about["round"]), 0
            self.clock = Clock(self.round, self.scene.total())
            self.say(self.scene.headline())
        elif self.scene is not None:
            self._see(envelope, self.scene)

    def _see(self, envelope: Envelope, scene: Scene) -> None:
        shown = scene.see(envelope)
        if shown is not None:
            self.beyond, self.share = self.beyond + 1, 0.0
            self.say(shown)
        if self.rewards and (earned := scene.rewards(envelope)) is not None:
            self.say(earned)
        if isinstance(envelope.event, RoundFinished):
            self.round, self.share = envelope.event.round, 0.0
            if (line := scene.line(self.round)) is not None:
                pace = f"{self.clock.pace(self.round):.2f} s a{'n' if scene.unit == 'epoch' else ''} {scene.unit}"
                place = f"{scene.unit} {self.round}/{envelope.event.rounds}"
                self.say(f"{place}: {line}; {pace}, {self.clock.left(self.round)} left")

    def say(self, line: str) -> None:
        """Show a line of progress."""
        print(line, flush=True)

    def remark(self, text: str) -> None:
        """Show a remark, among the lines of progress."""
        print(text, flush=True)

    def progress(self, share: float) -> None:
        """So much of the present round is done, from 0 to 1."""
        self.share = share


class LiveDisplay(PlainDisplay):
    """A picture that is redrawn in place; remarks go above it.

    It is drawn by the thread that trains: one of its own could only die with a traceback when the terminal goes away.
    """

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self.live = Live(auto_refresh=False, get_renderable=self.render)
        self.drawn = 0.0

    def write(self, envelope: Envelope) -> None:
        """Take an event, and draw the picture with it."""
        super().write(envelope)
        if isinstance(envelope.event, RunStarted):
            self.live.start()
        self.draw(at_once=isinstance(envelope.event, RoundFinished))

    def say(self, line: str) -> None:
        """Show nothing: the picture has it."""

    def remark(self, text: str) -> None:
        """Show a remark above the picture."""
        self.live.console.print(text, markup=False, highlight=False, emoji=False)

    def progress(self, share: float) -> None:
        """So much of the present round is done, from 0 to 1."""
        super().progress(share)
        with suppress(OSError):  # the hub drops a display that is broken at the next event
            self.draw()

    def draw(self, at_once: bool = False) -> None:
        """Draw the picture anew, if it has stayed long enough."""
        if not at_once and time.monotonic() < self.drawn + REDRAW_AFTER:
            return
        try:
            self.live.refresh()
        except OSError:
            with suppress(OSError):
                self.live.stop()  # which gives stdout and stderr back, before the terminal fails it as well
            raise
        self.drawn = time.monotonic()

    def close(self) -> None:
        """Leave the last picture as it is."""
        self.live.stop()

    def render(self) -> Group:
        """The picture as it is now."""
        from rich.console import Group

        scene = self.scene
        if scene is None:
            return Group()
        done = self.round + self.share
        if self.beyond or self.round >= self.clock.total:
            done = min(self.clock.total, self.round + self.beyond + self.share)
        left = self.clock.left(done)
        return picture(scene, scene.body(), done / self.clock.total, f"{scene.unit} {self.round}" + (f", {left} left" if left else ""))


def picture(scene: Scene, body: Sequence[RenderableType], share: float, place: str) -> Group:
    """A scene, or as much of it as there is, and a bar below: so much of the run is done, from 0 to 1, and where it is in words."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=min(1.0, share), width=40), Text(f" {place}"))
    # The headline is not the table's title, which would be broken off where a narrow table ends.
    return Group(Text(scene.headline(), style="bold"), *body, bar)


def make_display(quiet: bool, rewards: bool) -> QuietDisplay:
    """The display that fits where the output goes. Lines of rewards and a picture redrawn in place do not go together."""
    if quiet:
        return QuietDisplay()
    return LiveDisplay() if sys.stdout.isatty() and not rewards else PlainDisplay(rewards=rewards)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
