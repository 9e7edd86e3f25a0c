"""What an update reports: whether the policy moved, how far, what held it, and whether the critic predicts anything.

Means are over the steps that happened; padding counts for nothing. A figure without a meaning in a round (the entropy of a head that
never had a choice, say) is NaN and is left out of `flat`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from esper.leyline.actions import Op
from esper.simic.learning.rollout import Rollout
from esper.tamiyo.policy.batch import HEADS, ObservationBatch
from esper.tamiyo.policy.heads import ActionDistribution

RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Strengths of the ridge regression that are tried, as shares of a standardised feature's variance; the last predicts nearly a constant."""

FOLDS = 4
"""Parts that the hosts of a round are split into for the ridge regression: each is predicted from the others."""


Tally = defaultdict[str, list[Tensor]]
"""What each of the optimiser's steps has to report, by name. It stays on the device until the end."""


Figure = float | Tensor
"""A number, or a scalar on the device: each that is read by itself would be waited for, so that `flat` reads all together."""

Figures = dict[str, Figure | dict[str, Figure]]
"""What there is to say of an update, by name; figures of each head, op or part of the policy are a dict."""


def flat(figures: Figures) -> dict[str, float]:
    """Every figure that has a meaning, by its full name in the manner of Stable-Baselines3: `train/approx_kl`, `train/entropy/tempo`,
    and `rollout/ep_rew_mean` for what is about the round itself."""
    named: dict[str, Figure] = {}
    for name, value in figures.items():
        full = f"rollout/{name}" if name.startswith("ep_") else f"train/{name}"
        named |= {f"{full}/{key}": item for key, item in value.items()} if isinstance(value, dict) else {full: value}
    read = iter(torch.stack([value.double() for value in named.values() if isinstance(value, Tensor)]).tolist())
    numbers = {name: next(read) if isinstance(value, Tensor) else float(value) for name, value in named.items()}
    return {name: value for name, value in numbers.items() if not math.isnan(value)}


def loss_figures(tally: Tally, entropy_coefficient: float, parts: Iterable[str]) -> Figures:
    """Means over the optimiser's steps; `parts` names the values of gradient_norm.

    loss: all losses together, as the optimiser saw them. entropy_loss: minus the entropy, each head by its multiplier, before the
    coefficient. prior_loss: KL(reference || policy), each head by its strength. gradient_norm: of each part of the policy, before clipping.
    """
    means = {name: (sum(values[1:], values[0]) / len(values)).double() for name, values in tally.items()}
    norms: dict[str, Figure] = dict(zip(parts, means.pop("gradient_norm"), strict=True))
    entropy = entropy_coefficient * means["entropy_loss"]
    loss = means["policy_gradient_loss"] + entropy + means["prior_loss"] + means["value_loss"]
    return {**means, "loss": loss, "gradient_norm": norms}


def policy_figures(
    rollout: Rollout,
    before: ActionDistribution,
    after: ActionDistribution,
    divergence: Tensor,
    clip_range: float,
    first_error: Tensor,
) -> Figures:
    """Compare the policy before and after an update on the round that it learned from.

    divergence: [hosts, steps, 8], that of `after` from `before`.
    first_error: largest distance from 1 of the first minibatch's ratios, which are worked out with gradients, by other kernels.

    kl: the exact KL(before || after) of the distribution over whole actions; kl_by_head sums up to it. approx_kl: the usual estimate from
    the actions drawn. clip_fraction: share of steps whose ratio lies outside the clip range. ratio_error: largest distance of a ratio from
    1 before the first step; above 1e-6 or so, drawing and scoring disagree. entropy: of each head as a share of the largest possible, only
    where it mattered and had a choice. mattered: share of steps in which each head mattered; a head can be healthy and hardly ever used.
    op_probability: of each op where it was legal. logit_gap: how far the likeliest value lies above the next, in nats, wherever the head
    could have mattered. All but ratio_error, entropy and mattered is measured after the update, over the whole round.
    """
    weight, probabilities = rollout.weight, after.op_probabilities()
    steps, op_mask = weight.unsqueeze(-1), rollout.observations.op_mask
    scores = before.score(rollout.actions)
    log_ratio = after.score(rollout.actions).log_prob - scores.log_prob
    kl_by_head = by_head(divergence, steps)
    gaps, could_matter = after.gaps()
    return {
        "kl": sum(kl_by_head.values()),
        "kl_by_head": kl_by_head,
        "approx_kl": mean_of(estimated_kl(log_ratio), weight),
        "clip_fraction": mean_of((log_ratio.expm1().abs() > clip_range).float(), weight),
        "ratio_error": torch.maximum(first_error, ((scores.log_prob - rollout.log_prob).expm1().abs() * weight).max()),
        "entropy": by_head(scores.normalised_entropies, (scores.legal > 1) * steps),
        "mattered": by_head(scores.matters.float(), steps),
        "op_probability": {op.name.lower(): mean_of(probabilities[..., op], op_mask[..., op] * weight) for op in Op},
        "logit_gap": by_head(gaps, could_matter * steps),
    }


