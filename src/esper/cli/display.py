"""What a person sees while a run goes on: a live picture on a terminal, plain lines elsewhere. A sink of the hub like any other."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from esper.cli.scenes import Scene, scene_of
from esper.leyline.events import Envelope, Note, RoundFinished, RunStarted, SinkFailed

if TYPE_CHECKING:
    from rich.console import Group


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


class PlainDisplay:
    """One line per round, for logs and pipes.

    rewards: also a line for what each decision earned. out: where to; stdout if nothing is said.
    """

    def __init__(self, out: TextIO | None = None, rewards: bool = False) -> None:
        self.out, self.rewards = out or sys.stdout, rewards
        self.scene: Scene | None = None
        self.clock = Clock(0, 1)
        self.round = self.beyond = 0
        self.share = 0.0

    def write(self, envelope: Envelope) -> None:
        """Take an event, and show what is worth a line."""
        event = envelope.event
        if isinstance(event, RunStarted):
            self.scene, self.round, self.beyond = scene_of(event), int(event.about["round"]), 0
            self.clock = Clock(self.round, self.scene.total())
            self.say(self.scene.headline())
        elif isinstance(event, Note):
            self.say(event.text)
        elif isinstance(event, SinkFailed):
            self.say(f"sink {event.sink} failed and is dropped: {event.error}")
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
        """Show a line."""
        print(line, file=self.out, flush=True)

    def progress(self, share: float) -> None:
        """So much of the present round is done, from 0 to 1."""
        self.share = share

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to put away."""


class LiveDisplay(PlainDisplay):
    """A picture that is redrawn in place; remarks go above it."""

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self.live = Live(refresh_per_second=4, get_renderable=self.render)

    def write(self, envelope: Envelope) -> None:
        """Take an event; the picture shows it the next time it is drawn."""
        super().write(envelope)
        if isinstance(envelope.event, RunStarted):
            self.live.start()
        elif isinstance(envelope.event, RoundFinished):
            self.live.refresh()

    def say(self, line: str) -> None:
        """Nothing: the picture has it."""

    def close(self) -> None:
        """Leave the last picture as it is."""
        self.live.stop()

    def render(self) -> Group:
        """The picture as it is now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        scene = self.scene
        if scene is None:
            return Group()
        done = self.round + self.share
        if self.beyond or self.round >= self.clock.total:
            done = min(self.clock.total, self.round + self.beyond + self.share)
        left = self.clock.left(done)
        pace = f" {scene.unit} {self.round}" + (f", {left} left" if left else "")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=1.0, completed=min(1.0, done / self.clock.total), width=40), Text(pace))
        # The headline is not the table's title, which would be broken off where a narrow table ends.
        return Group(Text(scene.headline(), style="bold"), *scene.body(), bar)


def make_display(quiet: bool, rewards: bool) -> PlainDisplay | None:
    """The display that fits where the output goes; None for none. Lines of rewards and a picture redrawn in place do not go together."""
    if quiet:
        return None
    return LiveDisplay() if sys.stdout.isatty() and not rewards else PlainDisplay(rewards=rewards)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
