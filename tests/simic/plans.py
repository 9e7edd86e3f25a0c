"""Plans of growth, good ones and bad ones, and whole episodes of them: on the simulated host, and on a real network of two features.

An episode is played once and can then be rewarded in every mode. What a plan is worth is the score of the network that is harvested
at the end, on val, minus that of the twin which only waits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.leyline.actions import WAIT, Decision, Op
from esper.leyline.events import Event, StageChanged
from esper.leyline.reports import EpochReport, GateConfig, LifecycleConfig
from esper.leyline.score import rent_points
from esper.leyline.stages import BLENDED, Stage
from esper.simic.evaluation import Evaluation
from esper.simic.gardener import Gardener
from esper.simic.rewards import FinalScore, Mode, RewardConfig, RewardInput, RewardStep, RewardTracker, Twin
from esper.tamiyo import Controller, Observation, Rules, SignalTracker, State, make
from tests.tamiyo.simulator import BLUEPRINTS, COSTS, SimulatedHost, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decision of an episode, and what followed."""

    before: EpochReport
    decision: Decision
    refused: bool
    events: tuple[Event, ...]
    report: EpochReport
    final: FinalScore | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """All decisions of one host."""

    steps: tuple[Played, ...]

    @property
    def final(self) -> FinalScore:
        """The network that came out."""
        final = self.steps[-1].final
        assert final is not None
        return final

    @property
    def control(self) -> Twin:
        """The curve of this host, for others to be measured against; for the host that only waits."""
        reports = [self.steps[0].before, *(step.report for step in self.steps[:-1])]
        accuracy, loss = tuple(r.val_accuracy for r in reports), tuple(r.val_loss for r in reports)
        return Twin(accuracy=accuracy, loss=loss, final=self.final)

    def gain(self, control: Twin, mode: Mode = "shaped") -> float:
        """Points of the harvested network minus its rent, minus the control's: what a plan is worth."""
        config, first, ended = RewardConfig(mode=mode), self.steps[0].before, control.final
        assert ended is not None
        rent = rent_points(self.final.parameters, first.start_parameters, first.rent)
        if mode == "loss":
            return config.points_per_nat * (ended.loss - self.final.loss) - rent
        return self.final.accuracy - ended.accuracy - rent

    def acts(self) -> int:
        """Decisions other than WAIT."""
        return sum(step.decision.op is not Op.WAIT for step in self.steps)


def rewards(episode: Episode, control: Twin | None, config: RewardConfig) -> list[dict[str, float]]:
    """The components of every step's reward. The tracker's state goes through JSON between any two."""
    slots = tuple(seed.slot for seed in episode.steps[0].before.seeds)
    state, found = RewardTracker(config, slots).state(), []
    for step in episode.steps:
        tracker = RewardTracker(config, slots)
        tracker.load_state(json.loads(json.dumps(state, allow_nan=False)))
        reward = tracker.step(
            RewardInput(
                before=step.before,
                decision=step.decision,
                refused=step.refused,
                events=step.events,
                report=step.report,
                control=control,
                final=step.final,
            )
        )
        assert reward.total == math.fsum(reward.components.values())
        found.append(reward.components)
        state = tracker.state()
    return found


def returns(episode: Episode, control: Twin | None, config: RewardConfig, gamma: float | None = None) -> dict[str, float]:
    """The discounted sum of every component over an episode, and of all together as `total`."""
    gamma = config.gamma if gamma is None else gamma
    sums: dict[str, float] = {}
    for time, components in enumerate(rewards(episode, control, config)):
        for name, value in components.items():
            sums[name] = sums.get(name, 0.0) + gamma**time * value
    return {**sums, "total": sum(sums.values())}


# A single step


def flat(accuracy: float = 60.0, loss: float = 1.1, epochs: int = 40) -> Twin:
    """A control that stands still."""
    return Twin(accuracy=(accuracy,) * epochs, loss=(loss,) * epochs, final=FinalScore(accuracy=accuracy, loss=loss, parameters=1000))


def one_step(
    before: EpochReport,
    after: EpochReport,
    decision: Decision = WAIT,
    *,
    config: RewardConfig | None = None,
    control: Twin | None = None,
    tracker: RewardTracker | None = None,
    **fields: Any,
) -> RewardStep:
    """The reward of one decision, by a new tracker unless one is given; beside a control that stands still unless one is given."""
    tracker = tracker or RewardTracker(config or RewardConfig(), tuple(each.slot for each in before.seeds))
    given = {"refused": False, "events": (), **fields}
    return tracker.step(
        RewardInput(before=before, decision=decision, report=after, control=flat() if control is None else control, **given)
    )


# Plans


@dataclass(frozen=True, slots=True)
class Script:
    """A controller made of one function, which looks at the masks and remembers nothing."""

    name: str
    choose: Callable[[Observation], Decision]

    def start(self, seed: int) -> State:
        return {}

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        return self.choose(observation), state


def legal(observation: Observation, op: Op) -> list[str]:
    """Slots for which the op is legal."""
    return [slot for slot, yes in zip(observation.masks.slot_names, observation.masks.slots(op), strict=True) if yes]


