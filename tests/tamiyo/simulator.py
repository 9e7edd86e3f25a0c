"""A stand-in for a host: no network, only the life of its seeds by leyline's table and a learning curve that they lift.

Val accuracy rises to a ceiling of its own, plus, for each seed, its true worth times how ripe it is times alpha, plus noise; all of
it in steps of one image out of `images`. Contributions are the same with the seed minus without. That is enough to play whole
episodes in milliseconds and to know which decisions were right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from esper.leyline.actions import Decision, Op
from esper.leyline.reports import EpochReport, Gate, GateVerdict, LifecycleConfig, SeedReport, Topology
from esper.leyline.score import USUAL_RENT
from esper.leyline.stages import BLENDED, LIVE, OCCUPIED, Stage, check_transition
from esper.tamiyo import Controller, Observation, Rules, SignalTracker
from tests.tamiyo.samples import HEALTHY, report, seed

BLUEPRINTS = {Topology.MAP2D: ("norm", "conv_small", "conv_light", "conv_heavy")}
COSTS = {"norm": 24, "conv_small": 90, "conv_light": 600, "conv_heavy": 1200}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true of a host and nobody tells the controller."""

    budget: int = 25
    slots: int = 3
    ceiling: float = 65.0
    """Val accuracy that the host reaches by itself."""
    pace: float = 4.0
    """Epochs in which it makes two thirds of the way."""
    worth: tuple[tuple[str, float], ...] = (("norm", 0.2), ("conv_small", 1.0), ("conv_light", 4.0), ("conv_heavy", 6.0))
    """Points that a ripe seed adds, by blueprint."""
    noise: float = 0.3
    """Standard deviation of each measured accuracy, in points."""
    images: int = 360
    strict: bool = False
    auto_advance: bool = True
    rent: float = USUAL_RENT
    rollback: int = 0
    """Epoch in which the governor takes every live seed away; 0 for never."""


