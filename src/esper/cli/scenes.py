"""What there is to see of each kind of run, put together from its events: a headline, a line per round, and a table for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.cli.scene import Scene, mean_of
from esper.cli.search_scenes import ComparisonScene, PlansScene, SearchScene, SweepScene
from esper.leyline.events import (
    ArmExamined,
    Envelope,
    EpochFinished,
    HostStarted,
    HostsTrained,
    PolicyUpdated,
    Rewarded,
    RunStarted,
    SeedMeasured,
    StageChanged,
)
from esper.leyline.stages import Stage
from esper.simic.runs.resuming import PRACTICE

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
METHOD_WORDS = {"learn": "PPO", "expert": "forked search", "bc": "behaviour cloning", "iql": "implicit Q-learning"}


def scene_of(started: RunStarted) -> Scene:
    """The scene for a run that begins or goes on."""
    kinds: dict[str, type[Scene]] = {
        "run": HostsScene,
        "gardener": HostsScene,
        **dict.fromkeys(PRACTICE, LearningScene),
        "compare": ComparisonScene,
        "headroom": PlansScene,
        "tune": SearchScene,
        "sweep": SweepScene,
    }
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
        self.latest: HostsTrained | None = None

    def headline(self) -> str:
        started, hosts = self.started, f"{self.started.hosts} host{'s' if self.started.hosts > 1 else ''}"
        twins = " and as many control twins" if started.about["twins"] else ""
        growing = f"{started.about['controller']} grows {hosts}{twins} on {started.task} for {started.rounds} epochs"
        return growing + self.machine()

    def see(self, envelope: Envelope) -> str | None:
        match envelope.host, envelope.event:
            case int(number), HostStarted() as event:
                self.hosts[number] = HostView(event, {slot: SeedView() for slot in event.slots})
            case None, HostsTrained() as event:
                self.latest = event
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
        if self.latest is None:
            return "waiting for the first epoch"
        latest, started = self.latest, [self.hosts[number].started for number in self.latest.hosts]
        grown = [place for place, host in enumerate(started) if host.twin_of is None]
        control = [place for place, host in enumerate(started) if host.twin_of is not None]
        val = mean_of([latest.val_accuracy[place] for place in grown])
        against = f" ({val - mean_of([latest.val_accuracy[place] for place in control]):+.2f} against the control)" if control else ""
        size = mean_of([latest.parameters[place] / started[place].parameters for place in grown])
        live, fossils = (sum(counts[place] for place in grown) for counts in (latest.live, latest.fossils))
        seeds = [f"{live} live seed{'s' if live > 1 else ''}"] if live else []
        seeds += [f"{fossils} fossil{'s' if fossils > 1 else ''}"] if fossils else []
        return ", ".join([f"val {val:.2f}{against}, size x{size:.2f}", *seeds])


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
        forks = f" and {about['forks']} forks" if "forks" in about else ""
        where = f"{started.task.replace(',', ', ')}: {started.rounds} rounds of {started.hosts} hosts{forks}"
        learning = f"{METHOD_WORDS[started.method]} on {where} in {processes}, {memory}"
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
        if "rollout/score" in figures:
            parts.append(f"score {figures['rollout/score']:.2f}")
        parts += [f"size x{figures['rollout/growth']:.2f}", f"{figures['rollout/fossils']:.2f} fossils a host"]
        if "train/explained_variance" in figures:
            parts.append(f"explained variance {figures['train/explained_variance']:.2f}")
        if "train/entropy/op" in figures:
            parts.append(f"op entropy {figures['train/entropy/op']:.2f}")
        if "search/gain" in figures:
            parts.append(f"gain on held-out hosts {figures['search/gain']:+.2f} of {figures['search/best']:.2f}")
        return ", ".join(parts)

    def rewards(self, envelope: Envelope) -> str | None:
        event = envelope.event
        if not isinstance(event, PolicyUpdated):
            return None
        parts = {name.removeprefix("reward/"): value for name, value in event.metrics.items() if name.startswith("reward/")}
        return f"  an episode earned {event.metrics['rollout/ep_rew_mean']:+.3f}: {_parts(parts)}"

    def total(self) -> int:
        started, about = self.started, self.started.about
        # An examination has no forks, which take most of a round.
        of_round = started.hosts + int(about.get("forks", 0))
        return started.rounds + -(-int(about["arms"]) * int(about["examined"]) // of_round)

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


def _points(host: HostView) -> str:
    return "" if host.last is None else f"{host.last.val_accuracy:.2f}"


def _parts(components: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:+.4f}" for name, value in components.items())
