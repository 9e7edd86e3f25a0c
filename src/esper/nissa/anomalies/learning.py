"""Anomalies of a policy that learns, from the figures of its updates; `simic/learning/ppo_metrics.py` explains each of them.

A policy for growth is a sentinel: it waits nearly always, and rightly. So a head is judged where it mattered and had a choice, and the
op head not at all while it still acts. What a round does not say, because a head was hardly used, is neither good nor bad.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from esper.leyline.actions import Head, Op
from esper.leyline.events import Anomaly, Envelope, PolicyUpdated
from esper.nissa.anomalies.alarms import Detector, figure
from esper.nissa.anomalies.config import AnomalyConfig

ONE_OP = 0.9
"""Share of the decisions from which on an op other than WAIT is all that a policy does."""
RETURNS_VARY = 1e-3
"""Standard deviation below which all returns are the same, and there is nothing for a critic to tell apart."""
NORMS = 16
"""Rounds that the median of a gradient's norm is taken over."""
FEWEST_NORMS = 5
"""Rounds of which a norm has to be known before another one is held against their median."""
MOST_NAMES = 64
"""Parts of a policy, and losses, that are watched; those that come first by name."""


class EntropyCollapse(Detector):
    """A head that always says the same."""

    name = "entropy_collapse"
    what = (
        "A head of the policy has nothing left to choose: its normalised entropy, over the steps in which it mattered and had a choice, "
        "stays below the floor. The op head only if it has also stopped acting, or does nothing but one op."
    )
    thresholds = ("entropy_floor", "entropy_uses", "entropy_acts", "patience")
    events = (PolicyUpdated,)

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Judge each head by a round."""
        assert isinstance(envelope.event, PolicyUpdated)
        metrics, floor, rounds = envelope.event.metrics, self.config.entropy_floor, self.config.patience
        decisions = {op: figure(metrics, f"actions/{op.name.lower()}") or 0.0 for op in Op}
        for head in Head:
            entropy = figure(metrics, f"train/entropy/{head.value}")
            mattered, total = figure(metrics, f"train/mattered/{head.value}"), sum(decisions.values())
            rare = mattered is not None and total > 0.0 and mattered * total < self.config.entropy_uses
            met = None if entropy is None or rare else entropy < floor and not (head is Head.OP and self._acts(metrics, decisions))
            if self.alarms.begins(head.value, met, rounds) and entropy is not None:
                low = f"its entropy where it had a choice is {entropy:.2g}, below {floor:g} for {_rounds(rounds)}"
                yield self.anomaly(f"the {head.value} head has collapsed: {low}", entropy, floor)

    def _acts(self, metrics: Mapping[str, float], decisions: Mapping[Op, float]) -> bool:
        """Whether the policy still does this and that, as far as is known."""
        total, length = sum(decisions.values()), figure(metrics, "rollout/ep_len_mean")
        if not total > 0.0 or length is None:
            return False
        shares = {op: count / total for op, count in decisions.items()}
        acts = (1.0 - shares[Op.WAIT]) * length
        return acts >= self.config.entropy_acts and max(share for op, share in shares.items() if op is not Op.WAIT) <= ONE_OP


class ValueCollapse(Detector):
    """A critic that says the same of every state, or nothing that comes true."""

    name = "value_collapse"
    what = (
        "The critic tells nothing apart though returns vary and could be foreseen: its values hardly differ, or explain nothing of the "
        "returns' variance."
    )
    thresholds = ("value_spread", "value_explained", "value_ceiling", "value_warmup", "patience")
    events = (PolicyUpdated,)

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Judge the critic by a round that it had not seen."""
        assert isinstance(envelope.event, PolicyUpdated)
        metrics, config = envelope.event.metrics, self.config
        returned, ceiling = figure(metrics, "train/return_std"), figure(metrics, "train/explained_variance_ceiling")
        if envelope.event.update <= config.value_warmup or returned is None or returned < RETURNS_VARY:
            return
        if ceiling is not None and ceiling < config.value_ceiling:
            return
        spread, explained = figure(metrics, "train/value_std"), figure(metrics, "train/explained_variance")
        narrow = spread is not None and config.value_spread > 0.0 and spread < config.value_spread * returned
        wrong = explained is not None and config.value_explained > -1.0 and explained <= config.value_explained
        met = None if spread is None and explained is None else narrow or wrong
        if not self.alarms.begins("values", met, config.patience):
            return
        lasts = f"for {_rounds(config.patience)}"
        if narrow and spread is not None:
            share = spread / returned
            text = f"the critic's values have collapsed: their standard deviation is {share:.2g} of the returns', below"
            yield self.anomaly(f"{text} {config.value_spread:g} {lasts}", share, config.value_spread)
        elif explained is not None:
            text = f"the critic explains nothing of the returns: its explained variance is {explained:.2g}, not above"
            yield self.anomaly(f"{text} {config.value_explained:g} {lasts}", explained, config.value_explained)


