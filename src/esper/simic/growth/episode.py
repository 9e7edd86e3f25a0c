"""One growing model from epoch to epoch: look at the report, carry out what was decided, end the epoch.

The hosts of the environment and a user's Gardener both move through this class, whoever decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from esper.kasmina import Growable
from esper.kasmina.blueprints import names, parameter_count
from esper.leyline.actions import HEADS_FOR_OP, Decision, Head, Op, value_text
from esper.leyline.errors import EsperError, RankError
from esper.leyline.events import AnyEvent, Decided, EpochFinished, Event, HostsTrained, Interaction, Observed, Refused, SeedMeasured
from esper.leyline.observation import OBSERVATION
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
class Thought:
    """What a policy made of an observation before it decided."""

    probabilities: dict[Head, dict[Any, float]]
    """Of each value that a head can take, given the heads before it as they were decided."""
    value: float
    """The return that its critic expected."""

    def of(self, head: Head, choices: Sequence[Any]) -> tuple[float, ...]:
        """The probabilities of these values, to six places."""
        return tuple([round(self.probabilities[head][choice], 6) for choice in choices])


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
        except RankError:
            raise  # nobody refused: the processes that train the model have lost each other
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


def decided(decision: Decision, observation: Observation, thought: Thought | None = None) -> Decided:
    """A decision, what could have been decided instead, and how likely a policy found each of these."""
    masks, legal, probabilities = observation.masks, {}, {}
    for head in HEADS_FOR_OP[decision.op] if masks.legal(decision) else (Head.OP,):
        choices = masks.choices(head)
        found = [choices[place] for place in masks.head(head, decision).nonzero()[0].tolist()]
        legal[head.value] = tuple([value_text(value) for value in found])
        if thought is not None:
            probabilities[head.value] = thought.of(head, found)
    return Decided(decision=decision, legal=legal, probabilities=probabilities, value=None if thought is None else thought.value)


def observed(observation: Observation) -> Observed:
    """All that a controller is shown."""
    fields = OBSERVATION.slot_fields
    slots = zip(observation.masks.slot_names, observation.slots.tolist(), strict=True)
    return Observed(
        host={field.name: value for field, value in zip(OBSERVATION.host_fields, observation.host.tolist(), strict=True)},
        slots={slot: {field.name: value for field, value in zip(fields, values, strict=True)} for slot, values in slots},
    )


def hosts_trained(reports: Mapping[int, EpochReport]) -> HostsTrained:
    """The course of all hosts, by their numbers."""
    stages = [[seed.stage for seed in report.seeds] for report in reports.values()]
    fossils = [each.count(Stage.FOSSILIZED) for each in stages]
    return HostsTrained(
        hosts=tuple(reports),
        val_accuracy=tuple([round(report.val_accuracy, 2) for report in reports.values()]),
        parameters=tuple([report.parameters for report in reports.values()]),
        live=tuple([sum(stage in OCCUPIED for stage in each) - kept for each, kept in zip(stages, fossils, strict=True)]),
        fossils=tuple(fossils),
    )


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
                    gradient_health=seed.gradient_health,
                    gradient_ratio=seed.gradient_ratio,
                )
            )
    events += [Interaction(slots=pair, value=value) for pair, value in report.interactions.items()]
    return events
