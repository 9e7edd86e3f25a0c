"""The last lines of a run: what came out, and what it was compared with."""

from __future__ import annotations

from typing import Any

from esper.cli.scenes import METHOD_WORDS

FEW_ACTS = 100
"""Recordings with fewer decisions other than WAIT than this are too thin to trust."""


def print_run(summary: dict[str, Any]) -> None:
    """Hosts under a controller."""
    hosts = summary["hosts"]
    print(f"\n{'host':>4} {'seed':>6} {'test':>7} {'val':>7} {'size':>7}  germinated / fossilised / pruned, fossils")
    for number, host in enumerate(hosts):
        fossils = ", ".join(f"{slot} {s['blueprint']}" for slot, s in host["slots"].items() if s["stage"] == "FOSSILIZED")
        counts = f"{host['germinated']} / {host['fossilized']} / {host['pruned']}"
        size = host["parameters"] / host["host_parameters"]
        row = f"{number:>4} {host['seed']:>6} {host['test_accuracy']:>7.2f} {host['val_accuracy']:>7.2f} {f'x{size:.2f}':>7}"
        print(f"{row}  {counts}  {fossils}".rstrip())
    mean = sum(host["test_accuracy"] for host in hosts) / len(hosts)
    print(f"test accuracy of the harvested networks: {mean:.2f} on average")
    if "against_control" in summary:
        print(f"against the same hosts without growth: {_difference(summary['against_control']['test_accuracy'])}")
    print(f"run folder: {summary['run']}")


def print_learning(summary: dict[str, Any]) -> None:
    """A policy that was taught, and how it did on hosts it had never seen."""
    examination = summary["examination"]
    print(f"\nexamination on {examination['hosts']} unseen hosts, by val score (accuracy minus rent) of the harvested network:")
    print(f"{'':>10} {'score':>7} {'accuracy':>9} {'size':>7} {'fossils':>8}  policy against it")
    for name, arm in examination["arms"].items():
        against = _difference(examination["policy_against"][name]) if name != "policy" else ""
        size = f"x{arm['growth']:.2f}"
        row = f"{name:>10} {arm['score']:>7.2f} {arm['accuracy']:>9.2f} {size:>7} {arm['fossils']:>8.2f}"
        print(f"{row}  {against}".rstrip())
    print(verdict(examination))
    print(f"policy: {summary['run']}/policy.safetensors")
    print(f"run folder: {summary['run']}")


def print_study(summary: dict[str, Any]) -> None:
    """What was imitated, how well on hosts held out, and what cannot be said."""
    print("\n" + "\n".join(study_verdict(summary["study"])))
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
    """What was learned, in a sentence that the intervals bear out."""
    better = [name for name, d in examination["policy_against"].items() if d["low"] > 0]
    worse = [name for name, d in examination["policy_against"].items() if d["high"] < 0]
    open_question = [name for name in examination["policy_against"] if name not in better and name not in worse]
    parts = []
    if better:
        parts.append(f"does better than {_and(better)}")
    if worse:
        parts.append(f"does worse than {_and(worse)}")
    if open_question:
        parts.append(f"cannot be told apart from {_and(open_question)}")
    return "the policy " + "; it ".join(parts)


def _difference(difference: dict[str, Any]) -> str:
    if difference["pairs"] == 1:
        return f"{difference['mean']:+.2f} points, on one host"
    interval = f"[{difference['low']:+.2f}, {difference['high']:+.2f}]"
    return f"{difference['mean']:+.2f} points, 95 % interval {interval}, better on {difference['wins']} of {difference['pairs']}"


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