def grow(*starts: tuple[int, str, str], tempo: int = 3, keep: bool = True, blend: bool = True, hold: int = 1) -> Script:
    """Germinate (epoch, slot, blueprint) as soon as is legal from that epoch on; blend; fossilise after `hold` epochs of HOLDING."""

    def choose(observation: Observation) -> Decision:
        for slot in legal(observation, Op.FOSSILIZE):
            seed = next(seed for seed in observation.report.seeds if seed.slot == slot)
            if keep and seed.epochs_in_stage >= hold:
                return Decision(op=Op.FOSSILIZE, slot=slot)
        for slot in legal(observation, Op.ADVANCE) if blend else []:
            return Decision(op=Op.ADVANCE, slot=slot)
        for epoch, slot, blueprint in starts:
            if observation.report.epoch >= epoch and slot in legal(observation, Op.GERMINATE):
                return Decision(op=Op.GERMINATE, slot=slot, blueprint=blueprint, tempo=tempo)
        return WAIT

    return Script("grow", choose)


def cycle(slot: str, blueprint: str) -> Script:
    """Germinate and prune, over and over, as fast as the rules allow."""

    def choose(observation: Observation) -> Decision:
        if slot in legal(observation, Op.PRUNE):
            return Decision(op=Op.PRUNE, slot=slot)
        if slot in legal(observation, Op.GERMINATE):
            return Decision(op=Op.GERMINATE, slot=slot, blueprint=blueprint, tempo=3)
        return WAIT

    return Script("cycle", choose)


def seesaw(slot: str, blueprint: str, speed: int = 0) -> Script:
    """Blend a seed in, then turn its alpha down and up for ever."""

    def choose(observation: Observation) -> Decision:
        if slot in legal(observation, Op.SET_ALPHA_TARGET):
            alpha = next(seed.alpha for seed in observation.report.seeds if seed.slot == slot)
            return Decision(op=Op.SET_ALPHA_TARGET, slot=slot, alpha_target=0.25 if alpha > 0.5 else 1.0, alpha_speed=speed)
        return grow((1, slot, blueprint), keep=False).choose(observation)

    return Script("seesaw", choose)


RICH = World()
POOR = World(worth=(("norm", 0.02), ("conv_small", 0.05), ("conv_light", 0.2), ("conv_heavy", 0.3)))
"""A host that needs nothing: whatever grows costs more rent than it brings."""
HARMFUL = World(worth=(("norm", -0.5), ("conv_small", -1.0), ("conv_light", -2.0), ("conv_heavy", -4.0)))
WORLDS = {"rich": RICH, "poor": POOR, "harmful": HARMFUL}
SLOTS = ("r0c0", "r0c1", "r0c2")


def exploits() -> dict[str, Script]:
    """Ways to look busy without a better network at the end, whatever the host."""
    return {
        "germinate and prune in cycles": cycle(SLOTS[1], "conv_light"),
        "alpha down and up at once": seesaw(SLOTS[1], "conv_light"),
        "alpha down and up in ramps": seesaw(SLOTS[1], "conv_heavy", speed=3),
        "sit in HOLDING": grow((1, SLOTS[1], "conv_light"), keep=False),
        "sit in HOLDING at three slots": grow(*((1, slot, "conv_heavy") for slot in SLOTS), keep=False),
        "sit in TRAINING": grow((1, SLOTS[1], "conv_heavy"), blend=False),
        "germinate late and never finish": grow(*((20, slot, "conv_heavy") for slot in SLOTS)),
    }


