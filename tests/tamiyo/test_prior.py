"""The prior: the documented probabilities, on legal values only, summing to one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.errors import ConfigError
from esper.tamiyo import HEAD_VALUES
from esper.tamiyo.controllers.prior import Prior

PRIOR = Prior(wait=0.8, wait_when_ready=0.4, prune=0.25, full_influence=0.4)


def ops(*legal: Op) -> np.ndarray:
    return np.array([op is Op.WAIT or op in legal for op in Op])


def probabilities(*legal: Op) -> dict[Op, float]:
    return dict(zip(Op, PRIOR.probabilities(Head.OP, ops(*legal)).tolist(), strict=True))


def test_wait_is_less_probable_when_something_is_ready_and_never_more() -> None:
    assert probabilities(Op.GERMINATE)[Op.WAIT] == pytest.approx(0.8)
    assert probabilities(Op.GERMINATE, Op.FOSSILIZE)[Op.WAIT] == pytest.approx(0.4)
    assert probabilities(Op.ADVANCE)[Op.WAIT] == pytest.approx(0.4)
    eager = Prior(wait=0.1, wait_when_ready=0.4).probabilities(Head.OP, ops(Op.ADVANCE))
    assert eager[Op.WAIT] == pytest.approx(0.1)


def test_prune_has_its_share_of_the_rest_and_the_others_equal_parts() -> None:
    # 0.6 is left by WAIT: a quarter of it is 0.15, and 0.45 is shared by three.
    found = probabilities(Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.SET_ALPHA_TARGET)
    assert found[Op.PRUNE] == pytest.approx(0.15)
    assert found[Op.GERMINATE] == found[Op.ADVANCE] == found[Op.SET_ALPHA_TARGET] == pytest.approx(0.15)


def test_wait_has_what_nobody_takes() -> None:
    assert probabilities()[Op.WAIT] == 1.0
    assert probabilities(Op.PRUNE)[Op.WAIT] == pytest.approx(0.95)


def test_full_influence_has_its_probability_and_the_other_targets_share_the_rest() -> None:
    assert PRIOR.probabilities(Head.ALPHA_TARGET, np.ones(4, dtype=bool)) == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert PRIOR.probabilities(Head.ALPHA_TARGET, np.array([True, True, False, False])) == pytest.approx([0.5, 0.5, 0.0, 0.0])


@given(head=st.sampled_from(sorted(HEAD_VALUES)), rows=st.integers(1, 4), data=st.data())
def test_probabilities_sum_to_one_lie_on_legal_values_alone_and_rows_do_not_mix(head: Head, rows: int, data: st.DataObject) -> None:
    count = len(HEAD_VALUES[head])
    mask = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=count, max_size=count), min_size=rows, max_size=rows)))
    if head is Head.OP:
        mask[:, Op.WAIT] = True
    found = Prior().probabilities(head, mask)
    assert (found[~mask] == 0.0).all()
    assert (found[mask] > 0.0).all()
    assert found.sum(axis=1) == pytest.approx(mask.any(axis=1).astype(float))
    assert found[0] == pytest.approx(Prior().probabilities(head, mask[0]))


def test_a_probability_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="wait"):
        Prior(wait=1.5)
