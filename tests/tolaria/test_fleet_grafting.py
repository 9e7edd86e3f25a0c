"""A fleet whose rows are taken to seeds and blended back by our kernels learns what it learns by torch's own.

It runs on a GPU, where steps are captured; `TRITON_INTERPRET=1` tries it without one, slowly, where Triton is installed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from esper.kasmina.stacking import views
from esper.kasmina.stacking.rules import KERNEL_DTYPES
from esper.leyline.reports import Isolation
from esper.tolaria.training.engine import FleetEngine
from esper.tolaria.training.host import Host
from tests.kasmina.kernels import needs_kernels
from tests.tolaria.fleets import GROWTH, SLOW, after, assert_close, learned, on_cpu, report_of
from tests.tolaria.small import EASY, make_host

pytestmark = needs_kernels
CUDA = torch.cuda.is_available()
SLOWER = {**SLOW, "learning_rate": 0.005, "train_size": 64}
"""In float32, what is rounding at first grows faster."""


@pytest.mark.parametrize("isolation", get_args(Isolation) if CUDA else ["boost"])
@pytest.mark.parametrize("spare", [False, True] if CUDA else [True], ids=["exact", "spare"][-1 - CUDA :])
def test_fleets_learn_the_same_with_and_without_them(isolation: Isolation, spare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from esper.kasmina.stacking.kernels import grafting

    used: list[str] = []
    put = grafting.put
    monkeypatch.setattr(grafting, "put", lambda *args: (used.append("put"), put(*args))[1])
    if not CUDA:
        monkeypatch.setattr(grafting, "SMALL_TILE", 1 << 14)  # few programs are quicker to interpret
    config = replace(EASY, isolation=isolation)
    found = []
    for kernels in (True, False):
        if not kernels or not CUDA:
            monkeypatch.setattr(views, "has_kernels", lambda x, kernels=kernels: kernels and x.dtype in KERNEL_DTYPES)
        hosts: list[Host] = [make_host(seed, config, device="cuda" if CUDA else "cpu", **SLOWER) for seed in range(len(GROWTH))]
        found.append((hosts, after(FleetEngine(spare), hosts, GROWTH), len(used)))
    (mine, reports, uses), (theirs, expected, uses_then) = found
    assert uses == uses_then > 0
    for host, other in zip(mine, theirs, strict=True):
        assert_close(on_cpu(learned(host)["model"]), on_cpu(learned(other)["model"]), 1e-3)
    for some, others in zip(reports, expected, strict=True):
        for report, other in zip(some, others, strict=True):
            assert_close(report_of(report), report_of(other), 2e-2)