def critic_figures(rollout: Rollout, advantage: Tensor, value_before: Tensor, value_after: Tensor) -> Figures:
    """Compare values [hosts, steps] with the returns that were the critic's targets.

    explained_variance: before the update, on a round that the critic had not seen; `regression_ceiling` is what it could be. The targets
    hold the critic's own values, which flatters it: explained_variance_monte_carlo, beside these, is of what was earned. value_std lies
    far below return_std where the critic predicts a constant.
    advantage_kurtosis: the excess, 0 for a normal distribution. advantage_positive: share above 0.
    """
    weight = rollout.weight
    returns = advantage + rollout.value
    of_returns = moments(returns, weight)
    return {
        "explained_variance": explained_variance(value_before, returns, weight),
        "explained_variance_after": explained_variance(value_after, returns, weight),
        "value_std": moments(value_before, weight)["std"],
        "return_mean": of_returns["mean"],
        "return_std": of_returns["std"],
        **{f"advantage_{name}": value for name, value in moments(advantage, weight).items()},
    }


def by_head(values: Tensor, weight: Tensor) -> dict[str, Figure]:
    """Mean over the steps of each head's values [..., 8], by weight [..., 8], or [..., 1] for the same in all heads."""
    weight = weight.expand_as(values)
    return {head.value: mean_of(values[..., i], weight[..., i]) for i, head in enumerate(HEADS)}


def estimated_kl(log_ratio: Tensor) -> Tensor:
    """(r - 1) - log r of each step: never negative, and KL(before || after) in the mean over actions drawn before."""
    return log_ratio.expm1() - log_ratio


def mean_of(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of values [...] by weight [...]; NaN where nothing has weight."""
    return (values * weight).sum() / weight.sum()


def explained_variance(predicted: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """Scalar: 1 - Var(returns - predicted) / Var(returns): 1 is perfect, 0 is a constant. NaN when all returns are the same."""
    variance = _variance(returns, weight)
    return torch.where(variance > 0.0, 1.0 - _variance(returns - predicted, weight) / variance, math.nan)


def moments(values: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation, skew, excess kurtosis and share above 0."""
    values, weight = values.double(), weight.double()
    mean, std = mean_of(values, weight), _variance(values, weight).sqrt()
    standard = torch.where(std > 0.0, (values - mean) / std, math.nan)
    return {
        "mean": mean,
        "std": std,
        "skew": mean_of(standard**3, weight),
        "kurtosis": mean_of(standard**4, weight) - 3.0,
        "positive": mean_of((values > 0).double(), weight),
    }


def regression_ceiling(rollout: Rollout, returns: Tensor) -> Figure:
    """Explained variance of a ridge regression of the returns on what is seen, each part of the hosts predicted from the others.

    Of several strengths the best, since how much there is to be seen differs from round to round. A critic far below it has not learned
    what is there to be learned. NaN for one host, or when all returns are the same.
    """
    folds = min(FOLDS, rollout.hosts)
    if folds < 2:
        return math.nan
    features, weight = _features(rollout.observations), rollout.weight.double()
    returns = returns.double()
    fold = torch.arange(rollout.hosts, device=weight.device) % folds
    predicted = returns.new_empty(len(RIDGES), *returns.shape)
    for left_out in range(folds):
        known, unseen = fold != left_out, fold == left_out
        predicted[:, unseen] = _ridge(features[known], returns[known], weight[known], features[unseen])
    return torch.stack([explained_variance(each, returns, weight) for each in predicted]).max()


def ridge_returns(seen: ObservationBatch, returns: Tensor, weight: Tensor, wanted: ObservationBatch) -> Tensor:
    """float64 [hosts, steps]: the returns at what is `wanted`, by a ridge regression on what was `seen` and what came of it."""
    return _ridge(_features(seen), returns.double(), weight.double(), _features(wanted))[len(RIDGES) // 2]


def _features(batch: ObservationBatch) -> Tensor:
    """[hosts, steps, values]: the host's fields, and mean and largest of each field of its slots."""
    there = batch.exists.unsqueeze(-1)
    mean = (batch.slots * there).sum(dim=-2) / there.sum(dim=-2).clamp(min=1)
    largest = torch.where(there, batch.slots, 0.0).amax(dim=-2)
    return torch.cat([batch.host, mean, largest], dim=-1).double()


def _ridge(x: Tensor, y: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """Fit y [...] on x [..., values] by weight, and predict at `wanted` [..., values]: [RIDGES, ...], one for each strength."""
    share = (weight / weight.sum()).unsqueeze(-1)
    mean = (x * share).sum(dim=(0, 1))
    std = ((x - mean).square() * share).sum(dim=(0, 1)).sqrt()
    scale = torch.where(std > 1e-6, 1.0 / std, 0.0)
    x, wanted, y_mean = (x - mean) * scale, (wanted - mean) * scale, mean_of(y, weight)
    rows = (x * share.sqrt()).flatten(0, 1)
    targets = ((y - y_mean).unsqueeze(-1) * share.sqrt()).flatten(0, 1)
    variances, axes = torch.linalg.eigh(rows.T @ rows)
    along = axes.T @ (rows.T @ targets)
    strengths = torch.tensor(RIDGES, dtype=x.dtype, device=x.device)
    slopes = axes @ (along / (variances.clamp(min=0.0).unsqueeze(-1) + strengths))  # [values, RIDGES]
    return (wanted @ slopes).movedim(-1, 0) + y_mean


def _variance(values: Tensor, weight: Tensor) -> Tensor:
    mean = mean_of(values, weight)
    return mean_of((values - mean).square(), weight)
