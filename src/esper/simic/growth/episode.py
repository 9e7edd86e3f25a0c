"""One growing model from epoch to epoch: look at the report, carry out what was decided, end the epoch.

The hosts of the environment and a user's Gardener both move through this class, whoever decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from esper.kasmina import Growable
from esper.kasmina.blueprints import names, parameter_count
from esper.leyline.actions import Decision, Op
from esper.leyline.errors import EsperError
from esper.leyline.events import AnyEvent, Decided, EpochFinished, Event, Interaction, Refused, SeedMeasured
from esper.leyline.reports import EpochReport, Topology
from esper.leyline.score import rent_points
from esper.leyline.stages import OCCUPIED, Stage
from esper.tamiyo import Observation, Rules, SignalTracker


class Growing(Protocol):
    """Whatever holds a growing model and can end its epoch: a Host, or a Gardener."""

    model: Growable

    def drain(self) -> list[Event]:
        """What has happened to the seeds since the last call."""

    def end_epoch(self) -> list[Event]:
        """The body's tick, and what has happened since the last call."""


@dataclass(frozen=True, slots=True)
class Step:
    """A decision that was carried out, or not."""

    decision: Decision
    refused: str
    """Why it was not carried out; empty when it was."""
    events: tuple[AnyEvent, ...]
    """What happened then, in order."""


class Episode:
    """A growing model and what its signals remember."""

    def __init__(self, growing: Growing, rules: Rules) -> None:
        self.growing = growing
        blueprints = {topology: names(topology) for topology in Topology}
        costs = {
            id: {name: parameter_count(name, slot.place.shape) for name in names(slot.place.shape.topology)}
            for id, slot in growing.model.slots.items()
        }
        self.tracker = SignalTracker(growing.model.slot_ids, blueprints, costs, rules, growing.model.lifecycle)

    def look(self, report: EpochReport) -> Observation:
        """What a controller sees of an epoch."""
        return self.tracker.observe(report)

    def carry_out(self, observation: Observation, decision: Decision) -> Step:
        """Do what was decided, and end the epoch. A refusal is told, not raised: training goes on."""
        refused, events = "", []
        try:
            observation.masks.check(decision)
            self.growing.model.act(decision)
        except EsperError as error:
            refused = str(error)
            events.append(Refused(op=decision.op, slot=decision.slot, reason=refused))
        self.tracker.note_decision(decision, succeeded=not refused)
        if observation.report.epoch >= observation.report.budget and self.growing.model.lifecycle.last_call:
            self._last_call(observation)
        return Step(decision, refused, (*events, *self.growing.end_epoch()))

    def _last_call(self, observation: Observation) -> None:
        """Nothing comes after this decision, and live seeds are dropped: one that its gate lets pass and that is worth its rent is kept,
        whoever decides."""
        model, report, may = self.growing.model, observation.report, observation.masks.slots(Op.FOSSILIZE)
        stages = {id: slot.state.stage for id, slot in model.slots.items()}
        kept = report.start_parameters + sum(seed.parameters for seed in report.seeds if stages[seed.slot] is Stage.FOSSILIZED)

        def rent(parameters: int) -> float:
            return rent_points(parameters, report.start_parameters, report.rent)

        for seed, legal in zip(report.seeds, may.tolist(), strict=True):
            worth = seed.contribution is not None and seed.contribution > rent(kept + seed.parameters) - rent(kept)
            if legal and worth and stages[seed.slot] is Stage.HOLDING:
                model.fossilize(seed.slot)
                kept += seed.parameters


# Reports and decisions as events

_OPS = tuple(op.name for op in Op)


def decided(decision: Decision, observation: Observation) -> Decided:
    """A decision, and what could have been decided instead."""
    legal = tuple([name for name, legal in zip(_OPS, observation.masks.ops().tolist(), strict=True) if legal])
    return Decided(decision=decision, legal=legal)


def epoch_events(report: EpochReport) -> list[Event]:
    """What an epoch's report tells: the host, each seed, each pair of seeds."""
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
                    blueprint=seed.blueprint,
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
