"""The prior: the documented probabilities, on legal values only, summing to one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import Head, Op
from esper.leyline.errors import ConfigError
from esper.tamiyo import HEAD_VALUES
from esper.tamiyo.controllers.prior import USUAL, Prior

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


def test_retarget_is_the_share_of_set_alpha_target_of_what_wait_leaves() -> None:
    # 0.6 is left by WAIT: PRUNE has a quarter of it, SET_ALPHA_TARGET a tenth, and 0.39 is shared by two.
    prior = Prior(wait=0.8, wait_when_ready=0.4, prune=0.25, retarget=0.1)
    found = prior.probabilities(Head.OP, ops(Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.SET_ALPHA_TARGET))
    assert found == pytest.approx([0.4, 0.195, 0.195, 0.0, 0.15, 0.06])
    alone = prior.probabilities(Head.OP, ops(Op.SET_ALPHA_TARGET))
    assert alone[[Op.WAIT, Op.SET_ALPHA_TARGET]] == pytest.approx([0.98, 0.02])


def test_wait_has_what_nobody_takes() -> None:
    assert probabilities()[Op.WAIT] == 1.0
    assert probabilities(Op.PRUNE)[Op.WAIT] == pytest.approx(0.95)


def test_full_influence_has_its_probability_and_the_other_targets_share_the_rest() -> None:
    assert PRIOR.probabilities(Head.ALPHA_TARGET, np.ones(4, dtype=bool)) == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert PRIOR.probabilities(Head.ALPHA_TARGET, np.array([True, True, False, False])) == pytest.approx([0.5, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("head", USUAL)
def test_the_usual_value_has_its_probability_and_the_others_share_the_rest(head: Head) -> None:
    count, usual = len(HEAD_VALUES[head]), HEAD_VALUES[head].index(USUAL[head])
    every = np.ones(count, dtype=bool)
    assert Prior().probabilities(head, every).tolist() == [1.0 / count] * count
    expected = [0.94 if value == usual else 0.06 / (count - 1) for value in range(count)]
    assert Prior(usual=0.94).probabilities(head, every) == pytest.approx(expected)


@given(head=st.sampled_from(sorted(HEAD_VALUES)), rows=st.integers(1, 4), data=st.data())
def test_probabilities_sum_to_one_lie_on_legal_values_alone_and_rows_do_not_mix(head: Head, rows: int, data: st.DataObject) -> None:
    count = len(HEAD_VALUES[head])
    mask = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=count, max_size=count), min_size=rows, max_size=rows)))
    if head is Head.OP:
        mask[:, Op.WAIT] = True
    prior = Prior(retarget=0.02, usual=0.98)
    found = prior.probabilities(head, mask)
    assert (found[~mask] == 0.0).all()
    assert (found[mask] > 0.0).all()
    assert found.sum(axis=1) == pytest.approx(mask.any(axis=1).astype(float))
    assert found[0] == pytest.approx(prior.probabilities(head, mask[0]))


def test_a_probability_outside_zero_to_one_is_refused_and_shares_of_more_than_the_whole() -> None:
    with pytest.raises(ConfigError, match="wait"):
        Prior(wait=1.5)
    with pytest.raises(ConfigError, match=r"'prune' and 'retarget' are shares of the same whole; found 0.7 and 0.4"):
        Prior(prune=0.7, retarget=0.4)
