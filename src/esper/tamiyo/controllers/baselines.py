"""Controllers to compare with: one that waits, one that decides at random, and one that follows a fixed schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from esper.leyline.actions import WAIT, Decision, Head, Op, Style
from esper.leyline.config import NonNegativeInt, Range, Share, check_ranges
from esper.leyline.errors import ConfigError, nearest
from esper.tamiyo.controllers.controller import State, random_stream, register
from esper.tamiyo.controllers.prior import Prior
from esper.tamiyo.observe.masks import BoolArray, Masks, check_choice, choose
from esper.tamiyo.observe.signals import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitConfig:
    """The controller that waits has nothing to set."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Never grows anything: the host as it would have been."""

    config: WaitConfig
    name: str = "wait"

    def start(self, seed: int) -> State:
        """An empty state: there is nothing to remember."""
        return {}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """WAIT, whatever is seen."""
        return WAIT, state


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomConfig:
    """The probabilities that decisions are drawn with."""

    wait: Share = 0.7
    """Probability of WAIT while nothing is ready to advance or fossilise; the rest is as `Prior` says."""
    uniform: bool = False
    """Give every legal op the same probability instead."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class Random:
    """Draws a random legal decision, head by head."""

    config: RandomConfig
    name: str = "random"

    def start(self, seed: int) -> State:
        """The seed, which gives the random numbers of each epoch."""
        return {"seed": seed}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """A legal decision, drawn from seed and epoch."""
        rng = random_stream(self.name, state["seed"], state["seed"], observation.report.epoch)
        prior = Prior(wait=self.config.wait)

        def pick(head: Head, mask: BoolArray) -> int:
            probabilities = mask / mask.sum() if head is Head.OP and self.config.uniform else prior.probabilities(head, mask)
            return int(rng.choice(len(mask), p=probabilities))

        return choose(observation.masks, pick), state


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedConfig:
    """The schedule. Epochs are counted from 1. The defaults are what searches for headroom found; see docs/results.md."""

    blueprints: tuple[str, ...] = ("depthwise", "conv_light", "attention", "mlp")
    """What to grow: the first of these that fits the slot."""
    first: Annotated[int, Range(1)] = 1
    """Epoch after which the first seed is germinated."""
    period: Annotated[int, Range(1)] = 3
    """Epochs from one germination to the next; one that cannot take place yet is made up for as soon as it can."""
    seeds: NonNegativeInt = 3
    """How many seeds to germinate in all, at places spread evenly over the host."""
    places: tuple[Share, ...] = ()
    """Where the seeds go instead, one after another: 0 is the first slot, 1 the last. Then there are as many seeds as places."""
    style: Style = Style.LINEAR_ADD
    tempo: int = 3
    """Epochs that blending takes."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_choice(Head.TEMPO, self.tempo)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Uniform places, periodic times: whatever the host does, seeds start by the calendar, advance when they may, and stay."""

    config: FixedConfig
    name: str = "fixed"

    def start(self, seed: int) -> State:
        """Nothing to remember: the report counts the seeds."""
        return {}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """FOSSILIZE before ADVANCE before GERMINATE, each as soon as it is legal and due."""
        masks, done = observation.masks, observation.report.germinated
        for op, why in ((Op.FOSSILIZE, "it may be kept"), (Op.ADVANCE, "it may advance")):
            if masks.slots(op).any():
                return Decision(op=op, slot=masks.slot_names[int(masks.slots(op).argmax())], reason=why), state
        due, seeds = self.config.first + done * self.config.period, len(self.config.places) or self.config.seeds
        if done >= seeds or observation.report.epoch < due:
            return WAIT, state
        slot = self._place(masks, done)
        if slot is None:
            return WAIT, state
        decision = Decision(
            op=Op.GERMINATE,
            slot=slot,
            blueprint=self._blueprint(masks, slot),
            style=self.config.style,
            tempo=self.config.tempo,
            reason=f"seed {done + 1} of {seeds} was due after epoch {due}",
        )
        return decision, state

    def _place(self, masks: Masks, done: int) -> str | None:
        """The legal slot nearest to where the next seed belongs."""
        legal = np.flatnonzero(masks.slots(Op.GERMINATE))
        if not len(legal):
            return None
        slots, places = len(masks.slot_names), self.config.places
        wanted = places[done] * (slots - 1) if places else (done + 0.5) / self.config.seeds * slots - 0.5
        return masks.slot_names[int(legal[np.abs(legal - wanted).argmin()])]

    def _blueprint(self, masks: Masks, slot: str) -> str:
        here = [name for name, fits in zip(masks.blueprint_names, masks.blueprints(slot), strict=True) if fits]
        for name in self.config.blueprints:
            if name in here:
                return name
        wanted = ", ".join(self.config.blueprints)
        raise ConfigError(f"fixed: none of its blueprints ({wanted}) fits slot {slot!r}; {nearest(wanted, here)}")


FIXED_SPACE = {
    "blueprints": '["depthwise","mlp"],["conv_light","mlp_small"],["conv_heavy","lora32"],["bottleneck","lora8"],["attention","norm"]',
    "first": "1..10",
    "period": "1..10",
    "seeds": "1..6",
    "places": "[],[0.0],[0.5],[1.0],[0.0,0.5],[0.5,1.0]",
    "style": "LINEAR_ADD,SIGMOID_ADD,LINEAR_MULTIPLY,GATED",
    "tempo": "3,5,7,10",
}
"""What a tuner searches of the schedule; of each list of blueprints the first that fits the slot is grown."""

register("wait", WaitConfig, Wait, purpose="never grows anything")
register("random", RandomConfig, Random, purpose="decides at random among what is legal")
register(
    "fixed",
    FixedConfig,
    Fixed,
    purpose="germinates by the calendar, at places spread evenly, and keeps what it may",
    space=FIXED_SPACE,
)
