"""The governor's judgement of losses, worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import ConfigError
from esper.tolaria.training.governor import Governor, GovernorConfig

STEADY = [0.50, 0.52, 0.49, 0.51, 0.50, 0.48, 0.52, 0.50, 0.49, 0.51]
"""Mean 0.502, sigma 0.0125: six sigmas end at 0.577, three times the mean at 1.506."""


def governor(losses: list[float] = STEADY, **config: float) -> Governor:
    made = Governor(GovernorConfig(**config), classes=10)
    for loss in losses:
        assert made.judge(loss, loss, 50.0) == ""
    return made


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_an_anomaly_at_once_even_in_warm_up(broken: float) -> None:
    assert "train loss" in governor([]).judge(broken, 0.5, 50.0)
    assert "val loss" in governor([]).judge(0.5, broken, 50.0)


def test_divergence_needs_three_epochs_running() -> None:
    judge = governor()
    assert judge.judge(0.5, 1.6, 50.0) == ""
    assert not judge.healthy
    assert judge.judge(0.5, 1.6, 50.0) == ""
    assert "diverged" in judge.judge(0.5, 1.6, 50.0)


def test_an_ordinary_epoch_ends_the_streak() -> None:
    judge = governor()
    for _ in range(3):
        assert judge.judge(0.5, 1.6, 50.0) == ""
        assert judge.judge(0.5, 1.6, 50.0) == ""
        assert judge.judge(0.5, 0.5, 50.0) == ""
        assert judge.healthy


def test_an_anomalous_loss_never_enters_the_window() -> None:
    judge = governor()
    before = list(judge.losses)
    judge.judge(0.5, 50.0, 50.0)
    assert list(judge.losses) == before


def test_six_sigmas_alone_are_not_enough() -> None:
    judge = governor()
    assert all(judge.judge(0.5, 1.0, 50.0) == "" for _ in range(5)), "1.0 is far above six sigmas and below three times the mean"


def test_divergence_is_not_judged_during_warm_up() -> None:
    judge = governor(STEADY[:9])
    assert all(judge.judge(0.5, 5.0, 50.0) == "" for _ in range(1))
    assert judge.healthy


def test_collapse_to_the_uniform_prediction_after_learning() -> None:
    assert "uniform" in governor().judge(0.5, math.log(10) * 0.99, 20.0)


def test_a_host_that_never_learned_cannot_collapse() -> None:
    slow = governor([2.25] * 12)
    assert slow.judge(2.3, math.log(10), 20.0) == ""


def test_collapse_to_chance_is_seen_whatever_the_loss_and_at_once() -> None:
    """With ten classes chance is 10, up to 15 is near it, and a host that had 30 was well above."""
    for best, now, collapsed in ((30.0, 15.0, True), (29.9, 9.7, False), (80.0, 15.1, False), (80.0, 9.7, True)):
        judge = Governor(GovernorConfig(), classes=10)
        assert judge.judge(2.0, 2.0, best) == ""
        assert ("chance" in judge.judge(2.0, 2.1, now)) is collapsed, (best, now)


def test_judging_by_chance_can_be_switched_off() -> None:
    assert governor([2.25] * 12, chance_band=1.0).judge(2.3, 2.2, 5.0) == ""


def test_the_band_around_the_uniform_loss_is_6_5_percent() -> None:
    for share, collapsed in ((1.06, True), (1.07, False), (0.94, True), (0.93, False)):
        assert ("uniform" in governor().judge(0.5, share * math.log(10), 20.0)) is collapsed


@given(st.lists(st.floats(0.01, 5.0), max_size=60), st.integers(0, 59))
def test_a_saved_governor_goes_on_exactly(losses: list[float], cut: int) -> None:
    whole = Governor(GovernorConfig(), classes=10)
    verdicts = [whole.judge(loss, loss, 50.0) for loss in losses]
    first, second = Governor(GovernorConfig(), classes=10), Governor(GovernorConfig(), classes=10)
    for loss in losses[:cut]:
        first.judge(loss, loss, 50.0)
    second.load_state(first.state())
    assert [second.judge(loss, loss, 50.0) for loss in losses[cut:]] == verdicts[cut:]


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 100.0))), st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 100.0))))
def test_of_another_network_nothing_is_known(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> None:
    told, new = Governor(GovernorConfig(), classes=10), Governor(GovernorConfig(), classes=10)
    for loss, accuracy in before:
        told.judge(loss, loss, accuracy)
    told.begin_anew()
    assert told.healthy
    assert told.state() == new.state()
    assert [told.judge(loss, loss, accuracy) for loss, accuracy in after] == [new.judge(loss, loss, accuracy) for loss, accuracy in after]


def test_another_network_is_judged_by_what_it_was_measured_to_be() -> None:
    for measured, collapsed in ((30.0, True), (29.9, False)):
        judge = governor()
        judge.begin_anew(1.0, measured)
        assert ("chance" in judge.judge(2.0, 2.1, 10.0)) is collapsed
    judge = governor()
    judge.begin_anew(2.5, 10.0)
    assert all(judge.judge(2.3, 2.3, 10.0) == "" for _ in range(12)), "it never was better"
    assert "train loss" in judge.judge(math.nan, 2.3, 10.0)


ANOMALIES = [(2.1, 10.0), (math.log(10), 20.0), (5.0, 50.0)]
"""Chance, the uniform prediction, and what diverges once it has lasted."""


@pytest.mark.parametrize(("loss", "accuracy"), ANOMALIES)
def test_a_host_that_was_put_back_is_put_back_again_only_for_what_is_not_finite(loss: float, accuracy: float) -> None:
    first, judge = governor(), governor()
    assert any(first.judge(0.5, loss, accuracy) for _ in range(3))
    assert not any(judge.judge(0.5, loss, accuracy, restored=True) for _ in range(10))
    assert not judge.healthy
    assert "val loss" in judge.judge(0.5, math.nan, 10.0, restored=True)
    assert judge.judge(0.5, 0.5, 50.0, restored=True) == ""
    assert judge.healthy


def test_settings_have_bounds() -> None:
    with pytest.raises(ConfigError, match="window"):
        GovernorConfig(window=0)


def test_a_host_that_is_sure_of_itself_and_often_wrong_has_not_collapsed() -> None:
    assert governor().judge(0.1, math.log(10), 45.0) == "", "half of it is right still, whatever the loss"
    assert governor().judge(0.1, math.log(10), 25.0) == ""
    assert "uniform" in governor().judge(0.1, math.log(10), 24.9)
