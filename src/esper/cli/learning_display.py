"""What a person sees while a policy learns: a live table on a terminal, one plain line per round elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from esper.cli.display import Clock, Display, Silent

if TYPE_CHECKING:
    from rich.console import Group

    from esper.simic.runs.ppo import PPORun

SHOWN_ROUNDS = 12
"""Rows of the live table: the newest rounds."""

HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
OPS = ("wait", "germinate", "advance", "fossilize", "prune", "set_alpha_target")


def make_learning_display(quiet: bool, live: bool = True) -> Display:
    """The display that fits where the output goes."""
    if quiet:
        return Silent()
    return LiveLearning() if live and sys.stdout.isatty() else PlainLearning()


class PlainLearning:
    """One line per round."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.clock = Clock()

    def start(self, school: PPORun) -> None:
        print(headline(school), file=self.out, flush=True)
        self.clock.begin(school.round)

    def progress(self, done: int) -> None:
        """Nothing: a line per round is enough for a log."""

    def epoch(self, school: PPORun) -> None:
        done, total = school.round, school.epochs
        if school.arms:
            print(examined(school), file=self.out, flush=True)
            return
        pace = f"{self.clock.per_epoch(done):.1f} s a round, {self.clock.left(done, total)} left"
        print(f"round {done}/{total}: {line(school.history[-1])}; {pace}", file=self.out, flush=True)
        if done == total:
            print(f"examination on {school.config.examined} unseen hosts: the policy, and four baselines", file=self.out, flush=True)

    def stop(self) -> None:
        """Nothing to put away."""


class LiveLearning:
    """The newest rounds as a table, entropy and action counts of the last one, and the time to go."""

    def __init__(self) -> None:
        from rich.live import Live

        self.clock = Clock()
        self.school: PPORun | None = None
        self.hosts_done = 0
        self.live = Live(refresh_per_second=4, get_renderable=self.render)

    def start(self, school: PPORun) -> None:
        self.school = school
        self.clock.begin(school.round)
        self.live.start()

    def progress(self, done: int) -> None:
        self.hosts_done = done

    def epoch(self, school: PPORun) -> None:
        self.hosts_done = 0
        self.live.refresh()

    def stop(self) -> None:
        self.live.stop()

    def render(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        school = self.school
        if school is None:
            return Group()
        table = Table(box=None, padding=(0, 1))
        for name in ("round", "return", "val", "control", "size", "fossils", "EV", "KL", "P(grow)", "H(op)"):
            table.add_column(name, justify="right", no_wrap=True)
        first = max(0, len(school.history) - SHOWN_ROUNDS)
        for number, figures in enumerate(school.history[first:], start=first + 1):
            table.add_row(str(number), *cells(figures))
        lines: list[object] = [Text(headline(school), style="bold"), table]
        if school.history:
            last = school.history[-1]
            entropies = "  ".join(f"{head} {last[f'train/entropy/{head}']:.2f}" for head in HEADS if f"train/entropy/{head}" in last)
            lines.append(Text(f"entropy where a head had a choice: {entropies}", style="dim"))
            counts = "  ".join(f"{op} {last[f'actions/{op}']:.0f}" for op in OPS)
            lines.append(Text(f"decisions in the last round: {counts}", style="dim"))
        done, total = school.round, school.epochs
        now = self.hosts_done / school.config.hosts
        share, what = (done + now) / total, f" round {done}/{total}"
        if done == total:
            share, what = (len(school.arms) + now) / len(school.ARMS), f" examination on {school.config.examined} unseen hosts"
            lines += [Text(examined(school))] if school.arms else []
        left = f", {self.clock.left(done, total)} left" if self.clock.first < done < total else ""
        bar = Table.grid()
        bar.add_row(ProgressBar(total=1.0, completed=min(1.0, share), width=40), Text(what + left))
        lines.append(bar)
        return Group(*lines)  # type: ignore[arg-type]


def headline(school: PPORun) -> str:
    """What is being done, in a line."""
    config = school.config
    processes = f"{config.workers} processes" if config.workers > 1 else "one process"
    memory = f"{school.buffer.nbytes / 1e6:.1f} MB of rollouts"
    return f"PPO on {', '.join(config.task)}: {config.rounds} rounds of {config.hosts} hosts in {processes}, {memory}"


def examined(school: PPORun) -> str:
    """The arms of the examination that were played, in a line."""
    scores = {name: sum(school.score(played) for played in plays) / len(plays) for name, plays in school.arms.items()}
    return "examined so far, by val score: " + ", ".join(f"{name} {score:.2f}" for name, score in scores.items())


def line(figures: dict[str, float]) -> str:
    """A round in a line."""
    parts = [f"return {figures['rollout/ep_rew_mean']:+.3f}", f"val {figures['rollout/accuracy']:.2f}"]
    if "rollout/against_control" in figures:
        parts[-1] += f" ({figures['rollout/against_control']:+.2f} against the control)"
    parts += [f"size x{figures['rollout/growth']:.2f}", f"{figures['rollout/fossils']:.2f} fossils a host"]
    if "train/explained_variance" in figures:
        parts.append(f"explained variance {figures['train/explained_variance']:.2f}")
    if "train/entropy/op" in figures:
        parts.append(f"op entropy {figures['train/entropy/op']:.2f}")
    return ", ".join(parts)


def cells(figures: dict[str, float]) -> list[str]:
    """A round as cells of the live table; empty where a figure has no meaning."""

    def cell(name: str, form: str) -> str:
        return format(figures[name], form) if name in figures else ""

    return [
        cell("rollout/ep_rew_mean", "+.3f"),
        cell("rollout/accuracy", ".2f"),
        cell("rollout/against_control", "+.2f"),
        cell("rollout/growth", ".2f"),
        cell("rollout/fossils", ".2f"),
        cell("train/explained_variance", ".2f"),
        cell("train/kl", ".4f"),
        cell("train/op_probability/germinate", ".3f"),
        cell("train/entropy/op", ".2f"),
    ]
