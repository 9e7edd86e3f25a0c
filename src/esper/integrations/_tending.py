"""What the integrations share: a Gardener that a framework's events drive, and clipping that keeps seeds apart from their host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.leyline.errors import ConfigError, StateError, unknown
from esper.leyline.stages import OCCUPIED
from esper.simic.evaluation import Evaluation
from esper.simic.gardener import Gardener

Evaluate = Callable[[Growable], float | Evaluation]

SETTINGS = frozenset(inspect.signature(Gardener).parameters) - {"model", "optimizer", "evaluate"}
"""What a callback passes on to its Gardener."""


class Tending:
    """A Gardener that is made when a training begins, when model and optimiser are there, and whose memory outlives that training."""

    def __init__(self, evaluate: Evaluate, settings: dict[str, Any]) -> None:
        if not callable(evaluate):
            raise ConfigError(f"evaluate is a function of the model that returns its accuracy in points, found {evaluate!r}")
        for name in settings:
            if name not in SETTINGS:
                raise unknown("setting of a Gardener", name, SETTINGS)
        self._evaluate, self._settings = evaluate, settings
        self.gardener: Gardener | None = None
        """That of the present training, or of the last one."""
        self._under_way = False
        """Whether a training has begun and not ended."""
        self._saved: dict[str, Any] | None = None
        """What a Gardener that is not made yet will go on from."""
        self._before = 0
        """Epochs of the framework's count that lie before the Gardener's first."""

    def begin(
        self,
        model: Growable,
        optimizer: optim.Optimizer,
        *,
        epochs: int | None,
        done: int,
        resumed: dict[str, Any] | None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """A training begins. epochs: how many it will have, None if that is open. done: how many lie behind it already.

        resumed: what `state` gave when the checkpoint was written that this training goes on from. precision: a context to evaluate in.
        """
        if resumed is not None and set(resumed) != {"gardener", "before"}:
            raise StateError(f"the checkpoint's state of a Gardener has the keys gardener and before; found {', '.join(sorted(resumed))}")
        self.end(finished=False)  # an earlier training whose interruption nobody told of still holds its record
        saved = self._saved if resumed is None else resumed
        seen = 0 if saved is None else saved["gardener"]["epoch"]
        self._before = done - seen if resumed is None else resumed["before"]

        def evaluate(grown: Growable) -> float | Evaluation:
            with precision():
                return self._evaluate(grown)

        ahead = None if epochs is None else max(1, epochs - self._before)
        self.gardener = Gardener(model, optimizer, evaluate=evaluate, **{"epochs": ahead, **self._settings})
        self._under_way = True
        if saved is not None:
            self.gardener.load_state_dict(saved["gardener"])
        # A checkpoint that was written between an epoch's last step and its end: what happened in between is made up for.
        if resumed is not None and self._before + self.gardener.epoch < done:
            self.gardener.step()

    @property
    def tends(self) -> Gardener:
        """The Gardener; while a training goes on there is one."""
        assert self.gardener is not None, "no training has begun"
        return self.gardener

    def state(self) -> dict[str, Any] | None:
        """What a training that is resumed goes on from, in plain containers; None before the first has begun."""
        return {"gardener": self.tends.state_dict(), "before": self._before} if self._under_way else self._saved

    def end(self, *, finished: bool) -> None:
        """The training is over: its record ends, or after a failure is only left as it is."""
        if not self._under_way:
            return
        self._saved, self._under_way = self.state(), False
        if finished:
            self.tends.finish()
        else:
            self.tends.close()


def count_of_epochs(planned: float | None) -> int | None:
    """A framework's number of epochs as a Gardener takes it; None where it says in some way that the end is open."""
    return int(planned) if planned is not None and 1 <= planned < 1_000_000 else None


def seeds_of(model: Growable) -> list[list[nn.Parameter]]:
    """The parameters of each seed that is there."""
    return [slot.seed_parameters() for slot in model.slots.values() if slot.state.stage in OCCUPIED]


def measure(model: Growable, *, scaled: bool) -> None:
    """Take the gradients into the model's statistics before somebody clips them. scaled: a gradient scaler unscaled them, which will skip
    the step where they are not finite; then it counts for nothing."""
    if not scaled or _finite(model.parameters()):
        model.measure_gradients()


def clip_seeds(model: Growable, max_norm: float, norm_type: float = 2.0) -> None:
    """Clip the gradient of each seed by itself."""
    for parameters in seeds_of(model):
        nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def without_seeds(model: Growable, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those of the parameters that belong to no seed."""
    seeds = {id(p) for each in seeds_of(model) for p in each}
    return [p for p in parameters if id(p) not in seeds]


def _finite(parameters: Iterable[nn.Parameter]) -> bool:
    gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
    return bool(torch.nn.utils.get_total_norm(gradients).isfinite())
