"""What is decided, earned and learned over a run: actions, rewards, figures of each round, entropies, and whether values come true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from esper.karn.diagnostics.values import calibration as calibrated
from esper.karn.record import Record
from esper.karn.views.hosts import finished, grown, started
from esper.karn.views.plain import mean, view
from esper.leyline.actions import Head, Op

RETURN = "rollout/ep_rew_mean"
GAMMA, GAE_LAMBDA = 0.995, 0.97
"""Of PPO, where a run's config does not say."""


@view
def rounds(record: Record) -> dict[str, Any]:
    """What was learned, round by round or pass by pass: {"rounds", "metrics": {name: [value, or None where it has no meaning]}}."""
    updates = record.rows("policy_updated")
    names = sorted({name for row in updates for name in row["metrics"]})
    return {
        "rounds": [row["update"] for row in updates],
        "metrics": {name: [row["metrics"].get(name) for row in updates] for name in names},
    }


@view
def entropies(record: Record) -> dict[str, Any]:
    """Of each head, given the heads before it, as a share of the largest possible, where it mattered and had a choice."""
    found = rounds(record)
    heads = {
        head.value: found["metrics"][f"train/entropy/{head.value}"] for head in Head if f"train/entropy/{head.value}" in found["metrics"]
    }
    return {"rounds": found["rounds"], "heads": heads}


@view
def actions(record: Record) -> dict[str, Any]:
    """How often each op is decided: by epoch, of the hosts that are recorded in full, and by round, of all."""
    mine = set(grown(record))
    counts: dict[int, dict[str, int]] = {}
    hosts = set()
    for row in record.rows("decided"):
        if row["host"] in mine:
            hosts.add(row["host"])
            of_epoch = counts.setdefault(row["epoch"], dict.fromkeys(_OPS, 0))
            of_epoch[row["decision"]["op"]] += 1
    epochs, found = sorted(counts), rounds(record)
    by_round = {op: found["metrics"].get(f"actions/{op.lower()}") for op in _OPS}
    return {
        "hosts": len(hosts),
        "by_epoch": {"epochs": epochs, **{op: [counts[epoch][op] for epoch in epochs] for op in _OPS}},
        "by_round": {"rounds": found["rounds"] if any(by_round.values()) else [], **{op: counts or [] for op, counts in by_round.items()}},
    }


@view
def rewards(record: Record) -> dict[str, Any]:
    """What is earned, by component: of an episode in each round where a policy learns, else of a decision after each epoch.

    {"x": "round" or "epoch", "at", "components": {name: means}, "total": means}
    """
    found = rounds(record)
    if RETURN in found["metrics"]:
        components = {name.removeprefix("reward/"): values for name, values in found["metrics"].items() if name.startswith("reward/")}
        return {"x": "round", "at": found["rounds"], "components": components, "total": found["metrics"][RETURN]}
    mine, totals, parts = set(grown(record)), dict[int, list[float]](), dict[str, dict[int, list[float]]]()
    for row in record.rows("rewarded"):
        if row["host"] in mine and row["total"] is not None:
            totals.setdefault(row["epoch"], []).append(row["total"])
            for name, value in row["components"].items():
                parts.setdefault(name, {}).setdefault(row["epoch"], []).append(value)
    epochs = sorted(totals)
    components = {name: [mean(values.get(epoch, [])) for epoch in epochs] for name, values in parts.items()}
    return {"x": "epoch", "at": epochs, "components": components, "total": [mean(totals[epoch]) for epoch in epochs]}


@view
def calibration(record: Record) -> dict[str, Any] | None:
    """The critic's values against the returns that followed, of the hosts of the last round that are recorded in full and have ended.

    The fields of karn.diagnostics.values.Calibration, and "round" and "hosts"; None where nothing has values, or all are the same.
    """
    ppo = record.config.get("ppo", {})
    gamma, gae_lambda = float(ppo.get("gamma", GAMMA)), float(ppo.get("gae_lambda", GAE_LAMBDA))
    by_round: dict[int, list[int]] = {}
    for number in grown(record):
        if number in finished(record):
            by_round.setdefault(started(record)[number]["round"], []).append(number)
    for round in sorted(by_round, reverse=True):
        episodes = [found for number in by_round[round] if (found := _valued(record, number)) is not None]
        if not episodes:
            continue
        values = [np.asarray(value) for value, _ in episodes]
        returns = [_discounted(np.asarray(reward), gamma) for _, reward in episodes]
        targets = [
            value + _advantages(np.asarray(reward), value, gamma, gae_lambda) for value, (_, reward) in zip(values, episodes, strict=True)
        ]
        made = calibrated(np.concatenate(values), np.concatenate(returns), np.concatenate(targets))
        return None if made is None else {**asdict(made), "round": round, "hosts": len(episodes)}
    return None


def _valued(record: Record, number: int) -> tuple[list[float], list[float]] | None:
    """Values and rewards of an episode, step by step; None where no critic looked at it."""
    values: Mapping[int, float | None] = {row["epoch"]: row["value"] for row in record.rows("decided", host=number)}
    earned: Mapping[int, float | None] = {row["epoch"]: row["total"] for row in record.rows("rewarded", host=number)}
    steps = [(values[epoch], earned.get(epoch)) for epoch in sorted(values)]
    if not steps or any(value is None or reward is None for value, reward in steps):
        return None
    return [float(value) for value, _ in steps if value is not None], [float(reward) for _, reward in steps if reward is not None]


def _discounted(values: np.ndarray[Any, Any], rate: float) -> np.ndarray[Any, Any]:
    """Each value plus all that follow it, by powers of the rate."""
    found, ahead = np.empty(len(values)), 0.0
    for step in range(len(values) - 1, -1, -1):
        ahead = float(values[step]) + rate * ahead
        found[step] = ahead
    return found


def _advantages(reward: np.ndarray[Any, Any], value: np.ndarray[Any, Any], gamma: float, gae_lambda: float) -> np.ndarray[Any, Any]:
    """Generalised advantage estimates of one episode."""
    errors = reward + gamma * np.append(value[1:], 0.0) - value
    return _discounted(errors, gamma * gae_lambda)


_OPS: Sequence[str] = tuple(op.name for op in Op)
