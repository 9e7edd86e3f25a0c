"""The gates of a seed's life. Each is a pure function of the seed's report; its verdict says why in words and numbers."""

from __future__ import annotations

from collections.abc import Callable

from esper.leyline.reports import EXPLODING_NORM, Gate, GateConfig, GateVerdict, SeedReport
from esper.leyline.stages import Stage

NOT_FINITE = "the seed has parameters that are not finite"


def g1(report: SeedReport, config: GateConfig) -> list[str]:
    """Before TRAINING: the seed's parameters are finite."""
    return [] if report.finite else [NOT_FINITE]


def g2(report: SeedReport, config: GateConfig) -> list[str]:
    """Before BLENDING: trained long enough, gradients measured and healthy; strict: a useful gradient and a trial that does no harm."""
    failures = _health(report, config)
    if report.epochs_in_stage < config.min_training_epochs:
        failures.append(f"{report.epochs_in_stage} epochs in TRAINING, at least {config.min_training_epochs} needed")
    if config.strict:
        # A host that is frozen has no gradient to hold the seed's against.
        if report.gradient_ratio is not None and not report.gradient_ratio >= config.min_gradient_ratio:
            failures.append(f"gradient ratio {report.gradient_ratio:.4f} below {config.min_gradient_ratio}")
        if report.trial_contribution is None:
            failures.append("trial contribution not measured")
        else:
            slack = config.trial_errors * (report.trial_error or 0.0)
            if not report.trial_contribution + slack >= config.min_trial_contribution:
                sure = f" and {slack:.2f} for chance" if slack else ""
                needed = f"at least {config.min_trial_contribution} needed"
                failures.append(f"trial contribution {report.trial_contribution:+.2f} points{sure}, {needed}")
    return failures


def g3(report: SeedReport, config: GateConfig) -> list[str]:
    """Before HOLDING: alpha has reached its target, and the target is full influence."""
    failures = []
    if report.alpha_target != 1.0:
        failures.append(f"alpha's target is {report.alpha_target}, not 1.0")
    if report.ramp_left > 0:
        failures.append(f"alpha is {report.alpha:.3f}, {report.ramp_left} epochs from its target")
    return failures


def g5(report: SeedReport, config: GateConfig) -> list[str]:
    """Before fossilising: healthy, and its contribution was measured while HOLDING; strict: the contribution is worth keeping."""
    failures = _health(report, config)
    if report.contribution is None:
        failures.append("contribution not measured")
    elif report.contribution_age >= report.epochs_in_stage:
        failures.append("contribution not measured since the seed has full influence")
    elif config.strict and not report.contribution >= config.min_contribution:
        failures.append(f"contribution {report.contribution:+.2f} points, at least {config.min_contribution} needed")
    return failures


def _health(report: SeedReport, config: GateConfig) -> list[str]:
    failures = [] if report.finite else [NOT_FINITE]
    if report.gradients is None:
        failures.append("gradients not measured")
        return failures
    if not report.gradients.finite:
        failures.append("gradients are not finite")
    elif report.explodes:
        bound = f"above {EXPLODING_NORM:g} and {EXPLODING_NORM:g} times the host's"
        failures.append(f"a gradient is exploding (norm {report.gradients.peak:.3g}, {bound})")
    health = report.gradient_health
    assert health is not None, "gradients were measured"
    if health < config.min_gradient_health:
        failures.append(f"gradient health {health:.2f} below {config.min_gradient_health}")
    return failures


GATES: dict[Gate, Callable[[SeedReport, GateConfig], list[str]]] = {Gate.G1: g1, Gate.G2: g2, Gate.G3: g3, Gate.G5: g5}
"""Those that judge a seed. G0 is the germination itself, which raises for a slot or a blueprint that does not fit."""

NEXT_GATE: dict[Stage, Gate] = {Stage.GERMINATED: Gate.G1, Stage.TRAINING: Gate.G2, Stage.BLENDING: Gate.G3, Stage.HOLDING: Gate.G5}
"""The gate that lies ahead of a seed, by its stage."""


FIGURES: dict[Gate, tuple[str, ...]] = {
    Gate.G1: (),
    Gate.G2: ("epochs_in_stage", "gradient_health", "gradient_ratio", "trial_contribution", "trial_error"),
    Gate.G3: ("alpha", "alpha_target", "ramp_left"),
    Gate.G5: ("gradient_health", "contribution", "contribution_error", "contribution_age"),
}
"""What each gate looks at besides whether all is finite, by its name in a seed's report."""


def figures(gate: Gate, report: SeedReport) -> dict[str, float]:
    """What a gate judged a seed by, as far as it was measured."""
    read = {name: getattr(report, name) for name in FIGURES[gate]}
    return {name: float(value) for name, value in read.items() if value is not None}


def judge(gate: Gate, report: SeedReport, config: GateConfig) -> GateVerdict:
    """Ask one gate about one seed. Changes nothing."""
    reasons = tuple(GATES[gate](report, config))
    return GateVerdict(gate, report.slot, not reasons, reasons)
