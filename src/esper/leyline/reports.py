"""What the body says about itself: gradient statistics, the report of each seed, and the verdict of a gate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from esper.leyline.actions import Style
from esper.leyline.config import Range, check_ranges
from esper.leyline.score import USUAL_RENT
from esper.leyline.stages import Stage
from esper.leyline.travel import travels


class Topology(StrEnum):
    """The shape of the features at a slot, which decides what can grow there."""

    MAP2D = "map2d"
    """Feature maps (B, C, H, W)."""
    MAP1D = "map1d"
    """Feature maps (B, C, T)."""
    TOKENS = "tokens"
    """Token features (B, T, d)."""
    VECTOR = "vector"
    """Plain vectors (B, d)."""


class Gate(StrEnum):
    """The checks on the way of a seed. G4 went with the stage it guarded and is not used again."""

    G0 = "G0"
    G1 = "G1"
    G2 = "G2"
    G3 = "G3"
    G5 = "G5"


GATE_BEFORE: dict[Gate, Stage] = {
    Gate.G0: Stage.GERMINATED,
    Gate.G1: Stage.TRAINING,
    Gate.G2: Stage.BLENDING,
    Gate.G3: Stage.HOLDING,
    Gate.G5: Stage.FOSSILIZED,
}
"""The stage that each gate guards."""


@travels
@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What a gate said. `reasons` are the failures in words and numbers; empty when it passed."""

    gate: Gate
    slot: str
    passed: bool
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.gate} passed" if self.passed else f"{self.gate} refused: " + "; ".join(self.reasons)


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStats:
    """Gradients of one group of parameters over an epoch: means over its steps, and the largest norm."""

    steps: int
    norm: float
    """Mean over the steps of the norm over all parameters."""
    peak: float
    """Largest norm of any single tensor in any step."""
    vanishing: float
    """Share of tensors with norm at most VANISHING_SHARE of the norm over all: beside the others they learn nothing."""
    exploding: float
    """Share of tensors with norm above EXPLODING_NORM."""
    finite: bool
    """No NaN and no infinity was seen."""


