"""What there is to see of each kind of run, put together from its events: a headline, a line per round, and a table for a terminal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.leyline.events import (
    ArmExamined,
    Envelope,
    EpochFinished,
    HostFinished,
    HostStarted,
    PlansPlayed,
    PolicyUpdated,
    Rewarded,
    RunStarted,
    SeedMeasured,
    StageChanged,
)
from esper.leyline.stages import Stage

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_HOSTS = 16
"""Rows of the table of hosts; the rest is summed up in a line."""
SHOWN_ROUNDS = 12
"""Rows of the table of rounds: the newest."""
LINES = 20
"""About as many lines are shown of passes over recordings, however many there are."""

STAGE_WORDS = {stage: stage.name.lower() for stage in Stage}
STAGE_WORDS |= {Stage.DORMANT: "-", Stage.FOSSILIZED: "fossil", Stage.EMBARGOED: "embargo"}
STAGE_COLOURS: dict[Stage, str] = {
    Stage.TRAINING: "cyan",
    Stage.BLENDING: "yellow",
    Stage.HOLDING: "magenta",
    Stage.FOSSILIZED: "green",
    Stage.PRUNED: "red",
}
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
OPS = ("wait", "germinate", "advance", "fossilize", "prune", "set_alpha_target")
METHOD_WORDS = {"bc": "behaviour cloning", "iql": "implicit Q-learning"}


class Scene(ABC):
    """One kind of run as it is seen so far."""

    unit: str
    """What a round is called."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started

    @abstractmethod
    def headline(self) -> str:
        """What is being done, in a line."""

    def machine(self) -> str:
        """What trains the hosts, and why, as the end of a line; nothing where a loop of one's own does."""
        about = self.started.about
        return f"; {about['engine']} engine on {about['devices']}: {about['engine_why']}" if "engine" in about else ""

    @abstractmethod
    def see(self, envelope: Envelope) -> str | None:
        """Take an event; a line for one that a log should show at once."""

    @abstractmethod
    def line(self, round: int) -> str | None:
        """A round that is over, in a line; None for one that is not worth one."""

    def rewards(self, envelope: Envelope) -> str | None:
        """What an event says about rewards, in a line; None for one that says nothing."""
        return None

    def total(self) -> int:
        """Rounds in all, and whatever comes after them, in rounds."""
        return self.started.rounds

    @abstractmethod
    def body(self) -> list[RenderableType]:
        """All of it as tables and lines."""


def scene_of(started: RunStarted) -> Scene:
    """The scene for a run that begins or goes on."""
    kinds: dict[str, type[Scene]] = {"run": HostsScene, "gardener": HostsScene, "learn": LearningScene, "compare": ComparisonScene}
    kinds |= {"headroom": PlansScene, "tune": SearchScene, "sweep": SweepScene}
    return kinds.get(started.method, RecordingsScene)(started)


# Hosts under a controller


@dataclass(slots=True)
class SeedView:
    """A slot as it is shown."""

    stage: Stage = Stage.DORMANT
    blueprint: str = ""
    alpha: float = 0.0

    def __str__(self) -> str:
        if self.stage in (Stage.DORMANT, Stage.EMBARGOED, Stage.RESETTING, Stage.PRUNED):
            return STAGE_WORDS[self.stage]
        alpha = f" {self.alpha:.2f}" if self.stage is Stage.BLENDING else ""
        return f"{self.blueprint} {STAGE_WORDS[self.stage]}{alpha}"


@dataclass(slots=True)
class HostView:
    """A host as it is shown."""

    started: HostStarted
    slots: dict[str, SeedView]
    epoch: int = 0
    last: EpochFinished | None = None

    @property
    def growth(self) -> float:
        """Its size, as a multiple of the bare host's."""
        return 1.0 if self.last is None else self.last.parameters / self.started.parameters


