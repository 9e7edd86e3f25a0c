"""A controller: grows one kind of seed wherever it can, as early as it can, and keeps whatever may be kept.

esper train heuristic --plugins examples/my_controller.py --controller eager
"""

from __future__ import annotations

from dataclasses import dataclass

import esper
from esper.leyline.actions import WAIT, Decision, Op
from esper.tamiyo import Observation, State


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerConfig:
    """What can be set, as --settings tempo=5."""

    tempo: int = 3


@dataclass(frozen=True, slots=True)
class Eager:
    """Decides for any number of hosts, so what it remembered of one would go into that host's state, not into this object."""

    config: EagerConfig
    name: str = "eager"

    def start(self, seed: int) -> State:
        """Before a host's first epoch: nothing to remember."""
        return {}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """The first of FOSSILIZE, ADVANCE and GERMINATE that some slot allows; far_conv, where that is known and fits."""
        masks = observation.masks
        for op in (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE):
            if not masks.slots(op).any():
                continue
            slot = masks.slot_names[int(masks.slots(op).argmax())]
            if op is not Op.GERMINATE:
                return Decision(op=op, slot=slot, reason="it is allowed"), state
            fitting = [name for name, fits in zip(masks.blueprint_names, masks.blueprints(slot), strict=True) if fits]
            blueprint = "far_conv" if "far_conv" in fitting else fitting[0]
            return Decision(op=op, slot=slot, blueprint=blueprint, tempo=self.config.tempo, reason="the slot is free"), state
        return WAIT, state


esper.controller("eager", EagerConfig, Eager, purpose="grows wherever and whenever it can", space={"tempo": "3,5,7,10"})
