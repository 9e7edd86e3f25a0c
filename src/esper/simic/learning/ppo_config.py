"""The settings of PPO. Free of torch, so that a command can show its help at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from esper.leyline.config import NonNegative, NonNegativeInt, Range, Share, check_ranges
from esper.tamiyo.controllers.prior import Prior


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyMultipliers:
    """How much each head's entropy counts, against the others."""

    op: NonNegative = 1.0
    slot: NonNegative = 1.0
    blueprint: NonNegative = 1.3
    style: NonNegative = 1.2
    tempo: NonNegative = 1.3
    alpha_target: NonNegative = 1.2
    alpha_speed: NonNegative = 1.2
    alpha_curve: NonNegative = 1.2

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorStrength:
    """lambda of each head: how strongly it is held near the reference, which is the prior, or the policy that learning goes on from."""

    op: NonNegative = 0.2
    slot: NonNegative = 0.02
    blueprint: NonNegative = 0.02
    style: NonNegative = 0.02
    tempo: NonNegative = 0.02
    alpha_target: NonNegative = 0.02
    alpha_speed: NonNegative = 0.02
    alpha_curve: NonNegative = 0.02

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Everything that can be set about learning."""

    gamma: Share = 0.995
    """Discount of the reward, per step."""
    gae_lambda: Share = 0.97
    """How far advantages look past the critic's word: 0 one step, 1 to the end of the episode."""
    advantage_clip: Annotated[float, Range(0.1)] = 4.0
    """Most that a step's advantage counts, in standard deviations of its task's in the round."""
    clip_range: NonNegative = 0.2
    """How far the ratio may move before a step earns nothing more."""
    epochs: Annotated[int, Range(1)] = 4
    """Epochs over each round."""
    minibatches: Annotated[int, Range(1)] = 4
    """Parts that the hosts of a round are split into in each epoch; one host each when there are fewer hosts."""
    target_kl: NonNegative = 0.015
    """The policy's epochs end early at a minibatch on which its exact KL from where it started is above 1.5 times this; 0 for never."""
    learning_rate: NonNegative = 3e-4
    """Of Adam, once it has warmed up."""
    warmup_updates: NonNegativeInt = 5
    """Updates over which the learning rate rises from a part of itself to the whole."""
    decay: Literal["none", "linear", "cosine"] = "linear"
    """How the learning rate falls after the warm-up."""
    decay_updates: Annotated[int, Range(1)] | None = None
    """Update, counted from the first, at which it has fallen; None for the last one of the run."""
    final_rate: Share = 0.1
    """Share of the learning rate that is left then."""
    max_gradient_norm: Annotated[float, Range(1e-6)] = 0.5
    """Largest norm of the actor's gradient, and of the critic's, each by itself; larger ones are clipped to it."""
    weight_decay: NonNegative = 0.01
    """Of the critic alone."""
    value_clip: Annotated[float, Range(0, 1e6)] | None = None
    """How far a value may move in an update, in standard deviations of the return, before it earns nothing more; None for no limit."""
    popart_rate: Share = 0.1
    """Share of each round's returns in the statistics that returns are normalised by."""
    entropy_start: NonNegative = 0.05
    """Weight of the entropy bonus in the first update."""
    entropy_end: NonNegative = 0.01
    """The same after `entropy_updates`."""
    entropy_updates: NonNegativeInt | None = None
    """Updates over which the bonus goes from one to the other, in a straight line; None for all of the run's."""
    entropy_multipliers: EntropyMultipliers = field(default_factory=EntropyMultipliers)
    prior_strength: PriorStrength = field(default_factory=PriorStrength)
    prior: Prior = field(default_factory=Prior)
    """What a new policy starts from and is held near. One that is learned on from is held near itself instead, as it was."""
    checkpoint_lstm: bool = False
    """Work the LSTM's inner values out again for the gradient instead of keeping them: less memory, more time."""
    autocast: bool = False
    """bfloat16 in encoders and LSTM while learning; acting is always in float32."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def over(self, updates: int) -> PPOConfig:
        """The settings of a run of so many updates: what is to last for the whole run gets its length."""
        return replace(
            self,
            decay_updates=updates if self.decay_updates is None else self.decay_updates,
            entropy_updates=updates if self.entropy_updates is None else self.entropy_updates,
        )
