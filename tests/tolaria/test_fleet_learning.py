"""The step of a fleet's optimisers: as many operations for many kinds of seeds as for none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from esper.kasmina.stacking.learning import Learner
from esper.leyline.actions import Style
from esper.tolaria.training.engine import FleetEngine
from tests.tolaria.doubles import double_host


class Operations(TorchDispatchMode):
    """Counts what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 0 if func.is_view else 1
        return func(*args, **(kwargs or {}))


def test_a_step_takes_as_many_operations_however_much_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, int]] = []
    step = Learner.step

    def counted(self: Learner, gradients: Sequence[Sequence[Tensor]]) -> None:
        # Not counting what brings gradients that a layer lays out otherwise into order.
        straight = [[each.contiguous() for each in part] for part in gradients]
        with Operations() as operations:
            step(self, straight)
        counts.append((len(self.learning), operations.count))

    monkeypatch.setattr(Learner, "step", counted)
    engine, hosts = FleetEngine(spare=False), [double_host(seed, train_size=32) for seed in range(3)]
    engine.run_epoch(hosts)
    for host, blueprint in zip(hosts, ("norm", "conv_light", "attention"), strict=True):
        host.model.germinate("r0c0", blueprint, style=Style.GATED)
        host.end_epoch()
    engine.run_epoch(hosts)
    assert counts[0][0] == 1
    assert counts[-1][0] > 3
    assert {count for _, count in counts} == {counts[0][1]}
    assert counts[0][1] < 40


def test_a_broken_gradient_of_one_host_leaves_the_others_as_they_would_be() -> None:
    """Its weights are not finite, and so is all that it computes."""
    results = []
    for breaks in (False, True):
        hosts = [double_host(seed, train_size=32) for seed in range(3)]
        if breaks:
            with torch.no_grad():
                next(hosts[1].model.host.parameters()).fill_(float("nan"))
        reports = FleetEngine(spare=False).run_epoch(hosts)
        results.append([(reports[i], [p.detach().clone() for p in hosts[i].model.parameters()]) for i in (0, 2)])
    for (alone, before), (beside, after) in zip(*results, strict=True):
        assert alone.gradients == beside.gradients
        assert alone.train_loss == beside.train_loss
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