class SimulatedHost:
    """One host. Each epoch: `run_epoch`, then `act`, then `tick`."""

    def __init__(self, world: World, random_seed: int = 0) -> None:
        self.world, self.rng = world, np.random.default_rng(random_seed)
        self.lifecycle = LifecycleConfig(embargo_epochs=max(1, min(5, world.budget // 10)), auto_advance=world.auto_advance)
        places = range(world.slots)
        self.seeds = [seed(f"r0c{i}", position=(i + 0.5) / world.slots) for i in places]
        self.ramps: list[tuple[float, int, int]] = [(0.0, 0, 0) for _ in places]  # alpha at the start, epochs in all, epochs done
        self.ripeness = [0.0 for _ in places]
        self.epoch = self.germinated = self.rollbacks = 0

    # An epoch

    def run_epoch(self) -> EpochReport:
        """Train, measure, report."""
        self.epoch += 1
        broken = self.epoch == self.world.rollback
        if broken:
            self.rollbacks += 1
            for i, each in enumerate(self.seeds):
                if each.stage in LIVE:
                    self._remove(i)
        self.ripeness = [ripe + 0.2 * (1.0 - ripe) for ripe in self.ripeness]
        accuracy = self._accuracy()
        for i, each in enumerate(self.seeds):
            self.seeds[i] = self._measured(i, each)
        size = 1000 + sum(each.parameters for each in self.seeds)
        return report(
            *self.seeds,
            epoch=self.epoch,
            rent=self.world.rent,
            budget=self.world.budget,
            steps=10 * self.epoch,
            val_accuracy=accuracy,
            val_loss=2.3 * (1.0 - accuracy / 100.0),
            train_loss=2.2 * (1.0 - accuracy / 100.0),
            train_accuracy=min(100.0, accuracy + 2.0),
            harvest_accuracy=self.harvest_accuracy(),
            parameters=size,
            verdicts=tuple(self._verdict(each) for each in self.seeds),
            germinated=self.germinated,
            rollbacks=self.rollbacks,
            anomaly="diverged" if broken else "",
        )

    def harvest_accuracy(self) -> float:
        """Without noise, of the host and its fossils alone."""
        fossils = sum(self._lift(i, 1.0) for i, each in enumerate(self.seeds) if each.stage is Stage.FOSSILIZED)
        return self._bare() + fossils

    def _bare(self) -> float:
        return 10.0 + (self.world.ceiling - 10.0) * (1.0 - float(np.exp(-self.epoch / self.world.pace)))

    def _lift(self, i: int, alpha: float) -> float:
        return dict(self.world.worth)[self.seeds[i].blueprint] * self.ripeness[i] * alpha

    def _accuracy(self) -> float:
        lifts = sum(self._lift(i, each.alpha) for i, each in enumerate(self.seeds) if each.stage in BLENDED)
        return self._in_images(self._bare() + lifts)

    def _in_images(self, value: float) -> float:
        step = 100.0 / self.world.images
        return step * round((value + self.world.noise * float(self.rng.standard_normal())) / step)

    def _measured(self, i: int, each: SeedReport) -> SeedReport:
        if each.stage in OCCUPIED and each.stage is not Stage.GERMINATED:
            each = replace(each, gradients=HEALTHY, gradient_ratio=0.5)
        if each.stage is Stage.TRAINING:
            return replace(each, trial_contribution=self._in_images(self._lift(i, each.alpha_target)))
        if each.stage in BLENDED:
            return replace(each, contribution=self._in_images(self._lift(i, each.alpha)), contribution_age=0)
        return each

    def _verdict(self, each: SeedReport) -> GateVerdict | None:
        worth, trial = each.contribution, each.trial_contribution
        match each.stage:
            case Stage.GERMINATED:
                return GateVerdict(Gate.G1, each.slot, True)
            case Stage.TRAINING:
                ready = each.epochs_in_stage >= 3 and (not self.world.strict or (trial is not None and trial >= 0.0))
                return GateVerdict(Gate.G2, each.slot, ready, () if ready else (f"{each.epochs_in_stage} epochs, trial {trial}",))
            case Stage.BLENDING:
                ready = each.ramp_left == 0 and each.alpha_target == 1.0
                return GateVerdict(Gate.G3, each.slot, ready, () if ready else (f"{each.ramp_left} epochs from {each.alpha_target}",))
            case Stage.HOLDING:
                fresh = worth is not None and each.contribution_age < each.epochs_in_stage
                ready = fresh and (not self.world.strict or (worth is not None and worth >= 1.0))
                return GateVerdict(Gate.G5, each.slot, ready, () if ready else (f"contribution {worth}",))
            case _:
                return None

    # Decisions

    def act(self, decision: Decision) -> None:
        """Carry a decision out; the table of transitions raises if it cannot be."""
        if decision.op is Op.WAIT:
            return
        i = [each.slot for each in self.seeds].index(decision.slot)
        each = self.seeds[i]
        match decision.op:
            case Op.GERMINATE:
                cost = COSTS[decision.blueprint]
                choices = {"style": decision.style, "tempo": decision.tempo, "alpha_target": decision.alpha_target}
                self._enter(i, Stage.GERMINATED, blueprint=decision.blueprint, age=0, parameters=cost, **choices)
                self.germinated += 1
                self.ripeness[i] = 0.0
            case Op.ADVANCE:
                verdict = self._verdict(each)
                assert verdict is not None
                assert verdict.passed
                self._advance(i)
            case Op.FOSSILIZE:
                self._enter(i, Stage.FOSSILIZED)
            case Op.PRUNE if decision.alpha_speed == 0 or each.alpha == 0.0:
                self._remove(i)
            case Op.PRUNE:
                self._ramp(i, 0.0, decision.alpha_speed, pruning=True)
            case Op.SET_ALPHA_TARGET:
                assert each.ramp_left == 0
                self._ramp(i, decision.alpha_target, decision.alpha_speed, style=decision.style)

    def tick(self) -> None:
        """Begin the next epoch."""
        for i, each in enumerate(self.seeds):
            match each.stage:
                case Stage.PRUNED:
                    self._enter(i, Stage.EMBARGOED)
                case Stage.EMBARGOED if each.epochs_in_stage >= self.lifecycle.embargo_epochs:
                    self._enter(i, Stage.RESETTING)
                case Stage.RESETTING if each.epochs_in_stage >= self.lifecycle.reset_epochs:
                    self._enter(i, Stage.DORMANT, age=0, blueprint="", contribution=None, trial_contribution=None)
                case Stage.GERMINATED if self.lifecycle.auto_advance:
                    self._advance(i)
                case Stage.BLENDING:
                    self._tick_blending(i)
            if self.seeds[i].stage is not Stage.DORMANT:
                now = self.seeds[i]
                older = replace(now, age=now.age + 1, epochs_in_stage=now.epochs_in_stage + 1)
                self.seeds[i] = replace(older, contribution_age=now.contribution_age + 1)

    def _tick_blending(self, i: int) -> None:
        start, epochs, done = self.ramps[i]
        if done < epochs:
            done += 1
            self.ramps[i] = (start, epochs, done)
            target = self.seeds[i].alpha_target
            self.seeds[i] = replace(self.seeds[i], alpha=start + (target - start) * done / epochs, ramp_left=epochs - done)
        if self.seeds[i].ramp_left == 0:
            if self.seeds[i].pruning:
                self._remove(i)
            elif self.lifecycle.auto_advance and self.seeds[i].alpha_target == 1.0:
                self._advance(i)

    def _advance(self, i: int) -> None:
        following = {Stage.GERMINATED: Stage.TRAINING, Stage.TRAINING: Stage.BLENDING, Stage.BLENDING: Stage.HOLDING}
        self._enter(i, following[self.seeds[i].stage])
        if self.seeds[i].stage is Stage.BLENDING:
            self.ramps[i] = (0.0, self.seeds[i].tempo, 0)
            self.seeds[i] = replace(self.seeds[i], ramp_left=self.seeds[i].tempo)

    def _ramp(self, i: int, target: float, epochs: int, **changes: Any) -> None:
        if self.seeds[i].stage is Stage.HOLDING:
            self._enter(i, Stage.BLENDING)
        self.ramps[i] = (self.seeds[i].alpha, epochs, 0)
        alpha = target if epochs == 0 else self.seeds[i].alpha
        self.seeds[i] = replace(self.seeds[i], alpha=alpha, alpha_target=target, ramp_left=epochs, **changes)

    def _remove(self, i: int) -> None:
        gone = {"alpha": 0.0, "alpha_target": 0.0, "ramp_left": 0, "pruning": False, "parameters": 0, "gradients": None}
        self._enter(i, Stage.PRUNED, **gone)

    def _enter(self, i: int, stage: Stage, **changes: Any) -> None:
        before = self.seeds[i]
        check_transition(before.slot, before.stage, stage)
        self.seeds[i] = replace(before, stage=stage, previous_stage=before.stage, epochs_in_stage=0, **changes)


@dataclass(frozen=True, slots=True)
class Step:
    """One epoch of an episode."""

    observation: Observation
    decision: Decision


def play(
    controller: Controller, world: World | None = None, *, random_seed: int = 0, rules: Rules | None = None
) -> tuple[SimulatedHost, list[Step]]:
    """One whole episode. Every decision is checked, and every state goes through JSON on its way."""
    host = SimulatedHost(world or World(), random_seed)
    names = tuple(each.slot for each in host.seeds)
    tracker = SignalTracker(names, BLUEPRINTS, dict.fromkeys(names, COSTS), rules or Rules(), host.lifecycle)
    state = controller.start(random_seed)
    steps = []
    for _ in range(host.world.budget):
        observation = tracker.observe(host.run_epoch())
        decision, state = controller.decide(observation, json.loads(json.dumps(state, allow_nan=False)))
        observation.masks.check(decision)
        host.act(decision)
        tracker.note_decision(decision, succeeded=True)
        host.tick()
        steps.append(Step(observation, decision))
    return host, steps


def fossils(host: SimulatedHost) -> int:
    """Seeds that were kept."""
    return sum(each.stage is Stage.FOSSILIZED for each in host.seeds)
