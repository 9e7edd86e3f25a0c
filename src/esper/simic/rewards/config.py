"""What a reward is computed from and how it is weighed: the config, the control, the final score, and the step that comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from esper.leyline.actions import Decision
from esper.leyline.config import NonNegativeInt, Range, check_ranges
from esper.leyline.events import Event
from esper.leyline.reports import EpochReport
from esper.leyline.travel import travels

Mode = Literal["shaped", "simplified", "sparse", "loss"]
Weight = Annotated[float, Range(0.0, 10.0)]
Points = Annotated[float, Range(0.0, 100.0)]
Cost = Annotated[float, Range(0.0, 1.0)]

COMPONENTS: dict[Mode, tuple[str, ...]] = {
    "shaped": ("progress", "attribution", "pbrs", "rent", "costs", "terminal"),
    "simplified": ("pbrs", "costs", "terminal"),
    "sparse": ("terminal",),
    "loss": ("progress", "attribution", "pbrs", "rent", "costs", "terminal"),
}
"""The parts that make up the reward in each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """How a reward is put together. A point is a point of val accuracy, or what stands for one in mode `loss`."""

    mode: Mode = "shaped"
    """shaped: all components. simplified: pbrs, costs, terminal. sparse: terminal alone. loss: as shaped, with val loss for accuracy."""
    gamma: Annotated[float, Range(0.0, 1.0)] = 0.995
    """The learner's discount. With another one here than there, what telescopes no longer does."""
    scale: Annotated[float, Range(1.0)] = 40.0
    """Points count as tanh(points / scale): in proportion up to about half of this, and never as more than 1."""
    points_per_nat: Annotated[float, Range(0.01)] = 20.0
    """Mode loss: points that a nat of val loss counts for."""

    progress: Weight = 1.0
    """Weight of the lead over the control, and of rent: both together are the change of the running score."""
    attribution: Weight = 0.5
    """Weight of what seeds are credited with. The component stays within twice its weight: +-1."""
    credit_slack: Points = 0.25
    """All seeds together are credited with no more points than the host is ahead after rent, and so many for the noise of val."""
    pbrs: Weight = 0.02
    """Weight of the potential of stages: a fossil's potential is 8."""
    terminal: Weight = 2.0
    """Weight of the final score against the control's."""
    fossil_bonus: Cost = 0.01
    """For each fossil that contributes, at the end; all together no more than the gain itself."""
    fossil_points: Points = 1.0
    """Points of contribution from which on a fossil counts for the bonus."""

    intervention: Cost = 0.002
    """For each op that is carried out, WAIT apart."""
    refused: Cost = 0.02
    """For an op that was refused."""
    prune_helpful: Cost = 0.03
    """For pruning a seed that is credited with `helpful_points` more than its rent; less for one that helps less."""
    helpful_points: Annotated[float, Range(0.01)] = 2.0
    thrash: Cost = 0.02
    """For germinating in a slot what was pruned there less than `thrash_epochs` ago; and for pruning a seed that does no harm, less the
    older it is, nothing from that age on."""
    thrash_epochs: Annotated[int, Range(1)] = 10
    holding: Cost = 0.005
    """For each epoch that a seed is in HOLDING beyond its patience."""
    holding_patience: NonNegativeInt = 5
    holding_cap: Cost = 0.3
    """Most that holding costs in an episode."""
    rollback: Cost = 0.1
    """For an epoch that the governor had to undo, if anything had grown."""
    extra: dict[str, Annotated[float, Range(-100.0, 100.0)]] = field(default_factory=dict)
    """Reward components of plug-ins and the weight of each, e.g. thrift=0.5; they are added to the total in every mode."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalScore:
    """The network as it is harvested after the last decision was carried out, on val: host and fossils, live seeds dropped."""

    accuracy: float
    loss: float
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The host's twin that only waits: same seed, same data order. One value for each epoch of the budget, on val."""

    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    final: FinalScore | None
    """Of the network that it ends with; None before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """All that is known of a decision when it is rewarded; what a reward component of a user's own is computed from."""

    before: EpochReport
    """The report that the decision was made on."""
    decision: Decision
    refused: bool
    """Whether it was not carried out."""
    events: tuple[Event, ...]
    """What happened when it was."""
    report: EpochReport
    """That of the epoch trained after the decision; after the last epoch, the one before once more."""
    control: Twin | None
    """The twin that only waits, with values up to `report.epoch` at least; None in a run without."""
    final: FinalScore | None = None
    """After the last epoch, what the harvested network scores; else None."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStep:
    """The reward for one decision, and the parts that it is the sum of."""

    total: float
    components: dict[str, float]
