"""The tables of docs/rewards.md: `python -m tests.simic.reward_tables` computes them and writes them into the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from esper.leyline.stages import OCCUPIED
from esper.simic.rewards import COMPONENTS, Mode, RewardConfig
from esper.tamiyo import make
from tests.simic.plans import SLOTS, WORLDS, exploits, field, grow, honest_plans, rank_correlation, returns, rewards, simulate
from tests.tamiyo.simulator import World

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
MODES: tuple[Mode, ...] = ("shaped", "simplified", "sparse", "loss")
AUDITED: tuple[Mode, ...] = ("shaped", "simplified")
PARTS = COMPONENTS["shaped"]


def worked() -> str:
    """One episode of 14 epochs, step by step: a conv_light is grown and kept."""
    world = World(noise=0.0, budget=14)
    control = simulate(make("wait"), world).control
    episode = simulate(grow((1, SLOTS[1], "conv_light")), world)
    rows = []
    for step, components in zip(episode.steps, rewards(episode, control, RewardConfig()), strict=True):
        grown = next((seed for seed in step.report.seeds if seed.stage in OCCUPIED), None)
        stage = "" if grown is None else f"{grown.stage.name} {grown.alpha:.2f}"
        accuracy, reference = step.report.val_accuracy, control.accuracy[step.report.epoch - 1]
        epoch = str(step.report.epoch)
        if step.final is not None:
            stage, accuracy, epoch = "harvested", step.final.accuracy, "end"
        values = [*components.values(), sum(components.values())]
        rows.append([step.before.epoch, step.decision.op.name, epoch, stage, f"{accuracy:.1f}", f"{reference:.1f}", *map(_signed, values)])
    sums = returns(episode, control, RewardConfig())
    rows.append(["", "", "", "", "", "discounted sum", *(_signed(sums[name]) for name in (*PARTS, "total"))])
    return _table(["after", "decision", "report", "seed, alpha", "val", "control", *PARTS, "total"], rows)


def audit() -> str:
    """What each exploit earns in each kind of host. WAIT earns 0."""
    rows = []
    for index, name in enumerate(exploits()):
        row = [name]
        for world in map(field, WORLDS):
            for mode in AUDITED:
                row.append(_signed(returns(world.exploits[index], world.control, RewardConfig(mode=mode))["total"]))
        rows.append(row)
    return _table(["exploit", *(f"{world}, {mode}" for world in WORLDS for mode in AUDITED)], rows)


def correlations() -> str:
    """Rank correlation of return and final score, by mode."""
    rows = []
    for mode in MODES:
        pairs = {name: field(name).pairs(mode) for name in WORLDS}
        honest = {name: found[: len(honest_plans())] for name, found in pairs.items()}
        sets = [*honest.values(), [*chain(*honest.values())], [*chain(*pairs.values())]]
        rows.append([mode, *(f"{rank_correlation(*zip(*found, strict=True)):.2f}" for found in sets)])
    return _table(["mode", *WORLDS, "all hosts", "with the exploits"], rows)


def magnitudes(episodes: int = 50) -> str:
    """Mean and standard deviation of an episode's discounted return, by component, for two controllers."""
    rows = []
    for kind, world in WORLDS.items():
        for name in ("random", "heuristic"):
            gains, found = [], []
            for seed in range(episodes):
                control, episode = simulate(make("wait"), world, seed).control, simulate(make(name), world, seed)
                gains.append(episode.gain(control))
                found.append(returns(episode, control, RewardConfig()))
            columns = [gains, *([each[part] for each in found] for part in (*PARTS, "total"))]
            rows.append([kind, name, *(f"{_signed(float(np.mean(column)))} ± {np.std(column):.3f}" for column in columns)])
    return _table(["host", "controller", "gain, points", *PARTS, "total"], rows)


TABLES: dict[str, Callable[[], str]] = {"worked": worked, "audit": audit, "correlations": correlations, "magnitudes": magnitudes}
"""Every table by the name that marks its place in the page."""


def place(page: str, name: str, table: str) -> str:
    """The page with a table where its marks are."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    assert len(re.findall(pattern, page, flags=re.DOTALL)) == 1, f"docs/rewards.md has no place for {name}"
    return re.sub(pattern, lambda match: f"{match[1]}{table}{match[2]}", page, flags=re.DOTALL)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def _signed(value: float) -> str:
    """Three decimals; nothing for nothing."""
    text = f"{value:+.3f}"
    return "0" if float(text) == 0.0 else text


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name, compute in TABLES.items():
        text = place(text, name, compute())
    PAGE.write_text(text, encoding="utf-8")
