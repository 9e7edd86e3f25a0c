"""Each gate as a function of a report: what passes, what fails and for which reason, at the bounds and beyond them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from esper.kasmina.gates import GATES, NEXT_GATE, judge
from esper.leyline.reports import GATE_BEFORE, Gate, GateConfig, GateVerdict, GradientStats, SeedReport, Topology
from esper.leyline.stages import TRANSITIONS, Stage

STRICT, PERMISSIVE = GateConfig(), GateConfig.permissive()
HEALTHY = GradientStats(steps=10, norm=0.5, peak=0.4, vanishing=0.0, exploding=0.0, finite=True)
NAN = math.nan


def report(stage: Stage, **fields: Any) -> SeedReport:
    """A seed with which every gate is content, but for the fields given."""
    content = SeedReport(
        slot="mix",
        stage=stage,
        previous_stage=Stage.UNKNOWN,
        epochs_in_stage=3,
        age=4,
        topology=Topology.VECTOR,
        width=6,
        position=0.5,
        alpha=1.0,
        alpha_target=1.0,
        gradients=HEALTHY,
        gradient_ratio=0.01,
        contribution=1.0,
        contribution_age=0,
        trial_contribution=0.0,
    )
    return replace(content, **fields)


def ask(gate: Gate, config: GateConfig = STRICT, **fields: Any) -> GateVerdict:
    stages = {gate: stage for stage, gate in NEXT_GATE.items()}
    return judge(gate, report(stages[gate], **fields), config)


def gradients(**fields: Any) -> GradientStats:
    return replace(HEALTHY, **fields)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("config", [STRICT, PERMISSIVE], ids=["strict", "permissive"])
def test_each_gate_lets_a_seed_pass_that_has_exactly_what_is_asked(gate: Gate, config: GateConfig) -> None:
    verdict = ask(gate, config)
    assert verdict == GateVerdict(gate, "mix", True, ())
    assert str(verdict) == f"{gate} passed"


HARM = "trial contribution -1.00 points and 0.40 for chance, at least 0.0 needed"
EXPLODING = "a gradient is exploding (norm {}, above 10 and 10 times the host's)"
REFUSALS = [
    # gate, what is wrong, the one reason given, whether permissive gates refuse it as well
    (Gate.G1, {"finite": False}, "the seed has parameters that are not finite", True),
    (Gate.G2, {"finite": False}, "the seed has parameters that are not finite", True),
    (Gate.G2, {"epochs_in_stage": 2}, "2 epochs in TRAINING, at least 3 needed", True),
    (Gate.G2, {"gradients": None}, "gradients not measured", True),
    (Gate.G2, {"gradients": gradients(exploding=0.01, peak=12.34)}, EXPLODING.format("12.3"), True),
    (Gate.G2, {"gradients": gradients(vanishing=0.62)}, "gradient health 0.69 below 0.7", True),
    (Gate.G2, {"gradient_ratio": 0.0099}, "gradient ratio 0.0099 below 0.01", False),
    (Gate.G2, {"gradient_ratio": NAN}, "gradient ratio nan below 0.01", False),
    (Gate.G2, {"trial_contribution": None}, "trial contribution not measured", False),
    (Gate.G2, {"trial_contribution": -0.25}, "trial contribution -0.25 points, at least 0.0 needed", False),
    (Gate.G2, {"trial_contribution": NAN}, "trial contribution +nan points, at least 0.0 needed", False),
    (Gate.G2, {"trial_contribution": -1.0, "trial_error": 0.2}, HARM, False),
    (Gate.G3, {"alpha_target": 0.5}, "alpha's target is 0.5, not 1.0", True),
    (Gate.G3, {"alpha": 0.75, "ramp_left": 2}, "alpha is 0.750, 2 epochs from its target", True),
    (Gate.G3, {"alpha": 0.9999, "ramp_left": 1}, "alpha is 1.000, 1 epochs from its target", True),
    (Gate.G5, {"finite": False}, "the seed has parameters that are not finite", True),
    (Gate.G5, {"gradients": None}, "gradients not measured", True),
    (Gate.G5, {"gradients": gradients(exploding=0.1, peak=1234.5)}, EXPLODING.format("1.23e+03"), True),
    (Gate.G5, {"gradients": gradients(vanishing=1.0)}, "gradient health 0.50 below 0.7", True),
    (Gate.G5, {"contribution": None}, "contribution not measured", True),
    (Gate.G5, {"contribution": None, "epochs_in_stage": 0}, "contribution not measured", True),
    (Gate.G5, {"contribution_age": 3}, "contribution not measured since the seed has full influence", True),
    (Gate.G5, {"contribution_age": 7}, "contribution not measured since the seed has full influence", True),
    (Gate.G5, {"contribution": 0.99}, "contribution +0.99 points, at least 1.0 needed", False),
    (Gate.G5, {"contribution": -3.5}, "contribution -3.50 points, at least 1.0 needed", False),
    (Gate.G5, {"contribution": NAN}, "contribution +nan points, at least 1.0 needed", False),
]


@pytest.mark.parametrize(("gate", "wrong", "reason", "always"), REFUSALS)
def test_each_refusal_has_its_one_reason_in_words_and_numbers(gate: Gate, wrong: dict[str, Any], reason: str, always: bool) -> None:
    verdict = ask(gate, STRICT, **wrong)
    assert verdict == GateVerdict(gate, "mix", False, (reason,))
    assert str(verdict) == f"{gate} refused: {reason}"
    assert ask(gate, PERMISSIVE, **wrong).passed is not always


@pytest.mark.parametrize(
    ("gate", "just_enough"),
    [
        (Gate.G2, {"epochs_in_stage": 3}),
        (Gate.G2, {"gradients": gradients(vanishing=0.6)}),  # health 1 - 0.5 * 0.6 = 0.7
        (Gate.G2, {"gradients": gradients(peak=10.0)}),
        (Gate.G2, {"gradient_ratio": 0.01}),
        (Gate.G2, {"trial_contribution": 0.0}),
        (Gate.G2, {"trial_contribution": -0.0}),
        (Gate.G2, {"trial_contribution": -1.0, "trial_error": 0.5}),  # two standard errors
        (Gate.G3, {"ramp_left": 0}),
        (Gate.G5, {"contribution": 1.0}),
        (Gate.G5, {"contribution_age": 2}),
        (Gate.G5, {"contribution_age": 0, "epochs_in_stage": 1}),
    ],
)
def test_a_bound_itself_is_enough(gate: Gate, just_enough: dict[str, Any]) -> None:
    assert ask(gate, STRICT, **just_enough).passed


@pytest.mark.parametrize("config", [STRICT, PERMISSIVE], ids=["strict", "permissive"])
def test_a_gradient_that_is_not_finite_fails_both_health_gates_with_both_reasons(config: GateConfig) -> None:
    for gate in (Gate.G2, Gate.G5):
        verdict = ask(gate, config, gradients=gradients(finite=False))
        assert verdict.reasons == ("gradients are not finite", "gradient health 0.00 below 0.7")


def test_every_failure_is_named_not_only_the_first() -> None:
    verdict = ask(Gate.G2, epochs_in_stage=1, gradients=None, gradient_ratio=0.001, trial_contribution=-1.0)
    assert verdict.reasons == (
        "gradients not measured",
        "1 epochs in TRAINING, at least 3 needed",
        "gradient ratio 0.0010 below 0.01",
        "trial contribution -1.00 points, at least 0.0 needed",
    )
    assert str(verdict) == "G2 refused: " + "; ".join(verdict.reasons)


def test_a_contribution_measured_before_holding_does_not_count_however_good_it_is() -> None:
    for epochs in range(5):
        assert not ask(Gate.G5, PERMISSIVE, contribution=50.0, epochs_in_stage=epochs, contribution_age=epochs).passed


def test_the_bars_are_those_of_the_config() -> None:
    high = GateConfig(
        min_training_epochs=10, min_gradient_health=0.95, min_gradient_ratio=0.5, min_trial_contribution=2.0, min_contribution=5.0
    )
    assert len(ask(Gate.G2, high, gradients=gradients(vanishing=0.2)).reasons) == 4
    assert ask(Gate.G5, high, contribution=4.9).reasons == ("contribution +4.90 points, at least 5.0 needed",)
    low = GateConfig(min_trial_contribution=-1.0, min_contribution=-1.0)
    assert ask(Gate.G2, low, trial_contribution=-1.0).passed
    assert ask(Gate.G5, low, contribution=-1.0).passed


def test_a_target_of_zero_is_not_full_influence() -> None:
    assert not ask(Gate.G3, alpha=0.0, alpha_target=0.0).passed


def test_every_gate_but_germination_judges_the_seeds_of_the_stage_before_the_one_it_guards() -> None:
    assert set(GATES) == set(NEXT_GATE.values()) == set(Gate) - {Gate.G0}
    assert all(GATE_BEFORE[gate] in TRANSITIONS[stage] for stage, gate in NEXT_GATE.items())


HELD: list[tuple[dict[str, Any], float | None, float]] = [
    ({"exploding": 0.5, "peak": 12.0}, None, 0.6),
    ({"exploding": 0.5, "peak": 12.0}, 0.5, 0.6),
    ({"exploding": 0.5, "peak": 12.0}, 1.5, 1.0),  # a bound of 15
    ({"exploding": 0.5, "peak": 16.0}, 1.5, 0.6),
    ({"vanishing": 1.0, "norm": 0.0}, 1.0, 0.5),
    ({"vanishing": 0.5}, None, 0.75),
]


@pytest.mark.parametrize(("fields", "host", "expected"), HELD)
def test_a_seeds_gradients_are_held_against_the_hosts(fields: dict[str, Any], host: float | None, expected: float) -> None:
    seed = report(Stage.TRAINING, gradients=gradients(**fields), host_gradient=host, epochs_in_stage=3)
    assert seed.gradient_health == pytest.approx(expected)
    refused = " ".join(judge(Gate.G2, seed, GateConfig.permissive()).reasons)
    assert ("exploding" in refused) == (fields.get("exploding", 0.0) > 0 and expected < 1.0)
    assert ("gradient health" in refused) == (expected < 0.7)
