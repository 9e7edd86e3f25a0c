"""Reports to test with: a plain one to vary, and a hypothesis strategy for any that could come, however odd its numbers."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from esper.leyline.actions import Style
from esper.leyline.reports import EpochReport, Gate, GateVerdict, GradientStats, LifecycleConfig, SeedReport, Topology
from esper.leyline.stages import BLENDED, OCCUPIED, Stage
from esper.tamiyo import Rules, SignalTracker
from esper.tamiyo.observe.masks import Blueprints

BLUEPRINTS = {Topology.MAP2D: ("norm", "conv_light", "conv_heavy"), Topology.TOKENS: ("norm", "mlp")}
COSTS = {"norm": 16, "conv_light": 600, "conv_heavy": 1200, "mlp": 800}
SLOTS = ("r0c0", "r0c1", "r0c2")
STAGES = tuple(stage for stage in Stage if stage is not Stage.UNKNOWN)
NEXT_GATE = {Stage.GERMINATED: Gate.G1, Stage.TRAINING: Gate.G2, Stage.BLENDING: Gate.G3, Stage.HOLDING: Gate.G5}
HEALTHY = GradientStats(steps=10, norm=0.1, peak=0.2, vanishing=0.25, exploding=0.0, finite=True)


def seed(slot: str = "r0c0", stage: Stage = Stage.DORMANT, **fields: Any) -> SeedReport:
    """A seed at a stage, with nothing measured, but for the fields given."""
    plain: dict[str, Any] = {"previous_stage": Stage.UNKNOWN, "epochs_in_stage": 0, "age": 0, "topology": Topology.MAP2D, "width": 8}
    plain |= {"position": 0.5, "host_parameters": 1000}
    if stage in OCCUPIED:
        plain |= {"blueprint": "conv_light", "tempo": 3, "alpha_target": 1.0, "parameters": 600}
    return SeedReport(slot=slot, stage=stage, **(plain | fields))


def verdict(report: SeedReport, passed: bool = True) -> GateVerdict | None:
    """What the next gate says; None where none lies ahead."""
    gate = NEXT_GATE.get(report.stage)
    return None if gate is None else GateVerdict(gate, report.slot, passed, () if passed else ("not ready",))


def report(*seeds: SeedReport, passed: bool = True, **fields: Any) -> EpochReport:
    """A host in the middle of an ordinary run, but for the fields given."""
    plain: dict[str, Any] = {
        "epoch": 1,
        "budget": 25,
        "steps": 10,
        "classes": 10,
        "train_loss": 1.0,
        "train_accuracy": 65.0,
        "val_loss": 1.1,
        "val_accuracy": 60.0,
        "per_class": (),
        "bare_accuracy": None,
        "harvest_accuracy": 60.0,
        "harvest_loss": 1.1,
        "learning_rate": 0.1,
        "initial_learning_rate": 0.1,
        "start_parameters": 1000,
        "parameters": 1000 + sum(each.parameters for each in seeds),
        "gradients": None,
        "seeds": seeds,
        "verdicts": tuple(verdict(each, passed) for each in seeds),
        "interactions": {},
        "flops": {},
        "germinated": 0,
        "rollbacks": 0,
    }
    return EpochReport(**(plain | fields))


def tracker(slots: tuple[str, ...] = SLOTS, rules: Rules | None = None, lifecycle: LifecycleConfig | None = None) -> SignalTracker:
    """A tracker for the blueprints above."""
    costs = dict.fromkeys(slots, COSTS)
    return SignalTracker(slots, BLUEPRINTS, costs, rules or Rules(), lifecycle or LifecycleConfig())


anything = st.floats() | st.sampled_from([0.0, 1.0, -1.0, 100.0, math.nan, math.inf, -math.inf, 1e-300, 1e300])
points = st.none() | anything


@st.composite
def gradient_stats(draw: st.DrawFn) -> GradientStats:
    """Gradients of any size, broken ones too."""
    share = st.floats(0.0, 1.0)
    norm = draw(anything.map(abs))
    vanishing, exploding = draw(share), draw(share)
    return GradientStats(
        steps=5, norm=norm, peak=norm, vanishing=vanishing, exploding=exploding, finite=draw(st.booleans())
    )


@st.composite
def seed_reports(draw: st.DrawFn, slot: str, blueprints: Blueprints) -> SeedReport:
    """A seed at any stage with any figures that its stage allows."""
    stage = draw(st.sampled_from(STAGES))
    topology = draw(st.sampled_from([Topology.MAP2D, Topology.TOKENS]))
    epochs = draw(st.integers(0, 30))
    fields: dict[str, Any] = {"previous_stage": draw(st.sampled_from(list(Stage))), "epochs_in_stage": epochs, "topology": topology}
    fields |= {"age": epochs + draw(st.integers(0, 30)), "width": draw(st.integers(1, 4096)), "position": draw(st.floats(0.0, 1.0))}
    if stage in OCCUPIED:
        fields |= {"blueprint": draw(st.sampled_from(blueprints[topology])), "style": draw(st.sampled_from(Style))}
        fields |= {"gradients": draw(st.none() | gradient_stats()), "gradient_ratio": draw(st.none() | st.floats(0.0, 10.0))}
        fields |= {"parameters": draw(st.integers(0, 10**7)), "finite": draw(st.booleans())}
    if stage is Stage.TRAINING:
        fields |= {"trial_contribution": draw(points), "trial_error": draw(points), "trial_loss": draw(points)}
    if stage in BLENDED:
        fields |= {"contribution_error": draw(points), "contribution_loss": draw(points)}
        fields |= {"contribution": draw(points), "contribution_age": draw(st.integers(0, 5)), "alpha": draw(st.floats(0.0, 1.0))}
        fields["trial_contribution"] = draw(points)
    if stage is Stage.BLENDING:
        fields |= {"alpha_target": draw(st.sampled_from([0.25, 0.5, 1.0])), "ramp_left": draw(st.integers(0, 10))}
        if fields["ramp_left"] > 0 and draw(st.booleans()):
            fields |= {"pruning": True, "alpha_target": 0.0}
    return seed(slot, stage, **fields)


@st.composite
def report_streams(draw: st.DrawFn, length: int = 6, blueprints: Blueprints = BLUEPRINTS) -> list[EpochReport]:
    """Reports of consecutive epochs. Each is possible by itself; they need not follow from one another, nor from any decision."""
    slots = SLOTS[: draw(st.integers(0, 3))]
    budget = draw(st.integers(length, 40))
    first = draw(st.integers(1, budget - length + 1))
    stream = []
    for epoch in range(first, first + draw(st.integers(1, length))):
        seeds = [draw(seed_reports(slot, blueprints)) for slot in slots]
        names = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "harvest_loss", "harvest_accuracy")
        figures: dict[str, Any] = {name: draw(anything) for name in names} | {"val_error": draw(st.none() | st.floats(0.001, 50.0))}
        verdicts = tuple(verdict(each, draw(st.booleans())) for each in seeds)
        pairs = {(SLOTS[0], SLOTS[1]): draw(anything)} if len(slots) > 1 else {}
        rates: dict[str, Any] = {"learning_rate": draw(st.floats(0.0, 1.0)), "initial_learning_rate": draw(st.floats(0.0, 1.0))}
        counts: dict[str, Any] = {name: draw(st.integers(0, 10**6)) for name in ("germinated", "rollbacks", "steps")}
        others: dict[str, Any] = {"epoch": epoch, "budget": budget, "verdicts": verdicts, "interactions": pairs}
        stream.append(report(*seeds, **figures, **rates, **counts, **others))
    return stream
