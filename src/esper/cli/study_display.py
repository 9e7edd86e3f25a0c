"""What a person sees of learning from recorded runs: a line now and then, and at the end what was imitated and how well."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from esper.cli.display import Clock, Display, Silent

if TYPE_CHECKING:
    from esper.simic.runs.offline import OfflineRun

LINES = 20
"""About as many lines are shown of a study, however many passes it has."""

FEW_ACTS = 100
"""Recordings with fewer decisions other than WAIT than this are too thin to trust."""

METHOD_WORDS = {"bc": "behaviour cloning", "iql": "implicit Q-learning"}


def make_study_display(quiet: bool) -> Display:
    """The display of a study."""
    return Silent() if quiet else PlainStudy()


class PlainStudy:
    """Some of the passes, a line each."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.clock = Clock()

    def start(self, study: OfflineRun) -> None:
        """Say what is learned from."""
        method = METHOD_WORDS[study.config.kind]
        recorded = f"{len(study.lessons)} recorded episodes, {len(study.held_out)} held out"
        print(f"{method}: {recorded}; at most {study.epochs} passes", file=self.out, flush=True)
        self.clock.begin(study.round)

    def progress(self, done: int) -> None:
        """Nothing: a pass takes no time to speak of."""

    def epoch(self, study: OfflineRun) -> None:
        """One pass more."""
        done, total = study.round, study.epochs
        if done % max(1, total // LINES) == 0 or study.done:
            text = line(study.history[-1])
            print(f"pass {done}/{total}: {text}; {self.clock.left(done, total)} left at most", file=self.out, flush=True)

    def stop(self) -> None:
        """Nothing to put away."""


def line(figures: dict[str, float]) -> str:
    """A pass in a line, by what the held-out hosts say; what has no meaning is left out."""
    shown = (
        ("held_out/log_likelihood", "log-likelihood {:.3f}"),
        ("held_out/accuracy/op", "op agreed {:.1%}"),
        ("held_out/accuracy/decision", "whole decision {:.1%}"),
        ("held_out/explained_variance", "critic's explained variance {:.2f}"),
    )
    return "on held-out hosts: " + ", ".join(text.format(figures[name]) for name, text in shown if name in figures)


def print_study(summary: dict[str, Any]) -> None:
    """What was imitated, how well on hosts held out, and what cannot be said."""
    print("\n" + "\n".join(verdict(summary["study"])))
    print(f"policy: {summary['run']}/policy.safetensors")
    print(f"go on with: esper train ppo --from-policy {summary['run']}/policy.safetensors")
    print(f"run folder: {summary['run']}")


def verdict(study: dict[str, Any]) -> list[str]:
    """The last paragraph, a sentence or two a line."""
    found, ops = study["agreement"], study["ops"]
    total, acts = sum(ops.values()), sum(count for name, count in ops.items() if name != "WAIT")
    who = ", ".join(f"{name} ({count} episodes)" for name, count in study["controllers"].items())
    lines = [
        f"learned by {METHOD_WORDS[study['method']]} from {study['episodes'] + study['held_out']} recorded episodes on "
        f"{', '.join(study['tasks'])}: {who}",
        f"recorded: {total} decisions, {acts} of them acts: {_counts(ops)}",
    ]
    if "accuracy/op" in found:
        lines.append(
            f"on {study['held_out']} held-out episodes, where there was a choice: the likeliest op is the recorded one in "
            f"{found['accuracy/op']:.1%} of decisions (always waiting: {found['waiting']:.1%}), the whole decision in "
            f"{found['accuracy/decision']:.1%}"
        )
    else:
        lines.append(f"the {study['held_out']} held-out episodes hold no choice: how well it agrees is not known")
    if "accuracy/acts" in found:
        heads = ", ".join(f"{name.removeprefix('head/')} {value:.1%}" for name, value in found.items() if name.startswith("head/"))
        lines.append(f"where the recording acted, the op is the same in {found['accuracy/acts']:.1%}")
        lines.append(f"each head, where it mattered and had a choice, given the recorded op and slot: {heads}")
    elif "accuracy/op" in found:
        lines.append("the held-out episodes only wait: how well acts are imitated is not known")
    if acts < FEW_ACTS:
        lines.append(f"warning: {acts} recorded acts are few; record more hosts before relying on this policy")
    missing = [name for name, count in ops.items() if count == 0]
    if missing:
        lines.append(f"never recorded, and so not learned: {', '.join(missing)}")
    if study["method"] == "iql":
        lines.append("whether it grows better networks than what was recorded cannot be told from recordings; that takes hosts")
    return lines


def _counts(ops: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in ops.items() if count)
