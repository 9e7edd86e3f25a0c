"""The last lines of a run: what came out, and what it was compared with."""

from __future__ import annotations

from math import isfinite
from textwrap import fill
from typing import Any

from esper.cli.scenes import METHOD_WORDS
from esper.cli.tables import Row, print_rows
from esper.simic.statistics import LEAST_HOSTS, TOO_FEW, bounds

WIDTH = 80
"""Columns of the narrowest terminal that results are laid out for."""
NAMED_HOSTS = 10
"""Hosts that a sentence names before it counts the others."""

FEW_ACTS = 100
"""Recordings with fewer decisions other than WAIT than this are too thin to trust."""


def print_run(summary: dict[str, Any]) -> None:
    """Hosts under a controller."""
    split = "val" if summary["hosts"][0]["test_accuracy"] is None else "test"
    rows: list[Row] = [
        {
            "host": number,
            "seed": str(host["seed"]),
            **({"test": host["test_accuracy"]} if split == "test" else {}),
            "val": host["val_accuracy"],
            "size x": host["parameters"] / host["host_parameters"],
            "seeds": host["germinated"],
            "pruned": host["pruned"],
            "fossils": ", ".join(f"{slot}:{seed['blueprint']}" for slot, seed in host["slots"].items() if seed["stage"] == "FOSSILIZED"),
        }
        for number, host in enumerate(summary["hosts"])
    ]
    print()
    print_rows(rows, tuple(rows[0]), wrapped=["fossils"], width=WIDTH)
    mean = sum(host[f"{split}_accuracy"] for host in summary["hosts"]) / len(rows)
    say(f"{split} accuracy of the harvested networks: {mean:.2f} on average")
    if "against_control" in summary:
        found = summary["against_control"][f"{split}_accuracy"]
        sure = f"{_interval(found)}, better on {_wins(found)}"
        say(f"against the same hosts without growth: {found['mean']:+.2f} points, {sure}")
        spent = summary["operations_x"]
        say(f"that took {spent['all']:.1f} times their operations, {spent['counterfactual']:.1f} of it for counterfactuals")
    for sentence in failures(summary):
        say(sentence)
    print(f"run folder: {summary['run']}")


def print_learning(summary: dict[str, Any]) -> None:
    """A policy that was taught, and how it did on hosts it had never seen."""
    examination = summary["examination"]
    rows: list[Row] = []
    waiting = examination["arms"]["wait"]["operations"]
    for name, arm in examination["arms"].items():
        row = {"": name, "score": arm["score"], "val": arm["accuracy"], "size x": arm["growth"]}
        row |= {"ops x": arm["operations"] / waiting, "kept": arm["fossils"]}
        found = examination["policy_against"].get(name)
        difference, wins = (_difference(found), _wins(found)) if found else ("", "")
        rows.append({**row, "policy minus it [95 %]": difference, "better on": wins})
    counted = "score is the val accuracy of the harvested network minus rent, ops are operations against those of wait, kept are fossils"
    say(f"\nexamination on {examination['hosts']} unseen hosts; {counted}:")
    print_rows(rows, tuple(rows[0]), wrapped=[], width=WIDTH)
    say(verdict(examination))
    print(f"policy: {summary['run']}/policy.safetensors")
    print(f"run folder: {summary['run']}")


def failures(summary: dict[str, Any]) -> list[str]:
    """A sentence for each way in which hosts of a run, or their twins, came to nothing, so that their figures mislead."""
    found = []

    def losses(host: dict[str, Any]) -> list[float]:
        return [float(host[name]) for name in ("val_loss", "test_loss") if host[name] is not None]

    for whose, hosts in (("", summary["hosts"]), ("the control twin of ", summary.get("control", []))):
        # A host decides once after each epoch.
        undone = [number for number, host in enumerate(hosts) if host["rollbacks"] >= sum(host["decisions"].values())]
        diverged = [number for number, host in enumerate(hosts) if not all(map(isfinite, losses(host)))]
        if undone:
            found.append(f"{whose}{_hosts(undone)} was rolled back in every epoch: it never learned, and its figures are those of chance")
        if diverged:
            found.append(f"{whose}{_hosts(diverged)} ended with a loss that is not finite: it diverged, and its figures mean nothing")
    return found


def print_study(summary: dict[str, Any]) -> None:
    """What was imitated, how well on hosts held out, and what cannot be said."""
    print()
    for sentence in study_verdict(summary["study"]):
        say(sentence)
    print(f"policy: {summary['run']}/policy.safetensors")
    print(f"go on with: esper train ppo --from-policy {summary['run']}/policy.safetensors")
    print(f"run folder: {summary['run']}")


def study_verdict(study: dict[str, Any]) -> list[str]:
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


def verdict(examination: dict[str, Any]) -> str:
    """What was learned, in a sentence that the intervals bear out; none where there are too few hosts for them."""
    if examination["hosts"] < LEAST_HOSTS:
        return f"{TOO_FEW} and so for a verdict: examine {LEAST_HOSTS} or more, with --examined"
    better = [name for name, d in examination["policy_against"].items() if d["low"] > 0]
    worse = [name for name, d in examination["policy_against"].items() if d["high"] < 0]
    open_question = [name for name in examination["policy_against"] if name not in better and name not in worse]
    parts = []
    if better:
        parts.append(f"does better than {join(better)}")
    if worse:
        parts.append(f"does worse than {join(worse)}")
    if open_question:
        parts.append(f"cannot be told apart from {join(open_question)}")
    return "the policy " + "; it ".join(parts)


def _interval(found: dict[str, Any]) -> str:
    return TOO_FEW if found["low"] is None else f"95 % interval {bounds(found['low'], found['high'])}"


def _difference(found: dict[str, Any]) -> str:
    """A mean, with its interval where there is one."""
    return f"{found['mean']:+.2f}" + ("" if found["low"] is None else f" {bounds(found['low'], found['high'])}")


def _wins(found: dict[str, Any]) -> str:
    return f"{found['wins']} of {found['pairs']}"


def _hosts(hosts: list[int]) -> str:
    """One host, or each of several, by number."""
    names = [str(number) for number in hosts[:NAMED_HOSTS]] + ([f"{len(hosts) - NAMED_HOSTS} more"] if len(hosts) > NAMED_HOSTS else [])
    return f"host {names[0]}" if len(hosts) == 1 else f"each of the hosts {join(names)}"


def join(names: list[str]) -> str:
    """Names as a sentence lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def say(text: str) -> None:
    """Print a sentence in lines that no terminal breaks inside a number, nor before its percent sign."""
    for line in text.replace(" %", "\N{NO-BREAK SPACE}%").splitlines():
        told = fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        print(told.replace("\N{NO-BREAK SPACE}", " "))
