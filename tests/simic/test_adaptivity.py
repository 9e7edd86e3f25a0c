"""The value of adaptivity: found where it is, nothing where there is only luck."""

from __future__ import annotations

import numpy as np
import pytest

from esper.simic.adaptivity import Outcomes, adaptivity, chosen, encoded, hosts_needed


def world(hosts: int, gain: float, noise: float, seed: int, plans: int = 8) -> tuple[Outcomes, np.ndarray, np.ndarray]:
    """Scores of plans on hosts of two kinds: plan 1 brings `gain` to the first and costs it to the second, plan 0 brings nothing, and
    the others are worse; what is known before says the kind, beside two things that mean nothing."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 2, hosts)
    scores = 60 + 10 * draw.standard_normal((hosts, 1)) + noise * draw.standard_normal((hosts, plans))
    scores[:, 1] += np.where(kind == 1, gain, -gain)
    scores[:, 2:] -= 3.0
    before = np.stack((kind, draw.standard_normal(hosts), draw.standard_normal(hosts)), axis=1)
    return free(scores), before, draw.standard_normal((hosts, 4))


def free(scores: np.ndarray) -> Outcomes:
    """Where size costs nothing."""
    return Outcomes(accuracy=scores, size=np.zeros_like(scores), rent=np.zeros(len(scores)))


def test_what_the_kind_of_host_is_worth_is_found() -> None:
    found = adaptivity(*world(120, gain=6.0, noise=2.0, seed=0))
    # The better of 0 and +-6, for half of the hosts each, is 3 more than either plan for all.
    assert found.before.mean == pytest.approx(3.0, abs=0.8)
    assert found.before.low is not None
    assert found.before.low > 1.0


def test_where_there_is_only_luck_nothing_is_found() -> None:
    found = [adaptivity(*world(40, gain=0.0, noise=5.0, seed=seed)) for seed in range(24)]
    gains = np.array([each.during.mean for each in found])
    assert abs(gains.mean()) < 3 * gains.std(ddof=1) / len(gains) ** 0.5 + 0.05
    assert np.mean([each.hindsight for each in found]) > 3.0
    false = [each for each in found if each.during.low is not None and each.during.low > 0]
    assert len(false) <= 3


def test_a_choice_never_sees_what_it_is_counted_on() -> None:
    """A feature that gives every host away by name is of no use: no host is in two parts."""
    outcomes, _, _ = world(40, gain=0.0, noise=5.0, seed=1)
    names = np.eye(40)
    found = adaptivity(outcomes, names, names)
    assert found.during.mean < 1.0


def test_without_anything_to_know_the_best_single_plan_is_chosen() -> None:
    outcomes, before, _ = world(40, gain=1.0, noise=1.0, seed=2)
    assert set(chosen(outcomes, before[:, :0], before[:5, :0], np.zeros(5))) == {int(outcomes.scores.mean(0).argmax())}


def test_what_size_costs_is_counted_and_need_not_be_learned() -> None:
    """Plan 1 brings 4 points for a size that costs the whole rent, which is 0 or 20: 4 points for half of the hosts, if one looks at it."""
    draw = np.random.default_rng(3)
    accuracy = 60 + 10 * draw.standard_normal((12, 1)) + np.array([0.0, 4.0]) + 0.1 * draw.standard_normal((12, 2))
    outcomes = Outcomes(accuracy=accuracy, size=np.tile([0.0, 1.0], (12, 1)), rent=np.tile([0.0, 20.0], 6))
    nothing = np.zeros((12, 0))
    found = adaptivity(outcomes, nothing, nothing)
    assert found.before.mean == pytest.approx(2.0, abs=0.3)
    assert found.chosen == (1, 0) * 6


def test_values_become_features_where_they_differ() -> None:
    rows = [["a", 1, 7.0, (1, 3)], ["b", 2, 7.0, (3, 3)], ["a", 3, 7.0, (1, 3)]]
    assert encoded(rows).shape == (3, 2 + 3 + 0 + 2)
    numbers = [[float(number)] for number in range(9)]
    assert encoded(numbers).tolist() == numbers
    assert encoded([[1], [1]]).shape == (2, 0)


def test_how_many_hosts_a_comparison_takes() -> None:
    # A point that spreads by 12 over hosts: (2.8 * 12)^2.
    assert hosts_needed(12.0, 1.0) == 1129
    assert hosts_needed(0.1, 1.0) == 6
    assert hosts_needed(1.0, -0.5) is None
