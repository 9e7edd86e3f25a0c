"""Charts of what is decided, earned and learned in a run, and of what is set against each other."""

from __future__ import annotations

from esper.karn import views
from esper.karn.chart_values import POINTS, by_round, number, numbers, words
from esper.karn.charts import Chart, Series, bars, layers, lines, points
from esper.karn.record import Record
from esper.leyline.actions import Op

ARMS = 12
"""Bars of arms that a chart has room for, the best ones."""


def actions(record: Record) -> Chart | None:
    """What is done over time, waiting left out: by round where a policy learns, else by epoch."""
    found = views.actions(record)
    by, x = ("by_round", "rounds") if found["by_round"]["rounds"] else ("by_epoch", "epochs")
    at = found[by][x]
    acts = [Series(words(op.name), at, numbers(found[by][op.name])) for op in Op if op is not Op.WAIT and found[by][op.name]]
    if not at or not acts:
        return None
    of = "" if by == "by_round" else f", of {found['hosts']} host{'s' if found['hosts'] != 1 else ''}"
    return layers(acts, title=f"Acts by {x[:-1]}{of}; waiting is left out", x_label=x[:-1], y_label="decisions")


def entropies(record: Record) -> Chart | None:
    """How open the decisions of each head are, where it mattered and had a choice."""
    found = views.entropies(record)
    series = [Series(words(head), found["rounds"], numbers(values)) for head, values in found["heads"].items()]
    title = "Conditional entropy of each head"
    return lines(series, title=title, x_label="round", y_label="0 settled, 1 open", whole_x=True) if series else None


def rewards(record: Record) -> Chart | None:
    """What is earned, by component, and in all."""
    found = views.rewards(record)
    if not found["at"]:
        return None
    series = [Series(words(name), found["at"], numbers(values)) for name, values in found["components"].items()]
    total = Series("in all", found["at"], numbers(found["total"]))
    title = "Rewards of an episode by component" if found["x"] == "round" else "Rewards of a decision by component"
    return layers(series, title=title, x_label=found["x"], y_label="reward", total=total) if series else None


def calibration(record: Record) -> Chart | None:
    """Whether the critic's values come true: means of tenths of the decisions, which lie on the diagonal where it is right."""
    found = views.calibration(record)
    if found is None:
        return None
    values, returns = [each[0] for each in found["curve"]], [each[1] for each in found["curve"]]
    title = f"Values and the returns that followed, of {found['steps']} decisions in round {found['round']}"
    series = Series("tenths of the decisions", values, returns)
    return points([series], title=title, x_label="value", y_label="return that followed", diagonal=True)


def returns(record: Record) -> Chart | None:
    """Return of an episode by round."""
    shown = {"rollout/ep_rew_mean": "return"}
    return by_round(record, "Return of an episode", "reward", shown)


def critic(record: Record) -> Chart | None:
    """How much of the returns the critic explains, before and after each update, and how much a regression would."""
    names = {"": "before the update", "_after": "after it", "_ceiling": "a regression on what is seen"}
    shown = {f"train/explained_variance{suffix}": word for suffix, word in names.items()}
    return by_round(record, "Explained variance of the returns", "1 all, 0 none", shown)


def updates(record: Record) -> Chart | None:
    """How far each update moved the policy."""
    shown = {"train/kl": "KL divergence", "train/approx_kl": "as estimated from actions", "train/clip_fraction": "clip fraction"}
    return by_round(record, "How far each update moved the policy", "KL in nats; share of steps", shown)


def arms(record: Record) -> Chart | None:
    """The score of every arm, point, plan or trial."""
    found = [row for row in views.arms(record) if row["score"] is not None]
    best = sorted(found, key=lambda row: -row["score"])[:ARMS]
    shown = [row for row in found if row in best]
    title = "Score" + (f" of the best {ARMS} of {len(found)}" if len(found) > ARMS else "")
    series = Series("score", range(len(shown)), [row["score"] for row in shown])
    return bars([row["arm"] for row in shown], [series], title=title, y_label="accuracy minus rent") if shown else None


def differences(record: Record) -> Chart | None:
    """What is set against what, host by host, with intervals."""
    found = [row for row in views.arms(record) if row["difference"] is not None]
    shown = sorted(found, key=lambda row: -row["score"])[:ARMS] if len(found) > ARMS else found
    if not shown:
        return None
    low, high = ([number(row["difference"][end]) for row in shown] for end in ("low", "high"))
    series = Series("difference", range(len(shown)), [number(row["difference"]["mean"]) for row in shown], low, high)
    title = f"Score: {shown[0]['difference_of']}, with 95 % interval"
    return bars([row["arm"] for row in shown], [series], title=title, y_label=POINTS)