class RatioExplosion(Detector):
    """An update that moved the policy further than its data can bear."""

    name = "ratio_explosion"
    what = (
        "An update moved the policy further than its data can bear, by its KL divergence or by the share of ratios outside the clip "
        "range; or ratios were not 1 before it, so that what is learned from is not what was drawn."
    )
    thresholds = ("ratio_kl", "ratio_clipped", "ratio_error", "patience")
    events = (PolicyUpdated,)

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Judge an update."""
        assert isinstance(envelope.event, PolicyUpdated)
        metrics, config = envelope.event.metrics, self.config
        divergence = "train/kl" if "train/kl" in metrics else "train/approx_kl"
        moved = "the policy moved too far in one update: its KL divergence from the policy before is {value:.2g}, above {limit:g}"
        clipped = "{value:.0%} of the ratios lie outside the clip range after one update, above {limit:.0%}"
        first = "drawing and scoring disagree: a ratio was {value:.2g} from 1 before the first step of an update, above {limit:g}"
        for name, limit, never, text in (
            (divergence, config.ratio_kl, 0.0, moved),
            ("train/clip_fraction", config.ratio_clipped, 1.0, clipped),
            ("train/ratio_error", config.ratio_error, 0.0, first),
        ):
            value = metrics.get(name)
            met = None if value is None or limit == never else not value <= limit  # NaN is above everything
            if self.alarms.begins(name, met) and value is not None:
                yield self.anomaly(text.format(value=value, limit=limit), value, limit)


class GradientPathology(Detector):
    """A gradient that explodes, or is gone."""

    name = "gradient_pathology"
    what = (
        "The gradient of a part of the policy is not finite, is many times what it was in the rounds before, or has vanished though there "
        "was something to learn from; or a loss is not finite."
    )
    thresholds = ("gradient_factor", "gradient_usual", "gradient_vanished", "patience")
    events = (PolicyUpdated,)

    def __init__(self, config: AnomalyConfig) -> None:
        super().__init__(config)
        self.norms: dict[str, list[float]] = {}
        """Of each part, in the last rounds."""

    def see(self, envelope: Envelope) -> Iterator[Anomaly]:
        """Judge every part by a round."""
        assert isinstance(envelope.event, PolicyUpdated)
        metrics, watched = envelope.event.metrics, self.config.gradient_factor > 0.0
        losses = sorted(name for name in metrics if name.startswith("train/") and name.endswith("loss"))
        for name in losses[:MOST_NAMES]:
            value = metrics[name]
            if self.alarms.begins(name, watched and not math.isfinite(value)):
                yield self.anomaly(f"{name} is {value}: what is learned from here on is worth nothing", value, 0.0)
        prefix = "train/gradient_norm/"
        for name in sorted(name for name in metrics if name.startswith(prefix))[:MOST_NAMES]:
            part, norm = name.removeprefix(prefix), metrics[name]
            yield from self._large(part, norm)
            yield from self._small(part, norm, metrics)

    def _large(self, part: str, norm: float) -> Iterator[Anomaly]:
        """Hold a norm against those of the rounds before."""
        before, config = self.norms.get(part, []), self.config
        usual = sorted(before)[len(before) // 2] if len(before) >= FEWEST_NORMS else math.inf
        limit = max(config.gradient_factor * usual, config.gradient_usual)
        met = config.gradient_factor > 0.0 and not (math.isfinite(norm) and norm <= limit)
        if self.alarms.begins(f"large {part}", met):
            if math.isfinite(norm):
                text = f"is {norm:.2g}, more than {config.gradient_factor:g} times its median of {usual:.2g} in the rounds before"
            else:
                text = f"is {norm}"
            yield self.anomaly(f"the gradient of the policy's part {part} {text}", norm, limit)
        if math.isfinite(norm) and (part in self.norms or len(self.norms) < MOST_NAMES):
            self.norms[part] = [*before, norm][-NORMS:]

    def _small(self, part: str, norm: float, metrics: Mapping[str, float]) -> Iterator[Anomaly]:
        """A head without a choice, or that never mattered, has no gradient by right."""
        limit, rounds = self.config.gradient_vanished, self.config.patience
        heads = {head.value for head in Head} if part == "choice" else {part} & {head.value for head in Head}
        idle = bool(heads) and not any(figure(metrics, f"train/entropy/{head}") is not None for head in heads)
        met = None if idle or not math.isfinite(norm) else norm < limit
        if self.alarms.begins(f"small {part}", met, rounds):
            gone = f"its norm is {norm:.2g}, below {limit:g} for {_rounds(rounds)}"
            yield self.anomaly(f"the gradient of the policy's part {part} has vanished: {gone}", norm, limit)

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it."""
        return {**super().state(), "norms": {part: list(norms) for part, norms in self.norms.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state(state)
        self.norms = {part: list(norms) for part, norms in state["norms"].items()}


def _rounds(count: int) -> str:
    """So many rounds, in words."""
    return f"{count} rounds" if count > 1 else "a round"
