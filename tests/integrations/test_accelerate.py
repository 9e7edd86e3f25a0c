"""Growth in a loop that accelerate prepares: its wrappers are seen through, its clipping keeps seeds apart, its checkpoints are enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import esper
from esper.integrations.accelerate import prepare
from esper.leyline.errors import ConfigError, OptimizerError
from tests.integrations.growing import MAX_NORM, Eager, accuracy, by_hand, growable, loader, same, told

EPOCHS = 10


@pytest.fixture(autouse=True)
def _alone() -> Any:
    """accelerate keeps what it knows of the process in singletons."""
    yield
    for kept in (AcceleratorState, GradientState, PartialState):
        kept._reset_state()


class Loop:
    """A training loop as accelerate's own pages show it."""

    def __init__(self, model: nn.Module, *, accumulate: int = 1, epochs: int = EPOCHS, grown: bool = True) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        optimizer = torch.optim.Adam(model.parameter_groups() if isinstance(model, esper.Growable) else model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(model, optimizer, loader(), scheduler)
        self.norms: list[float] = []
        if grown:
            self.gardener = esper.Gardener(self.model, self.optimizer, policy=Eager(), evaluate=accuracy, epochs=epochs)
            prepare(self.accelerator, self.gardener)

    def train(self, epochs: int, max_norm: float | None = MAX_NORM) -> None:
        for _ in range(epochs):
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(nn.functional.cross_entropy(self.model(x), y))
                    if self.accelerator.sync_gradients and max_norm is not None:
                        self.norms.append(float(self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)))
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            if hasattr(self, "gardener"):
                self.gardener.step()
            self.scheduler.step()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_is_the_same_as_a_loop_of_ones_own(accumulate):
    loop = Loop(growable(), accumulate=accumulate)
    loop.train(EPOCHS)
    model, history = by_hand(EPOCHS, accumulate=accumulate)
    assert told(loop.gardener) == history
    assert sum("FOSSILIZE" in line for line in history) == 2
    same(loop.accelerator.unwrap_model(loop.model), model)


def test_the_norm_is_that_of_the_host_alone():
    alone = Loop(growable().release(), grown=False)
    alone.train(2)
    loop = Loop(growable())
    loop.train(2)  # the second with a seed in isolation
    assert loop.norms == alone.norms, "the host trains as if nothing grew in it"
    assert min(loop.norms) > MAX_NORM


def test_a_resumed_training_is_the_same_bit_for_bit(tmp_path: Path):
    whole = Loop(growable())
    whole.train(5)
    whole.accelerator.save_state(str(tmp_path))
    whole.train(5)
    again = Loop(growable())
    again.accelerator.load_state(str(tmp_path))
    again.train(5)
    assert told(again.gardener) == told(whole.gardener)
    same(again.model, whole.model)


def test_what_cannot_work_is_refused_in_a_sentence():
    accelerator, model = Accelerator(cpu=True), growable()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameter_groups(), lr=0.1))
    gardener = esper.Gardener(model, optimizer, evaluate=accuracy)
    with pytest.raises(ConfigError, match=r"the Accelerator does not know the gardener's model; call accelerator.prepare"):
        prepare(accelerator, gardener)
    with pytest.raises(ConfigError, match=r"an accelerate.Accelerator and a Gardener, found Adam first"):
        prepare(torch.optim.Adam(model.parameters()), gardener)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"an accelerate.Accelerator and a Gardener, found GrowableSequential second"):
        prepare(accelerator, model)
    other = accelerator.prepare(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(OptimizerError, match="holds none of the model's parameters"):
        esper.Gardener(model, other, evaluate=accuracy)
