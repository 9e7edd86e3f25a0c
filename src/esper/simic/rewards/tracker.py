"""The reward of one host, decision by decision.

The time of a step: the decision after epoch t is carried out, the body ticks, epoch t + 1 is trained, and its report is what the
decision is rewarded by. The decision after the last epoch is followed by no training: it is rewarded by the network that is harvested
once it has been carried out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from esper.leyline.actions import Decision, Op
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.errors import ConfigError, StateError
from esper.leyline.events import Event, StageChanged
from esper.leyline.reports import EpochReport, SeedReport
from esper.leyline.score import rent_points
from esper.leyline.stages import BLENDED, OCCUPIED, Stage
from esper.simic.rewards import components as parts
from esper.simic.rewards.config import COMPONENTS, FinalScore, RewardConfig, RewardInput, RewardStep, Twin
from esper.simic.rewards.registry import REWARD_COMPONENTS, component_value

Levels = dict[str, float]
"""How things stand, by component: progress, attribution, pbrs, rent."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What no single report holds."""

    slots: tuple[str, ...]
    start: float | None = None
    """Points at the first report: the reference when there is no control."""
    origins: dict[str, float] = field(default_factory=dict)
    """The lead at each present seed's germination, in points."""
    held: dict[str, int] = field(default_factory=dict)
    """Epochs that each present seed has been in HOLDING, whatever it did in between."""
    pruned: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The last seed that was pruned in a slot: its blueprint, and the epoch."""
    holding_paid: float = 0.0


class RewardTracker:
    """Rewards one host, and remembers what that takes."""

    def __init__(self, config: RewardConfig, slots: tuple[str, ...]) -> None:
        self.config, self.slots = config, slots
        for name in config.extra:
            REWARD_COMPONENTS.find(name)
        self.memory = Memory(slots=slots)
        self._before: tuple[EpochReport, Levels] | None = None
        """The report that the last reward came to, and how things stood in it."""

    def step(self, given: RewardInput) -> RewardStep:
        """The reward for a decision."""
        before, decision, report, control, final = given.before, given.decision, given.report, given.control, given.final
        self._check(before, report, control, final)
        if self.memory.start is None:
            self.memory.start = self._points(before.val_accuracy, before.val_loss, before.classes)
        lead = self._lead(before, control)
        for seed in before.seeds:
            if seed.stage in OCCUPIED:
                self.memory.origins.setdefault(seed.slot, lead)
        old = self._before[1] if self._before is not None and self._before[0] is before else self._levels(before, control)
        cost = self._act_cost(before, decision, given.refused, lead)
        if final is None:
            cost += self._epoch_cost(before, decision, report)
            self._follow(report, lead)
            new, terminal = self._levels(report, control), 0.0
            self._before = report, new
        else:
            new, terminal = self._end(report, given.events, control, final)
        values = {name: parts.change(old[name], new[name], self.config.gamma) for name in new}
        values |= {"costs": 0.0 - cost, "terminal": terminal}
        chosen = {name: values[name] for name in COMPONENTS[self.config.mode]}
        chosen |= {name: weight * component_value(name, given) for name, weight in self.config.extra.items()}
        return RewardStep(total=math.fsum(chosen.values()), components=chosen)

    def state(self) -> dict[str, Any]:
        """Everything remembered, in plain containers that JSON can hold."""
        return to_plain(self.memory)

    def load_state(self, state: object) -> None:
        """Go on from a saved state, exactly. Raises StateError for one that cannot be, or is of another host."""
        memory = from_plain(Memory, state)
        if memory.slots != self.slots:
            raise StateError(f"the saved rewards are of slots {', '.join(memory.slots)}; this host has {', '.join(self.slots)}")
        self.memory, self._before = memory, None

    def _check(self, before: EpochReport, report: EpochReport, control: Twin | None, final: FinalScore | None) -> None:
        for each in (before, report):
            found = tuple(seed.slot for seed in each.seeds)
            if found != self.slots:
                raise StateError(f"the report is of slots {', '.join(found)}; this tracker is for {', '.join(self.slots)}")
        expected = before.epoch + (final is None)
        assert report.epoch == expected, f"the report is of epoch {report.epoch}; after a decision on {before.epoch} it is {expected}"
        if control is not None and min(len(control.accuracy), len(control.loss)) < report.epoch:
            known = min(len(control.accuracy), len(control.loss))
            raise ConfigError(f"the control has {known} epochs; the host is at epoch {report.epoch}, and needs one that is as long")

    # How things stand

    def _points(self, accuracy: float, loss: float, classes: int) -> float:
        if self.config.mode == "loss":
            return parts.loss_points(loss, classes, self.config.points_per_nat)
        return parts.accuracy_points(accuracy)

    def _reference(self, report: EpochReport, control: Twin | None) -> float:
        """What the host is measured against, in points: its control at the same epoch, or itself at the start."""
        if control is None:
            assert self.memory.start is not None
            return self.memory.start
        index = report.epoch - 1
        return self._points(control.accuracy[index], control.loss[index], report.classes)

    def _lead(self, report: EpochReport, control: Twin | None) -> float:
        return self._points(report.val_accuracy, report.val_loss, report.classes) - self._reference(report, control)

    def _levels(self, report: EpochReport, control: Twin | None) -> Levels:
        levels = self._standing(report.seeds, self._lead(report, control), self._rent(report, report.seeds), control is not None)
        return {**levels, "pbrs": parts.pbrs_level(report.seeds, self.config)}

    def _standing(self, seeds: Sequence[SeedReport], lead: float, rent: float, paired: bool) -> Levels:
        """Lead and rent in points. Without a control nobody can tell what a seed brought from what the host left to it: no gains."""
        credits = [self._credit(seed, lead) for seed in seeds]
        room = parts.credit_room(lead, rent, self.config) if paired else 0.0
        return {
            "progress": parts.progress_level(lead, self.config),
            "attribution": parts.attribution_level(credits, room, self.config),
            "rent": parts.rent_level(lead, rent, self.config),
        }

    def _rent(self, report: EpochReport, seeds: Sequence[SeedReport]) -> float:
        """Rent of the host with these of its seeds as they are blended in now, in points."""
        host = report.start_parameters
        return rent_points(parts.effective_parameters(seeds, host), host, report.rent)

    def _end(self, report: EpochReport, events: Sequence[Event], control: Twin | None, final: FinalScore) -> tuple[Levels, float]:
        """The levels of the harvested network, and the terminal reward. No report shows what the last act did: the events do."""
        last = {event.slot for event in events if isinstance(event, StageChanged) and event.after is Stage.FOSSILIZED}
        fossils = [seed for seed in report.seeds if seed.stage is Stage.FOSSILIZED or seed.slot in last]
        points, rent = self._ended(final, report)
        if control is None:
            reference, paid_by_control = self._reference(report, None), 0.0
        else:
            assert control.final is not None, "a host is measured against a control that has ended too"
            reference, paid_by_control = self._ended(control.final, report)
        lead = points - reference
        terminal = parts.terminal_reward(lead - rent + paid_by_control, [seed.contribution for seed in fossils], self.config)
        return {**self._standing(fossils, lead, rent, control is not None), "pbrs": 0.0}, terminal

    def _ended(self, final: FinalScore, report: EpochReport) -> tuple[float, float]:
        """Points and rent of a network that is harvested."""
        rent = rent_points(final.parameters, report.start_parameters, report.rent)
        return self._points(final.accuracy, final.loss, report.classes), rent

    def _credit(self, seed: SeedReport, lead: float) -> float:
        if seed.stage not in BLENDED:
            return 0.0
        return parts.slot_credit(seed.contribution, lead - self.memory.origins[seed.slot], lead)

    def _follow(self, report: EpochReport, lead: float) -> None:
        """Remember where new seeds start and for how long seeds are held; forget those that are gone. `lead`: before the epoch."""
        for seed in report.seeds:
            if seed.stage in OCCUPIED:
                self.memory.origins.setdefault(seed.slot, lead)
            else:
                self.memory.origins.pop(seed.slot, None)
                self.memory.held.pop(seed.slot, None)

    # Costs

    def _act_cost(self, before: EpochReport, decision: Decision, refused: bool, lead: float) -> float:
        cost = parts.act_cost(decision, refused, self.config)
        if refused:
            return cost
        if decision.op is Op.PRUNE:
            cost += self._prune_cost(before, decision.slot, lead)
        elif decision.op is Op.GERMINATE and decision.slot in self.memory.pruned:
            blueprint, epoch = self.memory.pruned[decision.slot]
            if blueprint == decision.blueprint:
                cost += parts.again_cost(before.epoch - epoch, self.config)
        return cost

    def _epoch_cost(self, before: EpochReport, decision: Decision, report: EpochReport) -> float:
        """Of what the epoch brought, whatever was decided: seeds held for long, and a rollback of a host in which something had grown."""
        grown = decision.op is Op.GERMINATE or any(seed.stage in OCCUPIED for seed in before.seeds)
        return self._holding_cost(report) + (self.config.rollback if report.anomaly and grown else 0.0)

    def _prune_cost(self, before: EpochReport, slot: str, lead: float) -> float:
        seed = before.seeds[self.slots.index(slot)]
        self.memory.pruned[slot] = (seed.blueprint, before.epoch)
        rent = self._rent(before, before.seeds) - self._rent(before, [other for other in before.seeds if other.slot != slot])
        worth = seed.contribution if seed.stage in BLENDED else seed.trial_contribution
        helpful = parts.helpful_prune_cost(self._credit(seed, lead), rent, self.config)
        return helpful + parts.young_prune_cost(seed.age, worth, self.config)

    def _holding_cost(self, report: EpochReport) -> float:
        holding = [seed.slot for seed in report.seeds if seed.stage is Stage.HOLDING]
        for slot in holding:
            self.memory.held[slot] = self.memory.held.get(slot, 0) + 1
        cost = parts.holding_cost([self.memory.held[slot] for slot in holding], self.memory.holding_paid, self.config)
        self.memory.holding_paid += cost
        return cost
