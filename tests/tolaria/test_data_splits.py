"""Streams, splits and the order of an epoch: functions of their key alone, disjoint, stratified, and test kept out of reach."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import DataError
from esper.tolaria.data import Data, FinalEvaluation, Split, draws, epoch_order, generator, stream_seed
from esper.tolaria.data.digits import read_digits
from esper.tolaria.data.splits import stratified
from esper.tolaria.data.streams import shuffled
from esper.tolaria.tasks import get

CPU = torch.device("cpu")


def small_data() -> Data:
    train, val = Split(torch.zeros(6, 4), torch.zeros(6)), Split(torch.zeros(2, 4), torch.zeros(2))
    return Data(classes=2, train=train, val=val, test=lambda: Split(torch.ones(3, 4), torch.ones(3)), fingerprint="f", origin="a test")


def test_a_key_has_one_seed_in_every_process_and_release() -> None:
    # Golden values: a change here changes every split, order and host there is.
    assert stream_seed("order", 0, 0) == 2457153746669831279
    assert draws(torch.arange(3), "golden").tolist() == [4331118232778822966, 2864060151385013598, 1647662730345741837]
    assert shuffled(8, "golden").tolist() == [3, 7, 5, 2, 1, 6, 0, 4]


def test_keys_that_look_alike_have_different_seeds() -> None:
    keys: list[tuple[Any, ...]] = [("a", 1), ("a", "1"), ("a1",), (1, "a"), ("a", 1, 0), ("a", -1)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert stream_seed("a", int(torch.tensor(1))) == stream_seed("a", cast(int, np.int64(1))) == stream_seed("a", 1)


def test_draws_depend_on_the_position_alone() -> None:
    every = draws(torch.arange(1000), "x", 3)
    picked = torch.tensor([999, 0, 500])
    assert torch.equal(draws(picked, "x", 3), every[picked])
    assert torch.equal(draws(picked[None], "x", 3), every[picked][None])


def test_draws_are_spread_evenly() -> None:
    drawn = draws(torch.arange(90_000), "spread")
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < 1 << 62
    for modulus in (2, 9, 10):
        counts = torch.bincount(drawn % modulus, minlength=modulus).double()
        expected = 90_000 / modulus
        assert (counts - expected).abs().max() < 5 * expected**0.5


def test_an_epochs_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_order(1000, seed=3, epoch=7)
    torch.manual_seed(0)
    torch.rand(10)
    assert torch.equal(epoch_order(1000, seed=3, epoch=7), first)
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert (first.dtype, first.device) == (torch.int64, CPU)
    others = [epoch_order(1000, seed=3, epoch=8), epoch_order(1000, seed=4, epoch=7), epoch_order(1000, seed=7, epoch=3)]
    assert not any(torch.equal(first, other) for other in others)


def test_an_epochs_order_touches_no_other_random_stream() -> None:
    before = torch.random.get_rng_state()
    epoch_order(100, seed=0, epoch=0)
    generator("x").seed()
    assert torch.equal(torch.random.get_rng_state(), before)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_a_stratified_cut_is_disjoint_complete_and_in_proportion(labels: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(labels)))
    y = torch.tensor(labels)
    taken, rest = stratified(y, size, "cut", data.draw(st.integers(0, 5)))
    assert len(taken) == size
    assert sorted(torch.cat([taken, rest]).tolist()) == list(range(len(labels)))
    for label in set(labels):
        exact = labels.count(label) * size / len(labels)
        assert abs(int((y[taken] == label).sum()) - exact) < 1


def test_a_stratified_cut_depends_on_its_key_alone() -> None:
    y = torch.arange(500) % 10
    first = stratified(y, 100, "cut", 1)[0]
    torch.rand(3)
    assert torch.equal(stratified(y, 100, "cut", 1)[0], first)
    assert not torch.equal(stratified(y, 100, "cut", 2)[0], first)


def test_the_digits_are_split_without_overlap_and_with_the_classes_in_proportion() -> None:
    data = get("digits").load(None, CPU)
    test = data.test(FinalEvaluation(asked_by="a test"))
    assert [len(split) for split in (data.train, data.val, test)] == [1077, 360, 360]
    for split in (data.train, data.val, test):
        assert split.x.shape[1:] == (1, 8, 8)
        assert split.x.dtype == torch.float32
        counts = torch.bincount(split.y, minlength=10)
        assert int(counts.max() - counts.min()) <= 7
    # A few digits of the set are equal to the last pixel, so rows are counted rather than compared as sets.
    raw = read_digits()
    rows = sorted(image.tobytes() for image in (*raw.x_train, *raw.x_test))
    assert len(rows) == 1797
    restored = [_pixels(split, data) for split in (data.train, data.val, test)]
    assert sorted(row for part in restored for row in part) == rows


def _pixels(split: Split, data: Data) -> list[bytes]:
    """Normalised images as the bytes they were made of; the darkest and brightest pixel of train are 0 and 16."""
    low, high = data.train.x.min(), data.train.x.max()
    return [image.numpy().tobytes() for image in ((split.x - low) / (high - low) * 16).round().to(torch.uint8)]


def test_train_is_normalised_and_val_by_the_same_figures() -> None:
    data = get("digits").load(None, CPU)
    assert abs(float(data.train.x.mean())) < 1e-5
    assert abs(float(data.train.x.std()) - 1) < 1e-4
    assert float(data.val.x.min()) == float(data.train.x.min())


def test_the_same_data_has_the_same_splits_and_fingerprint() -> None:
    first, second = (get("digits").load(None, CPU) for _ in range(2))
    assert first.fingerprint == second.fingerprint == "5e153ff8a654d171c709a182c9ee0c48dedb9f05795f61e5dd87e67eec82e3ae"
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.val.y, second.val.y)


@pytest.mark.parametrize("purpose", [None, "final", True, FinalEvaluation])
def test_test_is_out_of_reach_without_a_final_evaluation(purpose: Any) -> None:
    with pytest.raises(DataError, match=r"final figures.*decisions are made on val"):
        small_data().test(purpose)


def test_a_final_evaluation_says_who_asks_and_sees_test() -> None:
    assert torch.equal(small_data().test(FinalEvaluation(asked_by="esper compare")).x, torch.ones(3, 4))
    with pytest.raises(DataError, match="asked_by is empty"):
        FinalEvaluation(asked_by=" ")


def test_no_public_attribute_leads_to_test() -> None:
    data = small_data()
    reached = [getattr(data, name) for name in dir(data) if not name.startswith("_")]
    assert not any(isinstance(value, Split) and len(value) == 3 for value in reached)


def test_an_empty_split_is_refused() -> None:
    empty = Split(torch.zeros(0, 4), torch.zeros(0))
    with pytest.raises(DataError, match="a test: the val split is empty"):
        Data(classes=2, train=Split(torch.zeros(1), torch.zeros(1)), val=empty, test=lambda: empty, fingerprint="f", origin="a test")