def honest_plans() -> dict[str, Script]:
    """Growth of every kind and size, from the first epoch on and later."""
    return {
        f"{blueprint} at {count} from epoch {epoch}": grow(*((epoch, slot, blueprint) for slot in SLOTS[:count]))
        for blueprint in ("norm", "conv_small", "conv_light", "conv_heavy")
        for count in (1, 2, 3)
        for epoch in (1, 6, 12)
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, those of equals averaged."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        array = np.asarray(values)
        below, equal = (array[:, None] > array).sum(1), (array[:, None] == array).sum(1)
        return np.asarray(below + 0.5 * (equal - 1))

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


# The simulated host


class PairedHost(SimulatedHost):
    """Its val accuracy is measured with the same error as its twin's: the same images, whatever else is measured."""

    def __init__(self, world: World, random_seed: int = 0) -> None:
        super().__init__(world, random_seed)
        self.random_seed = random_seed

    def run_epoch(self) -> EpochReport:
        self.rng = np.random.default_rng([self.random_seed, self.epoch + 1])
        return super().run_epoch()

    def harvested(self) -> FinalScore:
        """Host and fossils, measured on the same images as the last epoch."""
        self.rng = np.random.default_rng([self.random_seed, self.epoch])
        accuracy = self._in_images(self.harvest_accuracy())
        kept = sum(each.parameters for each in self.seeds if each.stage is Stage.FOSSILIZED)
        return FinalScore(accuracy=accuracy, loss=2.3 * (1.0 - accuracy / 100.0), parameters=1000 + kept)


class DependentHost(PairedHost):
    """A host that hands its work over to its seeds: contributions are high, and accuracy is no better than without them."""

    def _bare(self) -> float:
        lifts = sum(self._lift(i, each.alpha) for i, each in enumerate(self.seeds) if each.stage in BLENDED)
        return super()._bare() - lifts


def simulate(controller: Controller, world: World, random_seed: int = 0, kind: type[PairedHost] = PairedHost) -> Episode:
    """One whole episode on a simulated host."""
    host = kind(world, random_seed)
    names = tuple(each.slot for each in host.seeds)
    tracker = SignalTracker(names, BLUEPRINTS, dict.fromkeys(names, COSTS), Rules(), host.lifecycle)
    state = controller.start(random_seed)
    report, steps = host.run_epoch(), []
    for _ in range(world.budget):
        observation = tracker.observe(report)
        decision, state = controller.decide(observation, state)
        observation.masks.check(decision)
        stages = [each.stage for each in host.seeds]
        host.act(decision)
        events = tuple(_changed(each.slot, old, each.stage) for old, each in zip(stages, host.seeds, strict=True) if each.stage is not old)
        tracker.note_decision(decision, succeeded=True)
        final = None
        if report.epoch == world.budget:
            final = host.harvested()
        host.tick()
        following = report if final is not None else host.run_epoch()
        steps.append(Played(before=report, decision=decision, refused=False, events=events, report=following, final=final))
        report = following
    return Episode(steps=tuple(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Every plan on one kind of host."""

    control: Twin
    honest: tuple[Episode, ...]
    exploits: tuple[Episode, ...]

    def pairs(self, mode: Mode) -> list[tuple[float, float]]:
        """Return and gain of every plan, the honest ones first."""
        config = RewardConfig(mode=mode)
        return [(returns(each, self.control, config)["total"], each.gain(self.control, mode)) for each in (*self.honest, *self.exploits)]


@cache
def field(world: str) -> Field:
    """All plans played on one of WORLDS."""
    kind = WORLDS[world]
    honest, others = (tuple(simulate(plan, kind) for plan in plans.values()) for plans in (honest_plans(), exploits()))
    return Field(control=simulate(make("wait"), kind).control, honest=honest, exploits=others)


def _changed(slot: str, before: Stage, after: Stage) -> StageChanged:
    return StageChanged(slot=slot, before=before, after=after, cause="act", blueprint="", parameters=0)


# A real network of two features


@cache
def spirals(count: int, seed: int, turns: float = 1.25) -> tuple[Tensor, Tensor]:
    """Points of three interleaved spirals, (count, 2), and which spiral each is on, (count,)."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator).sqrt()
    angle = 2.0 * math.pi * (turns * radius + y / 3.0) + 0.25 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 2.0, y


def network(width: int, seed: int) -> nn.Module:
    """A small classifier of points."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


FIRST, SECOND = "1", "3"
"""The slots of the real network: behind its first and its second activation."""


def train(controller: Controller, *, width: int = 4, seed: int = 0, budget: int = 25) -> Episode:
    """One whole episode of a real network, through the same loop and the same body as any user's."""
    (x, y), (val_x, val_y) = spirals(500, seed), spirals(1000, 10_000 + seed)
    net = network(width, seed)
    gates = GateConfig.permissive()
    # Without the last call: it would keep what is held to the end, and holding would be no exploit.
    model = Growable(net, [FIRST, SECOND], x[:4], gates=gates, lifecycle=LifecycleConfig(last_call=False), seed=seed)
    optimizer = torch.optim.SGD(model.parameter_groups(), lr=0.25, momentum=0.9, nesterov=True)

    def evaluate(network: nn.Module) -> Evaluation:
        with torch.no_grad():
            logits = network(val_x)
        return Evaluation(accuracy=100.0 * float((logits.argmax(1) == val_y).float().mean()), loss=float(F.cross_entropy(logits, val_y)))

    gardener = Gardener(model, optimizer, policy=controller, evaluate=evaluate, epochs=budget, classes=3, seed=seed)

    def epoch() -> EpochReport:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + gardener.epoch))
        model.train()
        for index in order.split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
        gardener.epoch += 1
        return gardener._report(0.0, 0.0)[0]

    report, steps = epoch(), []
    for _ in range(budget):
        observation = gardener.episode.look(report)
        decision, gardener.memory = gardener.controller.decide(observation, gardener.memory)
        step = gardener.episode.carry_out(observation, decision)
        final = None
        if report.epoch == budget:
            harvested = model.harvest()
            result = evaluate(harvested.eval())
            final = FinalScore(accuracy=result.accuracy, loss=result.loss, parameters=sum(p.numel() for p in harvested.parameters()))
        following = report if final is not None else epoch()
        steps.append(
            Played(before=report, decision=step.decision, refused=bool(step.refused), events=step.events, report=following, final=final)
        )
        report = following
    return Episode(steps=tuple(steps))
