"""One host's growth under one controller: look at the epoch, decide, act, end the epoch. There is no second loop.

The command line, a user's Gardener and the environment all move their hosts through this class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from esper.kasmina import Growable
from esper.kasmina.blueprints import SlotShape, names, parameter_count
from esper.leyline.actions import Decision, Op
from esper.leyline.errors import EsperError
from esper.leyline.events import Decided, EpochFinished, Event, Interaction, Refused, SeedMeasured
from esper.leyline.reports import EpochReport, Topology
from esper.leyline.stages import OCCUPIED
from esper.tamiyo import Controller, Observation, Rules, SignalTracker


class Growing(Protocol):
    """Whatever holds a growing model and can end its epoch: a Host of a run, or a Gardener's own."""

    model: Growable

    def drain(self) -> list[Event]:
        """What has happened to the seeds since the last call."""
        ...

    def end_epoch(self) -> list[Event]:
        """The body's tick, and what has happened since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: what was seen, what was decided, whether it was carried out, and everything that happened, in order."""

    observation: Observation
    decision: Decision
    refused: str
    """Why the decision was not carried out; empty when it was."""
    events: tuple[Event, ...]


class Episode:
    """A host, its signals and its controller's memory, from the first epoch to the end of the budget."""

    def __init__(self, growing: Growing, controller: Controller, rules: Rules, *, seed: int = 0) -> None:
        self.growing, self.controller, self.rules = growing, controller, rules
        blueprints = {topology: names(topology) for topology in Topology}
        costs = {
            seed.slot: {name: parameter_count(name, SlotShape(topology=seed.topology, width=seed.width)) for name in names(seed.topology)}
            for seed in growing.model.reports()
        }
        self.tracker = SignalTracker(growing.model.slot_ids, blueprints, costs, rules, growing.model.lifecycle)
        self.memory: Any = controller.start(seed)

    def step(self, report: EpochReport) -> Step:
        """What follows an epoch: look, decide, act, tick."""
        observation = self.look(report)
        decision, self.memory = self.controller.decide(observation, self.memory)
        return self.carry_out(observation, decision)

    def look(self, report: EpochReport) -> Observation:
        """What the controller sees of an epoch."""
        return self.tracker.observe(report)

    def carry_out(self, observation: Observation, decision: Decision) -> Step:
        """Do what was decided, end the epoch, and tell all that happened. A refusal is told, not raised: training goes on."""
        events = [*epoch_events(observation.report), *self.growing.drain(), decided(decision, observation)]
        refused = ""
        try:
            observation.masks.check(decision)
            self.growing.model.act(decision)
        except EsperError as error:
            refused = str(error)
            events.append(Refused(op=decision.op, slot=decision.slot, reason=refused))
        self.tracker.note_decision(decision, succeeded=not refused)
        events += self.growing.end_epoch()
        return Step(observation, decision, refused, tuple(events))

    def state(self) -> dict[str, Any]:
        """What signals and controller remember, in plain containers."""
        return {"signals": self.tracker.state(), "memory": self.memory}

    def load_state(self, state: dict[str, Any]) -> None:
        self.tracker.load_state(state["signals"])
        self.memory = state["memory"]


def decided(decision: Decision, observation: Observation) -> Decided:
    """A decision as an event."""
    return Decided(
        op=decision.op,
        slot=decision.slot,
        blueprint=decision.blueprint,
        style=decision.style,
        tempo=decision.tempo,
        alpha_target=decision.alpha_target,
        alpha_speed=decision.alpha_speed,
        alpha_curve=decision.alpha_curve,
        reason=decision.reason,
        legal=tuple(op.name for op, legal in zip(Op, observation.masks.ops(), strict=True) if legal),
    )


def epoch_events(report: EpochReport) -> list[Event]:
    """What an epoch's report tells, as events: the host, each seed, each pair of seeds."""
    events: list[Event] = [
        EpochFinished(
            train_loss=report.train_loss,
            train_accuracy=report.train_accuracy,
            val_loss=report.val_loss,
            val_accuracy=report.val_accuracy,
            learning_rate=report.learning_rate,
            parameters=report.parameters,
            per_class=report.per_class,
            gradient_norm=None if report.gradients is None else report.gradients.norm,
            flops=dict(report.flops),
        )
    ]
    for seed in report.seeds:
        if seed.stage in OCCUPIED:
            gradients = seed.gradients
            events.append(
                SeedMeasured(
                    slot=seed.slot,
                    stage=seed.stage,
                    alpha=seed.alpha,
                    contribution=seed.contribution,
                    contribution_error=seed.contribution_error,
                    contribution_loss=seed.contribution_loss,
                    trial_contribution=seed.trial_contribution,
                    trial_error=seed.trial_error,
                    trial_loss=seed.trial_loss,
                    gradient_norm=None if gradients is None else gradients.norm,
                    gradient_health=None if gradients is None else gradients.health,
                    gradient_ratio=seed.gradient_ratio,
                )
            )
    events += [Interaction(slots=pair, value=value) for pair, value in report.interactions.items()]
    return events