class HostsScene(Scene):
    """Hosts side by side, each beside its twin."""

    unit = "epoch"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.hosts: dict[int, HostView] = {}

    def headline(self) -> str:
        started, hosts = self.started, f"{self.started.hosts} host{'s' if self.started.hosts > 1 else ''}"
        twins = " and as many control twins" if started.about["twins"] else ""
        growing = f"{started.about['controller']} grows {hosts}{twins} on {started.task} for {started.rounds} epochs"
        return growing + self.machine()

    def see(self, envelope: Envelope) -> str | None:
        match envelope.host, envelope.event:
            case int(number), HostStarted() as event:
                self.hosts[number] = HostView(event, {slot: SeedView() for slot in event.slots})
            case int(number), EpochFinished() as event:
                self.hosts[number].last, self.hosts[number].epoch = event, envelope.epoch or 0
            case int(number), SeedMeasured() as event:
                self.hosts[number].slots[event.slot] = SeedView(event.stage, event.blueprint, event.alpha)
            case int(number), StageChanged() as event:
                self.hosts[number].slots[event.slot] = SeedView(event.after, event.blueprint, self.hosts[number].slots[event.slot].alpha)
        return None

    def line(self, round: int) -> str:
        return self._totals()

    def rewards(self, envelope: Envelope) -> str | None:
        event = envelope.event
        if not isinstance(event, Rewarded):
            return None
        return f"  host {envelope.host}, decision after epoch {envelope.epoch}: {event.total:+.4f} = {_parts(event.components)}"

    def body(self) -> list[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        twins = {host.started.twin_of: host for host in self.hosts.values() if host.started.twin_of is not None}
        grown = {number: host for number, host in self.hosts.items() if host.started.twin_of is None}
        slots = list(dict.fromkeys(slot for host in grown.values() for slot in host.slots))
        table = Table(box=None, padding=(0, 1))
        for name in ("host", "epoch", "val", *(["control"] if twins else []), "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for slot in slots:  # broken over lines where the terminal is narrow
            table.add_column(slot)
        for number, host in list(grown.items())[:SHOWN_HOSTS]:
            cells = [str(number), f"{host.epoch}/{host.started.epochs}", _points(host)]
            cells += [_points(twins[number])] if twins else []
            cells.append(f"x{host.growth:.2f}" if host.last else "")
            views = [host.slots.get(slot) for slot in slots]
            texts = [Text("") if view is None else Text(str(view), style=STAGE_COLOURS.get(view.stage, "dim")) for view in views]
            table.add_row(*cells, *texts)
        more = [Text(f"and {len(grown) - SHOWN_HOSTS} hosts more", style="dim")] if len(grown) > SHOWN_HOSTS else []
        return [table, *more, Text(self._totals())]

    def _totals(self) -> str:
        """All hosts together: accuracy, against the control, size, and what the slots hold."""
        grown = [host for host in self.hosts.values() if host.started.twin_of is None and host.last is not None]
        control = [host.last.val_accuracy for host in self.hosts.values() if host.started.twin_of is not None and host.last is not None]
        if not grown:
            return "waiting for the first epoch"
        val = _mean([host.last.val_accuracy for host in grown if host.last is not None])
        against = f" ({val - _mean(control):+.2f} against the control)" if control else ""
        text = f"val {val:.2f}{against}, size x{_mean([host.growth for host in grown]):.2f}"
        stages = [view.stage for host in grown for view in host.slots.values()]
        counts = [f"{stages.count(stage)} {STAGE_WORDS[stage]}" for stage in STAGE_WORDS if stage in stages and stage is not Stage.DORMANT]
        return ", ".join([text, *counts])


# A policy that learns by playing


class LearningScene(Scene):
    """Rounds of play, what was learned in each, and the examination."""

    unit = "round"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.history: list[dict[str, float]] = []
        self.arms: dict[str, float] = {}

    def headline(self) -> str:
        about, started = self.started.about, self.started
        processes = f"{about['workers']} processes" if int(about["workers"]) > 1 else "one process"
        memory = f"{float(about['rollout_bytes']) / 1e6:.1f} MB of rollouts"
        learning = f"PPO on {started.task.replace(',', ', ')}: {started.rounds} rounds of {started.hosts} hosts in {processes}, {memory}"
        return learning + self.machine()

    def see(self, envelope: Envelope) -> str | None:
        match envelope.event:
            case PolicyUpdated() as event:
                self.history.append(event.metrics)
            case ArmExamined() as event:
                self.arms[event.arm] = event.score
                return self._examined()
        return None

    def line(self, round: int) -> str:
        figures = self.history[-1]
        parts = [f"return {figures['rollout/ep_rew_mean']:+.3f}", f"val {figures['rollout/accuracy']:.2f}"]
        if "rollout/against_control" in figures:
            parts[-1] += f" ({figures['rollout/against_control']:+.2f} against the control)"
        parts += [f"size x{figures['rollout/growth']:.2f}", f"{figures['rollout/fossils']:.2f} fossils a host"]
        if "train/explained_variance" in figures:
            parts.append(f"explained variance {figures['train/explained_variance']:.2f}")
        if "train/entropy/op" in figures:
            parts.append(f"op entropy {figures['train/entropy/op']:.2f}")
        return ", ".join(parts)

    def rewards(self, envelope: Envelope) -> str | None:
        event = envelope.event
        if not isinstance(event, PolicyUpdated):
            return None
        parts = {name.removeprefix("reward/"): value for name, value in event.metrics.items() if name.startswith("reward/")}
        return f"  an episode earned {event.metrics['rollout/ep_rew_mean']:+.3f}: {_parts(parts)}"

    def total(self) -> int:
        started = self.started
        return started.rounds + -(-int(started.about["arms"]) * int(started.about["examined"]) // started.hosts)

    def body(self) -> list[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 1))
        for name in ("round", "return", "val", "control", "size", "fossils", "EV", "KL", "P(grow)", "H(op)"):
            table.add_column(name, justify="right", no_wrap=True)
        first = max(0, len(self.history) - SHOWN_ROUNDS)
        for number, figures in enumerate(self.history[first:], start=first + 1):
            table.add_row(str(number), *_cells(figures))
        lines: list[RenderableType] = [table]
        if self.history:
            last = self.history[-1]
            entropies = "  ".join(f"{head} {last[f'train/entropy/{head}']:.2f}" for head in HEADS if f"train/entropy/{head}" in last)
            lines.append(Text(f"entropy where a head had a choice: {entropies}", style="dim"))
            counts = "  ".join(f"{op} {last[f'actions/{op}']:.0f}" for op in OPS)
            lines.append(Text(f"decisions in the last round: {counts}", style="dim"))
        if len(self.history) >= self.started.rounds:
            lines.append(Text(self._examined() if self.arms else f"examination on {self.started.about['examined']} unseen hosts"))
        return lines

    def _examined(self) -> str:
        scores = ", ".join(f"{name} {score:.2f}" for name, score in self.arms.items())
        return f"examined on {self.started.about['examined']} unseen hosts, by val score: {scores}"


def _cells(figures: dict[str, float]) -> list[str]:
    """A round as cells of the table; empty where a figure has no meaning."""
    shown = {
        "rollout/ep_rew_mean": "+.3f",
        "rollout/accuracy": ".2f",
        "rollout/against_control": "+.2f",
        "rollout/growth": ".2f",
        "rollout/fossils": ".2f",
        "train/explained_variance": ".2f",
        "train/kl": ".4f",
        "train/op_probability/germinate": ".3f",
        "train/entropy/op": ".2f",
    }
    return [format(figures[name], form) if name in figures else "" for name, form in shown.items()]


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
        for arm in self.ranked()[:SHOWN_ROUNDS]:
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


# A policy that learns from recordings


class RecordingsScene(Scene):
    """Passes over recorded episodes; what the held-out hosts say of each."""

    unit = "pass"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.figures: dict[str, float] = {}

    def headline(self) -> str:
        held_out = int(self.started.about["held_out"])
        recorded = f"{self.started.hosts - held_out} recorded episodes, {held_out} held out"
        return f"{METHOD_WORDS[self.started.method]}: {recorded}; at most {self.started.rounds} passes"

    def see(self, envelope: Envelope) -> str | None:
        if isinstance(envelope.event, PolicyUpdated):
            self.figures = envelope.event.metrics
        return None

    def line(self, round: int) -> str | None:
        if round % max(1, self.started.rounds // LINES):
            return None
        shown = (
            ("held_out/log_likelihood", "log-likelihood {:.3f}"),
            ("held_out/accuracy/op", "op agreed {:.1%}"),
            ("held_out/accuracy/decision", "whole decision {:.1%}"),
            ("held_out/explained_variance", "critic's explained variance {:.2f}"),
        )
        return "on held-out hosts: " + ", ".join(text.format(self.figures[name]) for name, text in shown if name in self.figures)

    def body(self) -> list[RenderableType]:
        from rich.text import Text

        return [Text(self.line(0) or "")] if self.figures else []


# Arms on the same hosts


class ComparisonScene(Scene):
    """Arms that play the same hosts one after another, a chunk at a time."""

    unit = "round"

    def __init__(self, started: RunStarted) -> None:
        super().__init__(started)
        self.arm_of: dict[int, str] = {}
        self.accuracies: dict[str, list[float]] = {}
        """On test, by arm."""
        self.last = ""

    def headline(self) -> str:
        started = self.started
        hosts = f"{started.hosts} host{'s' if started.hosts > 1 else ''} of {started.task.replace(',', ', ')}"
        return f"comparison on {hosts}: {started.about['arms']}{self.machine()}"

    def see(self, envelope: Envelope) -> str | None:
        match envelope.host, envelope.event:
            case int(number), HostStarted(arm=arm):
                self.arm_of[number] = self.last = arm
            case int(number), HostFinished(test_accuracy=float(accuracy)):
                self.accuracies.setdefault(self.arm_of[number], []).append(accuracy)
        return None

    def line(self, round: int) -> str:
        return self._shown(self.last)

    def body(self) -> list[RenderableType]:
        from rich.text import Text

        return [Text(self._shown(arm)) for arm in self.accuracies]

    def _shown(self, arm: str) -> str:
        found = self.accuracies[arm]
        return f"{arm}: test {_mean(found):.2f} on {len(found)} host{'s' if len(found) > 1 else ''}"


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


def _points(host: HostView) -> str:
    return "" if host.last is None else f"{host.last.val_accuracy:.2f}"


def _parts(components: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:+.4f}" for name, value in components.items())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
