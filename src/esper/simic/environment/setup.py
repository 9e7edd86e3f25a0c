"""What one environment and many in one have in common: settings, spaces, and what they tell in `info`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper.leyline.codec import to_plain
from esper.leyline.errors import unknown
from esper.leyline.events import AlphaRetargeted, Event, GateChecked, Refused, RolledBack, StageChanged
from esper.simic.environment.actions import Actions, Choice, Composites, Heads
from esper.simic.environment.hosts import Hosts, growth_config
from esper.simic.environment.stepping import Outcome
from esper.simic.environment.view import View
from esper.simic.growth.environment import Start
from esper.simic.plugins import load_plugins
from esper.tamiyo import Observation

METADATA: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}

LIFECYCLE = (StageChanged, GateChecked, AlphaRetargeted, Refused, RolledBack)
"""Events that are told in `info`; what the others say is in the observation already."""


class Setup:
    """An environment before any host is made: which hosts, what is seen of them, and what can be done."""

    def __init__(
        self,
        task: str | Sequence[str],
        seeds: Sequence[int],
        heads: Choice | None,
        structured: bool,
        render_mode: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Heads: which of them are chosen in one number; None has all eight chosen apart. Settings: see `growth_config`."""
        if render_mode is not None and render_mode not in METADATA["render_modes"]:
            raise unknown("render mode", str(render_mode), METADATA["render_modes"])
        self.config = growth_config(settings)
        load_plugins(self.config.plugins)
        self.hosts = Hosts(self.config, task, seeds)
        self.view = View(self.hosts.slots, self.hosts.blueprints, structured)
        sizes = self.hosts.slots, self.hosts.blueprints
        self.actions: Actions = Heads(*sizes) if heads is None else Composites(*sizes, heads)

    def start_info(self, start: Start, observation: Observation) -> dict[str, Any]:
        """What `reset` tells: the mask, and which host it is."""
        slots = observation.masks.slot_names
        return {"action_mask": self.actions.mask(observation.masks), "task": start.task, "host_seed": start.seed, "slots": slots}

    def step_info(self, outcome: Outcome) -> dict[str, Any]:
        """What `step` tells: the mask, the parts of the reward, what became of the action, and at the end of the episode its figures."""
        info = {
            "action_mask": self.actions.mask(outcome.observation.masks),
            "reward_components": dict(outcome.reward.components),
            "refused": outcome.refused,
            "events": [_plain(event) for event in outcome.events if isinstance(event, LIFECYCLE)],
        }
        return info if outcome.result is None else {**info, "final": _plain(outcome.result)}


def _plain(event: Event) -> dict[str, Any]:
    """The event as it is recorded: its kind and its fields, enums by their names."""
    return {"kind": event.kind(), **to_plain(event)}
