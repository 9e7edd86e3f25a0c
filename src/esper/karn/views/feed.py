"""The events of a run as lines for people, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from esper.karn.event_index import KINDS, Row
from esper.karn.record import Record
from esper.leyline.actions import HEADS_FOR_OP, Op
from esper.leyline.errors import unknown

SEARCHED = 20_000
"""Events that are looked through for a text at once; whoever wants to look further asks again."""
AT_ONCE = 500
"""Events that are given at once at most."""


def feed(
    record: Record, before: int | None = None, limit: int = 100, kinds: Sequence[str] = (), host: int | None = None, text: str = ""
) -> dict[str, Any]:
    """Events before a number, the newest first: {"events": [seq, time, host, epoch, kind, text], "more", "before"}.

    kinds, host, text: only those of these kinds, of this host, with this in their line. more: whether there may be earlier ones; they are
    asked for with `before`. Raises UnknownNameError for a kind that there is not.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise unknown("kind of event", kind, KINDS)
    ahead = [seq for seq in record.numbers(*kinds, host=host) if before is None or seq < before][::-1]
    wanted = max(1, min(limit, AT_ONCE))
    found: list[dict[str, Any]] = []
    looked = 0
    for place in range(0, min(len(ahead), SEARCHED if text else wanted), wanted):
        for row in record.at(ahead[place : place + wanted]):
            looked += 1
            line = line_of(row)
            if text.casefold() in line.casefold():
                found.append({**{name: row[name] for name in ("seq", "time", "host", "epoch", "kind")}, "text": line})
                if len(found) == wanted:
                    break
        if len(found) == wanted:
            break
    more = 0 < looked < len(ahead)
    return {"events": found, "more": more, "before": ahead[looked - 1] if more else None}


def line_of(row: Row) -> str:
    """An event in one line of plain text."""
    return LINES[row["kind"]](row)


def decision_text(decision: Row) -> str:
    """What was decided, in a few words, with the heads that matter."""
    shown = {head.value: decision[head.value] for head in HEADS_FOR_OP[Op[decision["op"]]][1:]}
    word, slot, blueprint = decision["op"].lower().replace("_", " "), shown.pop("slot", ""), shown.pop("blueprint", "")
    values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return " ".join(filter(None, [word, blueprint, f"at {slot}" if slot else "", f"({values})" if values else ""]))


def _number(value: float | None, form: str = ".2f") -> str:
    return "?" if value is None else format(value, form)


def _seed(row: Row) -> str:
    measured = [f"{row['blueprint']} at {row['slot']}: {row['stage'].lower()}, alpha {_number(row['alpha'])}"]
    measured += [f"brings {_number(row['contribution'], '+.2f')} points"] if row["contribution"] is not None else []
    measured += [f"would bring {_number(row['trial_contribution'], '+.2f')} points"] if row["trial_contribution"] is not None else []
    return ", ".join(measured)


def _gate(row: Row) -> str:
    verdict = "passed" if row["passed"] else "refused: " + "; ".join(row["reasons"])
    return f"gate {row['gate']} at {row['slot']} {verdict}"


def _decided(row: Row) -> str:
    decision = row["decision"]
    why = f": {decision['reason']}" if decision["reason"] else ""
    return decision_text(decision) + why


def _rewarded(row: Row) -> str:
    parts = ", ".join(f"{name} {_number(value, '+.4f')}" for name, value in row["components"].items())
    return f"earned {_number(row['total'], '+.4f')}: {parts}"


def _updated(row: Row) -> str:
    shown = {"rollout/ep_rew_mean": "return", "rollout/accuracy": "val", "train/explained_variance": "explained variance", "train/kl": "KL"}
    shown |= {"held_out/log_likelihood": "held-out log-likelihood"}
    figures = [f"{word} {_number(row['metrics'][name], '.3f')}" for name, word in shown.items() if name in row["metrics"]]
    return f"update {row['update']}" + (": " + ", ".join(figures) if figures else "")


def _started(row: Row) -> str:
    twin = f", the twin of host {row['twin_of']}" if row["twin_of"] is not None else ""
    arm = f", arm {row['arm']}" if row["arm"] else ""
    return f"a host of {row['task']} begins: seed {row['seed']}, {row['parameters']:,} parameters, {row['epochs']} epochs{arm}{twin}"


def _ended(row: Row) -> str:
    size = row["parameters"] / row["host_parameters"]
    return f"ends at val {_number(row['val_accuracy'])}, x{size:.2f} its size, {row['fossilized']} of {row['germinated']} seeds kept"


def _trained(row: Row) -> str:
    values = [value for value in row["val_accuracy"] if value is not None]
    return f"{len(row['hosts'])} hosts trained, val {_number(sum(values) / len(values) if values else None)} on average"


def _arm(row: Row) -> str:
    figures = f"score {_number(row['score'])} on {row['hosts']} hosts, accuracy {_number(row['accuracy'])}"
    return f"{row['arm']}: {figures}, x{_number(row['growth'])} the size"


def _plans(row: Row) -> str:
    best = f", ahead is {row['best']} with a score of {_number(row['score'])}" if row["best"] else ""
    return f"{row['episodes']} episodes of {row['plans']} plans{best}"


def _rolled_back(row: Row) -> str:
    pruned = f", seeds pruned at {', '.join(row['pruned'])}" if row["pruned"] else ""
    return f"rolled back to epoch {row['to_epoch']}: {row['reason']}{pruned}"


def _retargeted(row: Row) -> str:
    epochs = f"over {row['epochs']} epochs" if row["epochs"] else "at once"
    return f"alpha at {row['slot']} goes from {_number(row['alpha'])} to {_number(row['target'])} {epochs}"


LINES: dict[str, Callable[[Row], str]] = {
    "run_started": lambda row: f"the run begins: {row['command']}",
    "run_finished": lambda row: f"the run has ended: {row['outcome']}",
    "round_finished": lambda row: f"round {row['round']} of {row['rounds']} is over",
    "host_started": _started,
    "epoch_finished": lambda row: (
        f"val {_number(row['val_accuracy'])}, train {_number(row['train_accuracy'])}, {row['parameters']:,} parameters"
    ),
    "hosts_trained": _trained,
    "seed_measured": _seed,
    "interaction": lambda row: f"{' and '.join(row['slots'])} together: {_number(row['value'], '+.2f')} points",
    "observed": lambda row: f"{len(row['observed_host'])} values of the host and {len(row['slots'])} slots were seen",
    "decided": _decided,
    "rewarded": _rewarded,
    "policy_updated": _updated,
    "arm_examined": _arm,
    "refused": lambda row: f"{row['op'].lower().replace('_', ' ')} at {row['slot']} refused: {row['reason']}",
    "stage_changed": lambda row: f"{row['blueprint']} at {row['slot']}: {row['before'].lower()} to {row['after'].lower()} ({row['cause']})",
    "gate_checked": _gate,
    "alpha_retargeted": _retargeted,
    "rolled_back": _rolled_back,
    "host_finished": _ended,
    "plans_played": _plans,
    "anomaly": lambda row: f"{row['detector'].replace('_', ' ')}: {row['text']}",
    "sink_failed": lambda row: f"sink {row['sink']} failed and is dropped: {row['error']}",
    "sink_behind": lambda row: f"sink {row['sink']} is behind: {row['dropped']} events dropped",
    "note": lambda row: row["text"],
}
"""What is said of each kind of event."""
