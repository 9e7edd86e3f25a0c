"""Curves and ramps of alpha against values worked by hand, and what holds for every ramp."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina.alpha import Ramp, curve_value
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, TEMPOS, Curve

curves = st.sampled_from(Curve)
shares = st.floats(0.0, 1.0)


def sigmoid(k: float, t: float) -> float:
    """The stretched logistic curve, written with tanh: sigma(x) = (1 + tanh(x / 2)) / 2, so the halves cancel."""
    return 0.5 * (1.0 + math.tanh(k * (t - 0.5) / 2) / math.tanh(k / 4))


@pytest.mark.parametrize(
    ("curve", "t", "expected"),
    [
        (Curve.LINEAR, 0.25, 0.25),
        (Curve.COSINE, 0.25, (1 - math.sqrt(0.5)) / 2),
        (Curve.COSINE, 1 / 3, 0.25),
        (Curve.COSINE, 0.5, 0.5),
        # (sigma(-k/4) - sigma(-k/2)) / (sigma(k/2) - sigma(-k/2)) for k = 6, 12, 24
        (Curve.SIGMOID_GENTLE, 0.25, (0.1824255 - 0.0474259) / (0.9525741 - 0.0474259)),
        (Curve.SIGMOID, 0.25, (0.0474259 - 0.0024726) / (0.9975274 - 0.0024726)),
        (Curve.SIGMOID_SHARP, 0.25, (0.0024726 - 0.0000061) / (0.9999939 - 0.0000061)),
        (Curve.SIGMOID, 0.5, 0.5),
    ],
)
def test_curves_have_the_values_worked_by_hand(curve: Curve, t: float, expected: float) -> None:
    assert curve_value(curve, t) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("curve", "k"), [(Curve.SIGMOID_GENTLE, 6), (Curve.SIGMOID, 12), (Curve.SIGMOID_SHARP, 24)])
def test_the_three_sigmoids_have_steepness_6_12_and_24(curve: Curve, k: float) -> None:
    for t in (0.1, 0.3, 0.5, 0.8):
        assert curve_value(curve, t) == pytest.approx(sigmoid(k, t), abs=1e-12)


@given(curve=curves, t=shares, u=shares)
def test_every_curve_runs_from_0_to_1_and_never_falls(curve: Curve, t: float, u: float) -> None:
    low, high = sorted((t, u))
    assert curve_value(curve, 0.0) == 0.0
    assert curve_value(curve, 1.0) == 1.0
    assert 0.0 <= curve_value(curve, low) <= curve_value(curve, high) <= 1.0


@given(curve=curves, t=shares)
def test_every_curve_is_symmetric_about_its_middle(curve: Curve, t: float) -> None:
    assert curve_value(curve, t) + curve_value(curve, 1.0 - t) == pytest.approx(1.0, abs=1e-9)


@given(curve=curves, t=st.floats(allow_nan=False))
def test_a_curve_outside_its_time_stays_at_its_ends(curve: Curve, t: float) -> None:
    assert 0.0 <= curve_value(curve, t) <= 1.0


@given(start=shares, target=shares, epochs=st.sampled_from((*TEMPOS, *ALPHA_SPEEDS)), curve=curves, further=st.integers(0, 5))
def test_a_ramp_takes_exactly_its_epochs_and_ends_exactly_at_its_target(
    start: float, target: float, epochs: int, curve: Curve, further: int
) -> None:
    ramp = Ramp(start=start, target=target, epochs=epochs, curve=curve)
    for elapsed in range(epochs):
        assert not ramp.done
        assert ramp.left == epochs - elapsed
        assert min(start, target) - 1e-12 <= ramp.value <= max(start, target) + 1e-12
        ramp = ramp.step()
    for _ in range(further):
        ramp = ramp.step()
    assert ramp.done
    assert ramp.left == 0
    assert ramp.value == target


def test_a_ramp_starts_where_alpha_is() -> None:
    assert Ramp(start=0.75, target=0.25, epochs=5, curve=Curve.SIGMOID).value == 0.75


def test_a_ramp_down_in_three_epochs_has_the_values_worked_by_hand() -> None:
    ramp = Ramp(start=0.75, target=0.0, epochs=3)
    assert [ramp.step().value, ramp.step().step().value, ramp.step().step().step().value] == pytest.approx([0.5, 0.25, 0.0])


def test_a_ramp_of_no_epochs_is_at_its_target_at_once() -> None:
    for target in (0.0, *ALPHA_TARGETS):
        assert Ramp(start=1.0, target=target, epochs=0).value == target
