"""The parts of a reward, each a pure and bounded function.

Four of them (progress, attribution, pbrs, rent) say how things stand: a level. They are paid as gamma * level after - level
before. The discounted sum of such payments over an episode is gamma^T * (level at the end) - (level at the start), whatever happened in
between: going up and down, waiting at a height or going round in circles earns nothing. The level at the end is that of the harvested
network. Costs and the terminal reward are paid as they are.

Numbers that are not finite count as the worst they could be. d, the lead, is how many points the host is ahead of its control.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from esper.leyline.actions import Decision, Op
from esper.leyline.reports import SeedReport
from esper.leyline.stages import LIVE, Stage
from esper.simic.rewards.config import RewardConfig

STAGE_POTENTIAL: dict[Stage, float] = {
    Stage.UNKNOWN: 0.0,
    Stage.DORMANT: 0.0,
    Stage.GERMINATED: 1.0,
    Stage.TRAINING: 2.0,
    Stage.BLENDING: 3.5,
    Stage.HOLDING: 5.5,
    Stage.FOSSILIZED: 8.0,
    Stage.PRUNED: 0.0,
    Stage.EMBARGOED: 0.0,
    Stage.RESETTING: 0.0,
}
"""A slot on its way back to DORMANT is worth as much as an empty one, or pruning would be paid for."""

EPOCH_POTENTIAL = 0.3
EPOCH_POTENTIAL_CAP = 2.0
"""Epochs spent in a live stage add a little, at most so much: with 5.5 + 2 in HOLDING, fossilising (8) is always a step up."""

BONUS_CAP = 0.1
"""Most that the bonus for fossils comes to, however many there are."""


def change(before: float, after: float, gamma: float) -> float:
    """What a level pays: gamma * after - before. Within (1 + gamma) times the level's bound."""
    return gamma * after - before


# Points


def accuracy_points(accuracy: float) -> float:
    """Accuracy in points, within 0 and 100; NaN is 0."""
    return 0.0 if math.isnan(accuracy) else min(max(accuracy, 0.0), 100.0)


def loss_points(loss: float, classes: int, points_per_nat: float) -> float:
    """-points_per_nat * loss. A loss above that of twice the uniform prediction's, 2 ln(classes), or NaN, counts as that."""
    worst = 2.0 * math.log(max(2, classes))
    return -points_per_nat * (worst if math.isnan(loss) else min(max(loss, 0.0), worst))


def effective_parameters(seeds: Iterable[SeedReport], host: int) -> float:
    """The host's parameters and, of each seed, as many as alpha gives it influence: none in TRAINING, all of a fossil's."""
    return host + sum(min(max(seed.alpha, 0.0), 1.0) * seed.parameters for seed in seeds)


# Levels


def progress_level(lead: float, config: RewardConfig) -> float:
    """progress * tanh(d / scale). Within +-progress."""
    return config.progress * math.tanh(lead / config.scale)


def rent_level(lead: float, rent: float, config: RewardConfig) -> float:
    """progress * (tanh((d - rent) / scale) - tanh(d / scale)), rent in points. From -2 * progress to 0.

    Near -rent / scale. With progress it makes progress * tanh((d - rent) / scale), the running score: points and rent count alike
    however far ahead the host is.
    """
    return config.progress * (math.tanh((lead - rent) / config.scale) - math.tanh(lead / config.scale))


def slot_credit(contribution: float | None, progress: float, lead: float) -> float:
    """Points that a seed is credited with, from its contribution c, the progress p since its germination, and the lead d.

    c if c < 0; 0 if p <= 0; 2pc / (p + c) if c >= p > 0; else c. The positive part times min(1, 2 sigmoid(3d)). 0 while c is unknown.

    p is progress against the control, as everywhere: what the host would have learned alone is nobody's credit. A seed that the
    host came to depend on without being better for it ("ransomware": c is high, p is not) is credited with less than 2p.
    """
    if contribution is None or math.isnan(contribution):
        return 0.0
    c = min(max(contribution, -100.0), 100.0)
    if c < 0.0:
        return c
    if progress <= 0.0:
        return 0.0
    credit = 2.0 * progress * c / (progress + c) if c >= progress else c
    return credit * min(1.0, 2.0 / (1.0 + math.exp(min(-3.0 * lead, 700.0))))


