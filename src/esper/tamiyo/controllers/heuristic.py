"""The heuristic: one host, a few rules, tried from top to bottom until one has something to do.

    keep    fossilise what clearly pays, and, when time runs out, what pays at all
    prune   take away what harms after a fair trial, what never gets ready, and what can no longer finish
    blend   advance what its gate lets pass, if there is time
    grow    germinate where a new seed is expected to pay most
    wait    otherwise

"Pays" is in points of val accuracy after rent, the price of parameters. How sure a figure is depends on the noise of the host's
recent val accuracies, because one image is 0.28 points where there are 360 of them and 0.01 where there are 10,000.

What a seed will bring is not known before it is tried, so it is guessed: a share of the error that the host will not get rid of by
itself, less late in the budget than early, more or less by how the seeds before it turned out. The guess is taken hopefully, since a
trial costs no more than time and only what has proved itself is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from esper.leyline.actions import Curve, Decision, Head, Op, Style
from esper.leyline.codec import from_plain, to_plain
from esper.leyline.config import NonNegative, NonNegativeInt, Range, Share, check_ranges
from esper.leyline.reports import SeedReport
from esper.leyline.score import rent_points
from esper.leyline.stages import DEVELOPING, LIVE, Stage
from esper.tamiyo.controllers.controller import State, register
from esper.tamiyo.controllers.heuristic_memory import HeuristicMemory
from esper.tamiyo.observe.masks import check_choice
from esper.tamiyo.observe.signals import Observation
from esper.tamiyo.observe.trend import noise, theil_sen

PREFERENCES = {
    "conv_heavy": 1.0,
    "conv_light": 0.85,
    "bottleneck": 0.75,
    "depthwise": 0.65,
    "attention": 0.5,
    "conv_small": 0.15,
    "norm": 0.1,
}
"""From one seed in the first or second slot of six hosts of the digits family. Where the host has no spatial convolution, seeds
with a 3x3 kernel brought 14 to 60 points and the others about none; where it has, all brought 0 to 4. `attention` is between the
squeeze-excite of feature maps, which was among those others, and the self-attention of tokens of the same name, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicConfig:
    """The thresholds of the rules. "Noise" is the standard deviation of the host's recent val accuracies around their trend."""

    # What things are worth
    noise_floor: NonNegative = 0.5
    """Least noise that is believed, in points: about two images in 360."""
    dependence: Share = 0.5
    """Part of a measured contribution that is only the host having come to lean on the seed, and would come back without it."""
    gain_share: Share = 0.2
    """Share of the remaining error that a seed of the best kind is expected to remove."""
    preferences: dict[str, float] = field(default_factory=lambda: dict(PREFERENCES))
    """What is expected of a blueprint, relative to the best kind. A table given in its place replaces it whole."""
    default_preference: NonNegative = 0.7
    """The same for blueprints that `preferences` does not name."""
    optimism: NonNegative = 2.0
    """A seed is judged before its start as if it brought so many times what is expected: trying is cheap, only keeping costs rent."""
    horizon: NonNegativeInt = 3
    """Epochs of its present progress that the host is trusted to go on making by itself."""
    lateness: NonNegative = 1.0
    """How much less a late seed brings: its gain is scaled by (epochs left / budget) to this power."""
    position_weight: Annotated[float, Range(-1.0, 1.0)] = -0.6
    """How much more is expected of the last slot in the forward pass than of the first, as a share; below 0 for less."""
    trust_strength: Annotated[float, Range(0.01)] = 2.0
    """Seeds that did as expected, granted in advance; the more, the slower experience tells."""

    # When to start a seed
    first_epoch: Annotated[int, Range(1)] = 1
    """Epoch after which the first seed may start."""
    early_margin: float = 0.25
    """Points that a seed must promise after rent while the host still improves by itself."""
    plateau_margin: float = 0.0
    """The same once the host is on a plateau."""
    plateau_trend: float = 0.25
    """A host whose val accuracy rises by less than this per epoch, in units of the noise, is on a plateau."""
    plateau_epochs: Annotated[int, Range(1)] = 4
    """So is one without a new best for so many epochs."""
    overfit_gap: NonNegative = 20.0
    """No growth while train accuracy is so many points above val accuracy: more capacity would not help."""
    overfit_trend: NonNegative = 0.25
    """Nor while val loss rises by more than this per epoch, in units of its noise."""
    max_growth: Annotated[float, Range(1.0)] = 16.0
    """Largest network that is planned for, as a multiple of the host."""
    failure_decay: Share = 0.9
    """What is left after each epoch of a blueprint's penalty for a failure."""
    failure_embargo: NonNegative = 0.6
    """A blueprint with a penalty above this is not tried."""

    # How a seed lives
    style: Style = Style.LINEAR_ADD
    tempo: int = 3
    """Epochs that blending takes."""
    training_epochs: NonNegativeInt = 3
    """Epochs in TRAINING that the gates ask for: with tempo and spare_epochs the time that a new seed needs."""
    spare_epochs: NonNegativeInt = 1
    """Epochs to keep in hand before the budget ends."""
    training_patience: Annotated[int, Range(1)] = 6
    """A seed that its gate does not let blend after so many epochs of TRAINING is pruned."""

    # What becomes of it
    keep_noise: NonNegative = 1.0
    """A seed is fossilised once what it brings for good exceeds its rent by this many standard errors of its mean contribution."""
    harm_noise: NonNegative = 3.0
    """A seed in HOLDING is pruned at once when its mean contribution is this many standard errors below zero."""
    holding_patience: Annotated[int, Range(1)] = 4
    """Epochs in HOLDING after which the mean decides, sure or not."""
    rising: NonNegative = 0.1
    """A seed whose contribution rises by more points an epoch than this is not given up before the limit."""
    holding_limit: Annotated[int, Range(1)] = 8
    """Epochs in HOLDING after which a rising seed is judged as well, and one that the gate still refuses is pruned, before the host
    depends on it."""
    ramp_speed: int = 3
    """Epochs of the ramp down for a seed that helps but is not worth its rent, so that the host can take over; and of the ramp up
    for one that stopped halfway."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_choice(Head.TEMPO, self.tempo)
        check_choice(Head.ALPHA_SPEED, self.ramp_speed)


SPACE = {
    "noise_floor": "0.1..2:log",
    "dependence": "0..1",
    "gain_share": "0.05..0.6:log",
    "default_preference": "0.2..1",
    "optimism": "0.5..4:log",
    "horizon": "0..8",
    "lateness": "0..3",
    "position_weight": "-1..1",
    "trust_strength": "0.5..8:log",
    "first_epoch": "1..6",
    "early_margin": "-2..3",
    "plateau_margin": "-2..2",
    "plateau_trend": "0.05..1:log",
    "plateau_epochs": "2..8",
    "overfit_gap": "5..60:log",
    "overfit_trend": "0.05..1:log",
    "max_growth": "2..64:log",
    "failure_decay": "0.5..1",
    "failure_embargo": "0.2..2:log",
    "style": "LINEAR_ADD,SIGMOID_ADD,LINEAR_MULTIPLY,GATED",
    "tempo": "3,5,7,10",
    "spare_epochs": "0..3",
    "training_patience": "3..10",
    "keep_noise": "0..3",
    "harm_noise": "1..6",
    "holding_patience": "1..8",
    "rising": "0..0.5",
    "holding_limit": "4..16",
    "ramp_speed": "0,3,5,8",
}
"""What a tuner searches. Not the preferences, which are measured blueprint by blueprint, and not training_epochs, which is what the gates
ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A seed that could be germinated, with what it is expected to bring and what it would cost, in points."""

    slot: str
    blueprint: str
    gain: float
    rent: float
    value: float
    """What could be left after rent if it does well."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """The controller that decides by the rules above, with their thresholds."""

    config: HeuristicConfig
    name: str = "heuristic"

    def start(self, seed: int) -> State:
        """An empty memory. Nothing is random, so the seed does not matter."""
        return to_plain(HeuristicMemory())

    def decide(self, observation: Observation, state: State) -> tuple[Decision, State]:
        """The first rule that has something to do decides."""
        memory = from_plain(HeuristicMemory, state).after(observation.report)
        view = _View(observation, memory, self.config)
        for decision in (view.keep(), view.prune(), view.blend()):
            if decision is not None:
                return decision, to_plain(memory)
        best, refusal = view.best_candidate()
        if best is None or refusal:
            return Decision(op=Op.WAIT, reason=refusal), to_plain(memory)
        return view.germinate(best), to_plain(memory.started(best.slot, best.blueprint, best.gain))


class _View:
    """One host at one moment, as the rules look at it."""

    def __init__(self, observation: Observation, memory: HeuristicMemory, config: HeuristicConfig) -> None:
        self.observation, self.memory, self.config = observation, memory, config
        self.report, self.masks = observation.report, observation.masks
        self.trials = {trial.slot: trial for trial in memory.trials}  # of every live seed, as the memory is up to date
        self.left = self.report.budget - self.report.epoch
        accuracies = observation.recent_accuracies()
        self.noise = max(config.noise_floor, noise(accuracies))
        self.slope = max(0.0, theil_sen(accuracies))

    # Keep

    def keep(self) -> Decision | None:
        """Fossilise the HOLDING seed that pays best, if that is sure enough, or if there is no time to become surer."""
        # At the end no time is left in which the host could do without what it leans on, so the whole contribution counts.
        paying = [seed for seed in self._legal(Op.FOSSILIZE) if self._mean(seed) > self._rent_of(seed)]
        # One decision in an epoch: with several seeds to keep, the last opportunity comes sooner.
        last_chance = self.left < self.config.spare_epochs + len(paying)
        for seed in sorted(paying, key=self._net, reverse=True):
            if self._net(seed) >= self.config.keep_noise * self._standard_error(seed):
                why = f"sure, with a standard error of {self._standard_error(seed):.2f}"
            elif last_chance:
                why = f"{self.left} epochs left"
            elif seed.epochs_in_stage >= self.config.holding_patience and self._net(seed) > 0.0:
                why = f"{seed.epochs_in_stage} epochs in HOLDING are enough"
            else:
                continue
            return Decision(op=Op.FOSSILIZE, slot=seed.slot, reason=f"{seed.blueprint}: {self._worth(seed)}; {why}")
        return None

    # Prune

    def prune(self) -> Decision | None:
        """Take away the first seed that should go."""
        for seed in self._legal(Op.PRUNE):
            if seed.stage in DEVELOPING:
                decision = self._prune_unready(seed)
            elif seed.stage is Stage.BLENDING:
                decision = self._prune_blending(seed)
            else:
                decision = self._prune_holding(seed)
            if decision is not None:
                return decision
        return None

    def _prune_unready(self, seed: SeedReport) -> Decision | None:
        """A seed that blocks the next one and does not get ready."""
        if seed.epochs_in_stage < self.config.training_patience or self._is_legal(Op.ADVANCE, seed):
            return None
        return self._gone(seed, f"not ready after {seed.epochs_in_stage} epochs: {self._verdict(seed)}")

    def _prune_blending(self, seed: SeedReport) -> Decision | None:
        """A seed that the budget's end would tear out of a host which has come to lean on it. Harm is judged in HOLDING, when the
        host has had time to get used to the seed."""
        if seed.ramp_left > self.left:
            return self._gone(seed, f"{seed.ramp_left} epochs from full influence with {self.left} left")
        return None

    def _prune_holding(self, seed: SeedReport) -> Decision | None:
        """A seed that is not worth its rent, or that its gate will not let through."""
        net, slow = self._net(seed), self.left > self.config.ramp_speed
        if not self.trials[seed.slot].count:
            return None
        if self._mean(seed) < -self.config.harm_noise * self._standard_error(seed):
            return self._gone(seed, f"{self._worth(seed)}; it harms")
        patience = self.config.holding_limit if self._rises(seed) else self.config.holding_patience
        if seed.epochs_in_stage >= patience and net <= 0.0:
            return self._gone(seed, f"{self._worth(seed)} after {seed.epochs_in_stage} epochs in HOLDING", slow and self._mean(seed) > 0.0)
        if seed.epochs_in_stage >= self.config.holding_limit and slow and not self._is_legal(Op.FOSSILIZE, seed):
            return self._gone(seed, f"refused after {seed.epochs_in_stage} epochs in HOLDING: {self._verdict(seed)}", True)
        return None

    def _gone(self, seed: SeedReport, reason: str, slowly: bool = False) -> Decision:
        speed, curve = (self.config.ramp_speed, Curve.COSINE) if slowly else (0, Curve.LINEAR)
        return Decision(op=Op.PRUNE, slot=seed.slot, alpha_speed=speed, alpha_curve=curve, reason=f"{seed.blueprint}: {reason}")

    # Blend

    def blend(self) -> Decision | None:
        """Advance the first seed that is ready, and send one that stopped halfway on to full influence."""
        for seed in self._legal(Op.ADVANCE):
            # No look at the trial contribution: seeds that were worth 40 points once blended in showed -9 in it, because the
            # layers behind have not got used to them.
            if seed.stage is not Stage.TRAINING or self.left >= seed.tempo + self.config.spare_epochs:
                return Decision(op=Op.ADVANCE, slot=seed.slot, reason=f"{seed.blueprint}: {self._verdict(seed)}")
        for seed in self._legal(Op.SET_ALPHA_TARGET):
            if seed.stage is Stage.BLENDING and seed.alpha_target < 1.0 and self.left >= self.config.ramp_speed + self.config.spare_epochs:
                reason = f"{seed.blueprint}: alpha stays at {seed.alpha_target:g}, and only full influence can be kept"
                speed = self.config.ramp_speed
                return Decision(
                    op=Op.SET_ALPHA_TARGET, slot=seed.slot, style=seed.style, alpha_target=1.0, alpha_speed=speed, reason=reason
                )
        return None

    # Grow

    def best_candidate(self) -> tuple[Candidate | None, str]:
        """The seed that promises most, and why it should not be started; the reason is empty if it should."""
        config, report = self.config, self.report
        needed = config.training_epochs + config.tempo + config.spare_epochs
        if report.epoch < config.first_epoch:
            return None, f"the first seed starts after epoch {config.first_epoch}"
        if self.left < needed:
            return None, f"a seed needs {needed} epochs and {self.left} {'is' if self.left == 1 else 'are'} left"
        if not self.masks.slots(Op.GERMINATE).any():
            empty = [seed.slot for seed in report.seeds if seed.stage is Stage.DORMANT]
            return None, self.masks.why_not(Op.GERMINATE, empty[0]) if empty else "every slot is taken"
        gap = report.train_accuracy - report.val_accuracy
        if gap > config.overfit_gap:
            return None, f"train accuracy is {gap:.1f} points above val accuracy: more capacity would not help"
        rise = self.observation.host_value("val_loss_trend")
        if rise > config.overfit_trend:
            return None, f"val loss rises by {rise:.2f} times its noise an epoch: more capacity would not help"
        best = max(self._candidates(), key=lambda candidate: candidate.value, default=None)
        if best is None:
            return None, "every blueprint that fits failed lately, or is too large"
        plateau = self.on_plateau()
        margin = config.plateau_margin if plateau else config.early_margin
        if best.value < margin:
            course = "on a plateau" if plateau else "still improving"
            return best, f"host {course}; {_promise(best)}; worth a try at {margin:g}, found {best.value:.2f}"
        return best, ""

    def on_plateau(self) -> bool:
        """Whether the host has stopped improving by itself."""
        if self.report.epoch <= self.config.plateau_epochs:
            return False
        stale = 10.0 * self.observation.host_value("plateau")
        return self.observation.host_value("val_accuracy_trend") < self.config.plateau_trend or stale >= self.config.plateau_epochs

    def germinate(self, best: Candidate) -> Decision:
        """The decision to start the seed, with why it should pay as the reason."""
        course = "on a plateau" if self.on_plateau() else f"rising {self.slope:.2f} points an epoch"
        reason = f"host {course}, {self._lasting_error():.1f} points of error ahead; {_promise(best)}"
        return Decision(
            op=Op.GERMINATE, slot=best.slot, blueprint=best.blueprint, style=self.config.style, tempo=self.config.tempo, reason=reason
        )

    def _candidates(self) -> Iterator[Candidate]:
        """Every seed that could be started and is neither under embargo nor too large."""
        config, report, names = self.config, self.report, self.masks.blueprint_names
        open_error = self._lasting_error() * (self.left / report.budget) ** config.lateness
        for seed in self._legal(Op.GERMINATE):
            row = self.masks.slot_names.index(seed.slot)
            place = 1.0 + config.position_weight * (seed.position - 0.5)
            for column in np.flatnonzero(self.masks.blueprints(seed.slot)):
                name, cost = names[column], int(self.observation.costs[row, column])
                penalty = self.memory.penalty(name, report.epoch, config.failure_decay)
                if penalty > config.failure_embargo or report.parameters + cost > config.max_growth * report.start_parameters:
                    continue
                preference = config.preferences.get(name, config.default_preference)
                gain = open_error * config.gain_share * preference * place
                gain *= self.memory.trust(name, config.trust_strength) / (1.0 + penalty)
                # However well seeds have done so far, there is no more to gain than the error that is left.
                gain = min(gain, self._lasting_error())
                rent = self._rent(report.parameters + cost) - self._rent(report.parameters)
                yield Candidate(slot=seed.slot, blueprint=name, gain=gain, rent=rent, value=config.optimism * gain - rent)

    def _lasting_error(self) -> float:
        """Error in points that is left after the progress which the host is trusted to make by itself."""
        return max(0.0, 100.0 - self.report.val_accuracy - self.slope * min(self.config.horizon, self.left))

    # What seeds are worth

    def _rent(self, parameters: int) -> float:
        """Rent of the whole network with so many parameters, in points. A seed pays the difference that it makes."""
        return rent_points(parameters, self.report.start_parameters, self.report.rent)

    def _net(self, seed: SeedReport) -> float:
        """What a HOLDING seed is thought to bring for good, after rent, in points."""
        return (1.0 - self.config.dependence) * self._mean(seed) - self._rent_of(seed)

    def _rent_of(self, seed: SeedReport) -> float:
        return self._rent(self.report.parameters) - self._rent(self.report.parameters - seed.parameters)

    def _mean(self, seed: SeedReport) -> float:
        return self.trials[seed.slot].mean

    def _rises(self, seed: SeedReport) -> bool:
        """Whether the seed brings more from epoch to epoch: it has not shown yet what it is worth."""
        return self.observation.slot_value(seed.slot, "contribution_trend") > self.config.rising / 10.0

    def _standard_error(self, seed: SeedReport) -> float:
        return self.noise / math.sqrt(max(1, self.trials[seed.slot].count))

    def _worth(self, seed: SeedReport) -> str:
        return f"contributes {self._mean(seed):+.2f} points, {self._net(seed):+.2f} for good and after rent"

    # The report

    def _legal(self, op: Op) -> list[SeedReport]:
        return [seed for seed, legal in zip(self.report.seeds, self.masks.slots(op), strict=True) if legal]

    def _is_legal(self, op: Op, seed: SeedReport) -> bool:
        return bool(self.masks.slots(op)[self.masks.slot_names.index(seed.slot)])

    def _verdict(self, seed: SeedReport) -> str:
        assert seed.stage in LIVE, f"no gate lies ahead of {seed.slot}"
        return str(self.report.verdicts[self.masks.slot_names.index(seed.slot)])


def _promise(best: Candidate) -> str:
    return f"{best.blueprint} at {best.slot} is expected to bring {best.gain:.2f} points for a rent of {best.rent:.2f}"


register("heuristic", HeuristicConfig, Heuristic, purpose="grows by rules: where it should pay, keeping what does", space=SPACE)
