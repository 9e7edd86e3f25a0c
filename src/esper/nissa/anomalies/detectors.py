"""All detectors together, as a hub asks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from esper.leyline.events import Anomaly, Envelope, Event, PolicyUpdated
from esper.nissa.anomalies.alarms import Detector
from esper.nissa.anomalies.config import AnomalyConfig
from esper.nissa.anomalies.hacking import RewardHacking
from esper.nissa.anomalies.learning import EntropyCollapse, GradientPathology, RatioExplosion, ValueCollapse
from esper.nissa.anomalies.rollbacks import Rollbacks

DETECTORS: tuple[type[Detector], ...] = (EntropyCollapse, ValueCollapse, RatioExplosion, GradientPathology, RewardHacking, Rollbacks)


class Detectors:
    """Sees every event of a run, in order, and says what is wrong: once when it begins, and again only after it was over.

    Of the events that lower levels of telemetry leave out none is needed. An update of the policy that was seen before, as a run that
    goes on tells its past, is passed over.
    """

    def __init__(self, config: AnomalyConfig) -> None:
        self._detectors = {kind.name: kind(config) for kind in DETECTORS}
        self._wanted: dict[type[Event], list[Detector]] = {}
        for detector in self._detectors.values():
            for event in detector.events:
                self._wanted.setdefault(event, []).append(detector)
        self._update = 0
        """The last update of the policy."""

    def see(self, envelope: Envelope) -> list[Anomaly]:
        """What this event makes them say."""
        wanted = self._wanted.get(type(envelope.event))
        if wanted is None:
            return []
        if isinstance(envelope.event, PolicyUpdated):
            if envelope.event.update <= self._update:
                return []
            self._update = envelope.event.update
        return [anomaly for detector in wanted for anomaly in detector.see(envelope)]

    def state(self) -> dict[str, Any]:
        """Everything to go on from, as JSON has it. It does not grow with the run or its hosts."""
        return {"update": self._update, **{name: detector.state() for name, detector in self._detectors.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there: what is said from now on is what a run that never stopped says. Thresholds are those of the present config."""
        self._update = state["update"]
        for name, detector in self._detectors.items():
            detector.load_state(state[name])


def describe() -> list[tuple[str, str, tuple[str, ...]]]:
    """Each detector: its name, what it notices, and the fields of AnomalyConfig that it goes by."""
    return [(kind.name, kind.what, kind.thresholds) for kind in DETECTORS]
