"""What there is to see of runs that play many hosts to find something out: searches, sweeps, comparisons and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.cli.scene import Scene, mean_of
from esper.leyline.events import ArmExamined, Envelope, HostFinished, HostStarted, PlansPlayed, RunStarted

if TYPE_CHECKING:
    from rich.console import RenderableType
SHOWN_ARMS = 12
"""Rows of the table of trials or points: the best."""

# Searches and sweeps


class ArmsScene(Scene):
    """Settings that are compared, each by the score of the hosts it has played so far."""

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.arms: dict[str, ArmExamined] = {}

    def see(self, envelope: Envelope) -> str | None:
        if isinstance(envelope.event, ArmExamined):
            self.arms[envelope.event.arm] = envelope.event
        return None

    def ranked(self) -> list[ArmExamined]:
        """Those that came furthest first, and of these the best."""
        return sorted(self.arms.values(), key=lambda arm: (-arm.hosts, -arm.score))

    def line(self, round: int) -> str | None:
        if not self.arms:
            return None
        best = self.ranked()[0]
        return f"{len(self.arms)} tried, ahead is {best.arm} with a score of {best.score:.2f} on {best.hosts} hosts"

    def body(self) -> list[RenderableType]:
        from rich.table import Table

        table = Table(box=None, padding=(0, 1))
        table.add_column("")
        for name in ("hosts", "score", "val", "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for arm in self.ranked()[:SHOWN_ARMS]:
            table.add_row(arm.arm, str(arm.hosts), f"{arm.score:.2f}", f"{arm.accuracy:.2f}", f"x{arm.growth:.2f}")
        return [table] if self.arms else []


class SearchScene(ArmsScene):
    """Trials of a controller's settings."""

    unit = "round"

    def headline(self) -> str:
        about = self.started.about
        searched = f"{about['trials']} trials of {about['settings']} settings of {about['controller']} on {self.started.task}"
        spent = f"{self.started.hosts} hosts and more each, then {about['fresh']} fresh ones, within {int(about['budget']):,} host epochs"
        return f"{searched}: {spent}{self.machine()}"


class SweepScene(ArmsScene):
    """Points of a sweep, each a run of its own."""

    unit = "point"

    def headline(self) -> str:
        about = self.started.about
        what = f"esper train {about['method']} on {self.started.task.replace(',', ', ')}"
        return f"{what} at {self.started.rounds} points over {about['over']}"


# Arms on the same hosts


class ComparisonScene(Scene):
    """Arms that play the same hosts one after another or at once, a chunk at a time."""

    unit = "round"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.arm_of: dict[int, str] = {}
        self.accuracies: dict[str, list[float]] = {}
        """On test, by arm."""
        self.playing: dict[str, None] = {}
        """The arms of the present round."""

    def headline(self) -> str:
        started = self.started
        hosts = f"{started.hosts} host{'s' if started.hosts > 1 else ''} of {started.task.replace(',', ', ')}"
        return f"comparison on {hosts}: {started.about['arms']}{self.machine()}"

    def see(self, envelope: Envelope) -> str | None:
        match envelope.host, envelope.event:
            case int(number), HostStarted(arm=arm):
                self.arm_of[number] = arm
                self.playing[arm] = None
            case int(number), HostFinished(test_accuracy=float(accuracy)):
                self.accuracies.setdefault(self.arm_of[number], []).append(accuracy)
        return None

    def line(self, round: int) -> str:
        arms, self.playing = self.playing, {}
        return "; ".join(map(self._shown, arms))

    def body(self) -> list[RenderableType]:
        from rich.text import Text

        return [Text(self._shown(arm)) for arm in self.accuracies]

    def _shown(self, arm: str) -> str:
        found = self.accuracies[arm]
        return f"{arm}: test {mean_of(found):.2f} on {len(found)} host{'s' if len(found) > 1 else ''}"


# Plans on the same hosts


class PlansScene(Scene):
    """Many plans, a chunk of episodes at a time."""

    unit = "round"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.found: PlansPlayed | None = None

    def headline(self) -> str:
        started = self.started
        plans = f"{started.about['plans']} plans on {started.hosts} hosts of {started.task.replace(',', ', ')}"
        return f"headroom: {plans}, in {started.about['workers']} processes{self.machine()}"

    def see(self, envelope: Envelope) -> str | None:
        if isinstance(envelope.event, PlansPlayed):
            self.found = envelope.event
        return None

    def line(self, round: int) -> str | None:
        found = self.found
        if found is None:
            return None
        best = f"; best so far {found.best}, score {found.score:.2f}" if found.best else ""
        return f"{found.episodes} episodes of {found.plans} plans{best}"

    def body(self) -> list[RenderableType]:
        from rich.text import Text

        return [Text(self.line(0) or "")]