def credit_room(lead: float, rent: float, config: RewardConfig) -> float:
    """max(0, d - rent) + credit_slack: points that all seeds together may be credited with as gains.

    Several seeds that depend on one another each count for all of them, since without any one all is lost; together they gained no
    more than the host is ahead once they are paid for.
    """
    return max(0.0, lead - rent) + config.credit_slack


def attribution_level(credits: Sequence[float], room: float, config: RewardConfig) -> float:
    """attribution * tanh((min(gains, room) + losses) / scale), gains and losses summed over the slots. Within +-attribution."""
    gains, losses = sum(credit for credit in credits if credit > 0.0), sum(credit for credit in credits if credit < 0.0)
    return config.attribution * math.tanh((min(gains, room) + losses) / config.scale)


def stage_potential(seed: SeedReport) -> float:
    """0 / 1 / 2 / 3.5 / 5.5 / 8 from dormant to fossil, plus min(0.3 * epochs in stage, 2) while live. From 0 to 8.

    A seed that is being ramped down to be pruned has none left: the decision costs it, not the end of the ramp.
    """
    if seed.pruning:
        return 0.0
    waited = min(EPOCH_POTENTIAL * max(0, seed.epochs_in_stage), EPOCH_POTENTIAL_CAP) if seed.stage in LIVE else 0.0
    return STAGE_POTENTIAL[seed.stage] + waited


def pbrs_level(seeds: Iterable[SeedReport], config: RewardConfig) -> float:
    """pbrs * sum over the slots of stage_potential. From 0 to 8 * pbrs for each slot; 0 once the episode is over."""
    return config.pbrs * sum(map(stage_potential, seeds))


# Costs, all of them at least 0


def act_cost(decision: Decision, refused: bool, config: RewardConfig) -> float:
    """0 for WAIT, `refused` for an op that was refused, `intervention` for any other."""
    if decision.op is Op.WAIT:
        return 0.0
    return config.refused if refused else config.intervention


def helpful_prune_cost(credit: float, rent: float, config: RewardConfig) -> float:
    """prune_helpful * min(1, max(0, credit - rent) / helpful_points): of pruning a seed of that credit and rent, in points."""
    return config.prune_helpful * min(1.0, max(0.0, credit - rent) / config.helpful_points)


def young_prune_cost(age: int, worth: float | None, config: RewardConfig) -> float:
    """thrash * max(0, 1 - age / thrash_epochs); nothing if the seed measurably harms. `worth` in points, None before it was measured."""
    if worth is not None and worth < 0.0:
        return 0.0
    return config.thrash * min(1.0, max(0.0, 1.0 - age / config.thrash_epochs))


def again_cost(epochs_since_pruned: int, config: RewardConfig) -> float:
    """`thrash` for germinating what was pruned in the same slot less than thrash_epochs ago."""
    return config.thrash if epochs_since_pruned < config.thrash_epochs else 0.0


def holding_cost(held: Iterable[int], paid: float, config: RewardConfig) -> float:
    """`holding` for each seed in HOLDING for longer than holding_patience; with what was `paid` before, at most holding_cap."""
    due = config.holding * sum(epochs > config.holding_patience for epochs in held)
    return min(due, max(0.0, config.holding_cap - paid))


# The end


def terminal_reward(gain: float, contributions: Iterable[float | None], config: RewardConfig) -> float:
    """terminal * tanh(gain / scale) + min(fossil_bonus * n, the same if positive, 0.1). Within +-(terminal + 0.1).

    gain: points minus rent of the harvested network, minus the same of the control. n: fossils that contribute fossil_points or more.
    The bonus never turns a loss into a gain.
    """
    earned = config.terminal * math.tanh(gain / config.scale)
    count = sum(c is not None and c >= config.fossil_points for c in contributions)
    return earned + min(config.fossil_bonus * count, max(0.0, earned), BONUS_CAP)
