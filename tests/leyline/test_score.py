"""Score and rent: cases worked by hand, and bounds that hold for counts of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.score import rent_points, score

counts = st.integers(0, 10**40) | st.floats(0.0, allow_nan=False)
points = st.floats(0.0, 1000.0)


def test_rent_is_quoted_for_sixteenfold_growth_and_is_capped() -> None:
    rents = [rent_points(size, 1000, rent=5.0) for size in (1000, 2000, 4000, 16_000, 256_000, 10**30, 10)]
    assert rents == pytest.approx([0.0, 1.25, 2.5, 5.0, 10.0, 10.0, 0.0])


def test_the_score_is_accuracy_minus_rent() -> None:
    assert score(80.0, 4000, 1000, rent=5.0) == pytest.approx(77.5)
    assert score(80.0, 4000, 1000, rent=0.0) == 80.0


@given(small=counts, more=counts, host=counts, rent=points)
def test_rent_lies_between_nothing_and_twice_itself_and_never_falls_with_size(small: float, more: float, host: float, rent: float) -> None:
    before, after = (rent_points(size, host, rent) for size in sorted((small, more)))
    assert 0.0 <= before <= after <= 2.0 * rent