VANISHING_SHARE = 1e-7
EXPLODING_NORM = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRecord:
    """Where a seed is in its life and what was measured of it: what the body keeps and what it reports. Epoch counts include the
    present epoch, so at decision time they say how many were trained."""

    stage: Stage = Stage.DORMANT
    previous_stage: Stage = Stage.UNKNOWN
    epochs_in_stage: int = 0
    """Ticks since the stage began."""
    age: int = 0
    """Ticks since germination."""
    blueprint: str = ""
    style: Style = Style.LINEAR_ADD
    tempo: int = 0
    alpha_target: float = 0.0
    pruning: bool = False
    """The ramp under way ends in PRUNED."""
    gradients: GradientStats | None = None
    """None until a training step was measured."""
    gradient_ratio: float | None = None
    """(|g_seed| / |g_host|) * sqrt(P_host / P_seed), at most 10; None where the host has no gradient."""
    host_gradient: float | None = None
    """Mean norm of the host's gradient in the same epoch, which the gates hold the seed's against."""
    contribution: float | None = None
    """Val accuracy with the seed minus without, in points; None until measured."""
    contribution_error: float | None = None
    """Its standard error, in points: how far it would be off on other validation samples. None where that is not known."""
    contribution_loss: float | None = None
    """Val loss without the seed minus with it, in nats: what it is worth on a scale that no single sample can turn."""
    contribution_age: int = 0
    """Ticks since the contribution was measured."""
    trial_contribution: float | None = None
    """The same, at the target alpha, of a seed that is still in TRAINING."""
    trial_error: float | None = None
    trial_loss: float | None = None
    """Of the trial contribution: its standard error, and what it is in nats of val loss."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport(SeedRecord):
    """All that is known about the seed of one slot; what gates judge and controllers see."""

    slot: str
    topology: Topology
    width: int
    """Channels or features at the slot."""
    position: float
    """Where the slot lies in the host's forward pass: 0 first, 1 last."""
    reach: int = 0
    """Positions of the features at the slot that change with one position of the host's input; 0 where that is not known, or where there
    are none."""
    capacity: int = 0
    """Parameters of the host's layers between the slot before and this one."""
    alpha: float = 0.0
    ramp_left: int = 0
    """Epochs until alpha reaches its target."""
    parameters: int = 0
    host_parameters: int = 0
    finite: bool = True
    """Every parameter of the seed is finite."""

    @property
    def explodes(self) -> bool:
        """Whether a tensor of the seed has a gradient too large for any, and for a host whose own is as large as this one's."""
        found = self.gradients
        return found is not None and found.exploding > 0 and found.peak > EXPLODING_NORM * max(1.0, self.host_gradient or 0.0)

    @property
    def gradient_health(self) -> float | None:
        """1 when every tensor learns; 0.5 lost where all vanish, 0.8 where all explode; 0 after a NaN; None until measured. The same
        whatever the scale of the loss: whether gradients are large enough is told by the ratio."""
        found = self.gradients
        if found is None:
            return None
        return 1.0 - 0.5 * found.vanishing - (0.8 * found.exploding if self.explodes else 0.0) if found.finite else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What the gates ask of a seed. The defaults are a practitioner's; `GateConfig.permissive()` asks for structure and health alone."""

    min_training_epochs: Annotated[int, Range(0)] = 3
    """Epochs in TRAINING before a seed may be blended in."""
    min_gradient_health: Annotated[float, Range(0, 1)] = 0.7
    strict: bool = True
    """Also ask for a useful gradient and a measured benefit."""
    min_gradient_ratio: Annotated[float, Range(0)] = 0.01
    """Strict: smallest seed_gradient_ratio before blending."""
    min_trial_contribution: float = 0.0
    """Strict: smallest trial contribution before blending, in points."""
    trial_errors: Annotated[float, Range(0)] = 2.0
    """Strict: a trial that is below that by no more than so many standard errors passes: harm has to be shown, and nearly all that a
    trial shows on a few hundred samples is chance."""
    min_contribution: float = 1.0
    """Strict: smallest contribution before fossilising, in points."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @classmethod
    def permissive(cls) -> GateConfig:
        """Gates under which a policy learns: structure and health only."""
        return cls(strict=False)


Isolation = Literal["boost", "ste", "shadow", "none"]
"""How a seed in TRAINING learns without touching the host: `boost` from the gradient at the host's output, with a pull that keeps it near;
`ste` from that gradient alone; `shadow` in a pass of its own whose loss feels the seed; `none` as `ste`, with the seed's gradient
flowing on into the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleConfig:
    """The times of a seed's life, in epochs."""

    embargo_epochs: Annotated[int, Range(1)] = 5
    """Cool-down of a slot after a prune."""
    reset_epochs: Annotated[int, Range(1)] = 1
    auto_advance: bool = True
    """The epoch's tick takes G1 and G3 by itself, so that what is left to decide is when to start blending."""
    last_call: bool = True
    """After the last decision of the budget, a seed in HOLDING that G5 lets pass and that is worth its rent is kept, whoever decides; all
    other live seeds are dropped."""

    def __post_init__(self) -> None:
        check_ranges(self)


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """One host after one epoch: what controllers, telemetry and rewards are given. Accuracies are in points, 0 to 100."""

    epoch: int
    """Epochs done, this one included."""
    budget: int
    """Epochs there are in all; the remaining ones are seen by the controller."""
    steps: int
    """Optimiser steps done since the start."""
    classes: int
    """Classes, or tokens of the vocabulary: ln(classes) is the loss of the uniform prediction."""
    train_loss: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float
    val_error: float | None = None
    """Standard error of the val accuracy, in points: how far it would be off on another val split. None where that is not known."""
    per_class: tuple[float, ...]
    """Val accuracy of each class; empty for language tasks, which have too many."""
    bare_accuracy: float | None
    """Val accuracy with every seed switched off; None while nothing is blended in."""
    harvest_accuracy: float
    """Val accuracy of host and fossils alone: what harvest() would give now."""
    harvest_loss: float
    learning_rate: float
    initial_learning_rate: float
    start_parameters: int
    """Parameters of the host before anything grew."""
    parameters: int
    """Parameters of host and seeds now."""
    gradients: GradientStats | None
    """The host's; None when nothing was measured."""
    seeds: tuple[SeedReport, ...]
    """One for each slot, in slot order."""
    verdicts: tuple[GateVerdict | None, ...]
    """What the next gate on each slot's way would say; None where none lies ahead."""
    interactions: dict[tuple[str, str], float]
    """Synergy of pairs of seeds in points: v(all) - v(without a) - v(without b) + v(without both)."""
    flops: dict[str, int]
    """Of this epoch: forward, backward, validation, counterfactual."""
    germinated: int
    """Seeds germinated so far."""
    rollbacks: int
    """Rollbacks so far."""
    rent: float = USUAL_RENT
    """What this host's user pays for size: points for a network that grew sixteenfold."""
    anomaly: str = ""
    """Why the governor rolled the host back in this epoch; empty when it did not."""
