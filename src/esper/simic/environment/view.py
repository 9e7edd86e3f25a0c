"""Observations as Gymnasium has them: one flat vector, or a dict of host, slots and blueprints; and as text for people."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from esper.leyline.errors import ConfigError, StateError
from esper.leyline.observation import OBSERVATION, Field
from esper.leyline.reports import SeedReport
from esper.leyline.stages import OCCUPIED
from esper.tamiyo import Observation

Array = NDArray[np.float32]


class View:
    """What an agent sees of a host, always of one size: slots that the host does not have are zeros.

    Flat: float32 [H + S * F + S * B]: the host's fields, the fields of each slot, and for each slot which blueprint grows there (all 0
    when none does). H, F: fields of `esper.leyline.observation.OBSERVATION`; S: the most slots that any host has; B: all blueprints.
    Structured: a dict of `host` [H], `slots` [S, F] and `blueprints` [S], 0 for none and else 1 + the blueprint's place.
    """

    def __init__(self, slots: int, blueprints: tuple[str, ...], structured: bool = False) -> None:
        self.slots, self.blueprints, self.structured = slots, blueprints, structured
        host = _bounds(OBSERVATION.host_fields)
        each = np.repeat(_bounds(OBSERVATION.slot_fields)[:, None], slots, axis=1)
        growing = np.stack([np.zeros(slots * len(blueprints), np.float32), np.ones(slots * len(blueprints), np.float32)])
        flat = np.concatenate([host, each.reshape(2, -1), growing], axis=1)
        self.space: spaces.Space[Any]
        if structured:
            kinds = spaces.MultiDiscrete(np.full(slots, len(blueprints) + 1))
            self.space = spaces.Dict({"host": spaces.Box(*host), "slots": spaces.Box(*each), "blueprints": kinds})
        else:
            self.space = spaces.Box(*flat)

    def names(self) -> list[str]:
        """What each value of the flat form is: `host.progress`, `slot 0.alpha`, `slot 0.blueprint.norm`, ..."""
        host = [f"host.{field.name}" for field in OBSERVATION.host_fields]
        slots = [f"slot {slot}.{field.name}" for slot in range(self.slots) for field in OBSERVATION.slot_fields]
        return [*host, *slots, *(f"slot {slot}.blueprint.{name}" for slot in range(self.slots) for name in self.blueprints)]

    def __call__(self, observation: Observation) -> Any:
        """The observation in the form of `space`, in arrays of its own."""
        self._check(observation)
        there = len(observation.slots)
        slots = np.zeros((self.slots, OBSERVATION.slot_size), np.float32)
        slots[:there] = observation.slots
        kinds = np.zeros(self.slots, np.int64)
        kinds[:there] = observation.blueprints
        if self.structured:
            return {"host": observation.host.copy(), "slots": slots, "blueprints": kinds}
        # Column 0 of the larger table is "none".
        growing = np.eye(len(self.blueprints) + 1, dtype=np.float32)[kinds][:, 1:]
        return np.concatenate([observation.host, slots.ravel(), growing.ravel()])

    def _check(self, observation: Observation) -> None:
        masks = observation.masks
        if masks.blueprint_names != self.blueprints:
            new = sorted(set(masks.blueprint_names) ^ set(self.blueprints))
            raise StateError(f"blueprints have changed since the environment was made ({', '.join(new)}); make a new one")
        if len(masks.slot_names) > self.slots:
            raise ConfigError(f"the host has {len(masks.slot_names)} slots; the environment was made for hosts with at most {self.slots}")


def drawing(observation: Observation) -> str:
    """The host in a line, and each slot in a line."""
    report = observation.report
    host = f"epoch {report.epoch}/{report.budget}  val accuracy {report.val_accuracy:.2f}  parameters {report.parameters:,}"
    return "\n".join([host, *(_line(seed) for seed in report.seeds)])


def _line(seed: SeedReport) -> str:
    if seed.stage not in OCCUPIED:
        return f"{seed.slot}  {seed.stage.name}"
    worth = "not measured" if seed.contribution is None else f"{seed.contribution:+.2f} points"
    moving = "" if seed.ramp_left == 0 else f" to {seed.alpha_target:.2f} in {seed.ramp_left}"
    return f"{seed.slot}  {seed.stage.name}  {seed.blueprint}  age {seed.age}  alpha {seed.alpha:.2f}{moving}  contribution {worth}"


def _bounds(fields: tuple[Field, ...]) -> Array:
    """[2, fields]: lowest and highest values."""
    return np.array([[field.low for field in fields], [field.high for field in fields]], dtype=np.float32)
