"""One storage for all that learns: what is moved into it stays what it was, and what is measured there belongs to one row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn, optim

from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.storage import CHUNK, Segments, Storage

SIZES = (3, CHUNK, 2 * CHUNK + 7)
"""Of layers whose weights are a part of a chunk, one chunk, and several with a rest."""


def layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.ModuleList(nn.Linear(size, 1) for size in SIZES)


def parts() -> list[Rows]:
    """Rows of three kinds, one of them without parameters."""
    return [Rows(layers(0), 3), Rows(nn.ReLU(), 2), Rows(nn.Linear(5, 2), 2)]


def cut(vector: Tensor, rows: list[Rows]) -> list[Tensor]:
    """The segments of a vector, one by one."""
    return list(vector.split([size for part in rows for size in part.sizes for _ in range(len(part))]))


def test_sums_are_those_of_every_row_of_every_tensor() -> None:
    segments = Segments(parts(), torch.device("cpu"))
    squares = torch.randn(segments.elements, generator=torch.Generator().manual_seed(0)).square()
    expected = torch.stack([each.double().sum() for each in cut(squares, parts())])
    found = segments.sums(squares)
    assert len(found) == len(segments)
    torch.testing.assert_close(found.double(), expected, rtol=3e-7, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_in_one_segment_reaches_no_other(bad: float) -> None:
    segments = Segments(parts(), torch.device("cpu"))
    vector = torch.ones(segments.elements)
    cut(vector, parts())[4][0] = bad
    found = segments.sums(vector).isfinite()
    assert not found[4]
    assert int(found.sum()) == len(segments) - 1


def test_every_number_knows_its_row() -> None:
    segments = Segments(parts(), torch.device("cpu"))
    rows = [int(each[0]) for each in cut(segments.row_of_elements(), parts()) if bool((each == each[0]).all())]
    assert rows == [0, 1, 2] * 6 + [5, 6] * 2


def test_modules_and_optimisers_keep_what_they_hold_when_their_rows_are_moved() -> None:
    modules = [layers(1), layers(2), nn.Linear(5, 2)]
    optimizer = optim.SGD([p for module in modules for p in module.parameters()], lr=0.1, momentum=0.9)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.randn_like(p)
    optimizer.step()
    before = [(p.detach().clone(), optimizer.state[p]["momentum_buffer"].clone()) for p in optimizer.param_groups[0]["params"]]
    rows = [Rows(layers(0), 3, optimizer), Rows(nn.Linear(5, 2), 2, optimizer)]
    for part, row, module in ((rows[0], 0, modules[0]), (rows[0], 2, modules[1]), (rows[1], 1, modules[2])):
        part.put(row, module, optimizer)
    storage = Storage(rows)
    for part in rows:
        part.adopt()
    for p, (value, momentum) in zip(optimizer.param_groups[0]["params"], before, strict=True):
        assert torch.equal(p, value)
        assert torch.equal(optimizer.state[p]["momentum_buffer"], momentum)
    storage.flat.fill_(1.0)
    storage.states["momentum_buffer"].fill_(2.0)
    for p in optimizer.param_groups[0]["params"]:
        assert bool((p == 1.0).all())
        assert bool((optimizer.state[p]["momentum_buffer"] == 2.0).all())


def test_a_row_is_finite_if_all_of_it_is() -> None:
    rows = parts()
    storage = Storage(rows)
    with torch.no_grad():
        rows[0].learned["2.weight"][1, 0, 0] = float("nan")
        rows[2].learned["bias"][0, 1] = float("-inf")
    assert storage.finite().tolist() == [True, False, True, True, True, False, True]
