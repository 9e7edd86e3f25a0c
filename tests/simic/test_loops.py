"""Training loops as people write them, each on the digits with a Gardener in it: a seed grows to a fossil, and what is harvested is it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import get_ema_multi_avg_fn

import esper
from esper.leyline.actions import Decision, Op
from esper.leyline.stages import Stage
from esper.tolaria.tasks import get

EPOCHS = 9
IMAGES, BATCH = 512, 64
PLAN = {
    1: Decision(op=Op.GERMINATE, slot="1", blueprint="conv_light", tempo=3),
    3: Decision(op=Op.ADVANCE, slot="1"),
    8: Decision(op=Op.FOSSILIZE, slot="1"),
}


class Plan:
    """A seed from its germination to a fossil, whatever it brings."""

    name = "plan"

    def start(self, seed: int) -> dict[str, Any]:
        return {}

    def decide(self, observation: Any, state: dict[str, Any]) -> tuple[Decision, dict[str, Any]]:
        return PLAN.get(observation.report.epoch, Decision(op=Op.WAIT)), state


class Loop:
    """What all of them have: data, a network, an optimiser, a gardener."""

    def __init__(self, isolation: str = "boost") -> None:
        data = get("digits").load(None, torch.device("cpu"))
        self.x, self.y, self.val = data.train.x[:IMAGES], data.train.y[:IMAGES], data.val
        torch.manual_seed(0)
        first = (nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU())
        net = nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
        gates = esper.GateConfig(strict=False, min_training_epochs=0)
        self.model = esper.Growable(net, ["1", "4"], self.x[:8], gates=gates, isolation=isolation)  # type: ignore[arg-type]
        self.optimizer: optim.Optimizer = optim.SGD(self.model.parameter_groups(), lr=0.1, momentum=0.9)
        self.gardener = esper.Gardener(self.model, self.optimizer, policy=Plan(), evaluate=self.accuracy, epochs=EPOCHS + 10)
        self.run: Callable[..., Tensor] = self.model

    def accuracy(self, model: nn.Module) -> float:
        return 100 * (model(self.val.x).argmax(1) == self.val.y).float().mean().item()

    def loss(self, batch: Tensor) -> Tensor:
        return F.cross_entropy(self.run(self.x[batch]), self.y[batch])

    def step(self, batch: Tensor) -> None:
        """One step of the optimiser."""
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def end_epoch(self) -> None:
        self.gardener.step()

    def train(self) -> Loop:
        """All epochs; at the end the seed is a fossil, and the network is what is harvested."""
        before = self.loss(torch.arange(IMAGES)).item()
        shuffle = torch.Generator().manual_seed(1)
        for _ in range(EPOCHS):
            for batch in torch.randperm(IMAGES, generator=shuffle).split(BATCH):
                self.step(batch)
            self.end_epoch()
        assert not any(entry.refused for entry in self.gardener.history), self.gardener.history
        assert self.model.report("1").stage is Stage.FOSSILIZED
        assert self.loss(torch.arange(IMAGES)).item() < 0.9 * before
        with torch.no_grad():
            assert torch.equal(self.model.harvest().eval()(self.val.x), self.model.eval()(self.val.x))
        self.model.train()
        return self


class Plain(Loop):
    """Nothing but a loop."""


class Scaled(Loop):
    """Mixed precision in float16 with a gradient scaler, and clipping."""

    dtype = torch.float16

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.dtype is torch.float16)

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype):
            loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.model.clip_gradients(5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def accuracy(self, model: nn.Module) -> float:
        with torch.autocast("cpu", self.dtype):
            return super().accuracy(model)


class BFloat16(Scaled):
    """Mixed precision in bfloat16, which needs no scaler."""

    dtype = torch.bfloat16


class Accumulated(Loop):
    """Four parts of a batch, whose gradients add up."""

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        for part in batch.chunk(4):
            (self.loss(part) / 4).backward()
        self.optimizer.step()


class Compiled(Loop):
    """torch.compile, with a backend that runs the graphs as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.run = torch.compile(self.model, backend="eager")


class Averaged(Loop):
    """An exponential moving average of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.average = esper.AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8))

    def step(self, batch: Tensor) -> None:
        super().step(batch)
        self.average.update_parameters(self.model)

    def train(self) -> Loop:
        super().train()
        mean: esper.Growable = self.average.module
        assert mean.report("1").stage is Stage.FOSSILIZED
        with torch.no_grad():
            mine, its = (m.harvest().eval()(self.val.x) for m in (self.model, mean))
        assert 0.0 < (mine - its).abs().max() < 5.0, "near, and not the same"
        assert self.accuracy(mean.eval()) > 20.0
        return self


class OneCycle(Loop):
    """A schedule by steps, that was counted up front."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.2, total_steps=EPOCHS * IMAGES // BATCH)

    def step(self, batch: Tensor) -> None:
        super().step(batch)
        self.scheduler.step()
        assert len({group["lr"] for group in self.optimizer.param_groups}) == 1


class Plateau(Loop):
    """A schedule by what the gardener saw."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = lr_scheduler.ReduceLROnPlateau(self.optimizer, mode="max", factor=0.5, patience=2, threshold=1e3)

    def end_epoch(self) -> None:
        self.scheduler.step(self.gardener.step().accuracy)

    def train(self) -> Loop:
        super().train()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        assert rates == [rates[0]] * 3
        assert rates[0] < 0.1
        return self


class Closing(Loop):
    """An optimiser that calls for its gradients itself, and keeps sums of them from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = optim.Adagrad(self.model.parameter_groups(), lr=0.05)
        self.gardener = esper.Gardener(self.model, self.optimizer, policy=Plan(), evaluate=self.accuracy, epochs=EPOCHS + 10)

    def step(self, batch: Tensor) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            return loss.item()

        self.optimizer.step(closure=closure)


class SharpnessAware(Loop):
    """Two passes for each step, the second from where the first would go up."""

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        with torch.no_grad():
            climbed = [(p, p.grad.clone()) for p in self.model.parameters() if p.grad is not None]
            for parameter, grad in climbed:
                parameter.add_(grad, alpha=0.01)
        self.optimizer.zero_grad()

        def closure() -> float:
            loss = self.loss(batch)
            loss.backward()
            with torch.no_grad():
                for parameter, grad in climbed:
                    parameter.sub_(grad, alpha=0.01)
            return loss.item()

        self.optimizer.step(closure)


@pytest.mark.parametrize("kind", [Plain, Scaled, Accumulated, Compiled, Averaged, OneCycle, Plateau, Closing, SharpnessAware])
def test_a_seed_grows_to_a_fossil_in_a_loop_of_this_kind(kind: type[Loop]) -> None:
    kind().train()


def test_a_seed_grows_to_a_fossil_in_bfloat16() -> None:
    # In a process of its own: some machines advertise instructions for bfloat16 that they do not have, and die of them.
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "OMP_NUM_THREADS": "1"}
    code = "from tests.simic.test_loops import BFloat16; BFloat16().train()"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_accumulated_gradients_grow_the_same_network_as_whole_batches() -> None:
    # Straight through: a boosted seed's pull is by the sizes of a batch's features and gradients, which parts of it have others of.
    whole, parts = Plain("ste").train(), Accumulated("ste").train()
    assert [entry.decision for entry in whole.gardener.history] == [entry.decision for entry in parts.gardener.history]
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
