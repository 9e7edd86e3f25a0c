"""Growth inside Lightning: a callback for its Trainer.

    trainer = Trainer(max_epochs=25, callbacks=[GrowthCallback(evaluate=accuracy)])

The LightningModule holds an `esper.Growable` anywhere. Nothing else in it changes.
"""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from esper.integrations._tending import Evaluate, Tending, clip_seeds, count_of_epochs, measure, seeds_of
from esper.kasmina.growable import Growable, growable_in
from esper.kasmina.optimizer_groups import SLOT_KEY, innermost
from esper.leyline.errors import ConfigError
from esper.leyline.stages import LIVE
from esper.simic.gardener import Gardener

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import StochasticWeightAveraging
except ModuleNotFoundError as error:
    raise ConfigError('esper.integrations.lightning needs Lightning; install it with: pip install "esper-lite[lightning]"') from error


class GrowthCallback(Callback):
    """Grows the `esper.Growable` that a LightningModule holds: a Gardener that takes its step at the end of each training epoch.

    evaluate: as for `esper.Gardener`: a function of the Growable that returns its validation accuracy in points, or an Evaluation. It runs
    in the Trainer's precision.
    settings: other arguments of `esper.Gardener` (policy, recalibrate, rent, run, ...); by default `epochs` is the Trainer's max_epochs.

    The optimiser and the scheduler are those of configure_optimizers, however they were built. Checkpoints of the Trainer hold all that a
    resumed training needs. `gradient_clip_val` clips the host as if nothing grew in it, and each seed by itself.
    """

    def __init__(self, evaluate: Evaluate, **settings: Any) -> None:
        self._tending = Tending(evaluate, settings)
        self._restored: dict[str, Any] | None = None

    @property
    def gardener(self) -> Gardener | None:
        """The Gardener of the present training, or of the last one; None before the first."""
        return self._tending.gardener

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Optimisers and schedulers are built and their states are not loaded yet: the seeds go where those states expect them."""
        model = growable_in(pl_module)
        if any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks):  # type: ignore[attr-defined]
            raise ConfigError(
                "StochasticWeightAveraging copies the module once and pairs parameters by their position, so that what grows later is left "
                "out or mixed up; update an esper.AveragedModel in a callback of your own"
            )
        model.follow(_optimizer_of(trainer, model), share_groups=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything is loaded, if a checkpoint was given: the Gardener begins, or goes on."""
        model, restored = growable_in(pl_module), self._restored
        self._restored = None
        self._tending.begin(
            model,
            _optimizer_of(trainer, model),
            epochs=count_of_epochs(trainer.max_epochs),
            done=_epochs_done(trainer),
            resumed=restored,
            precision=trainer.precision_plugin.val_step_context,
        )

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: optim.Optimizer) -> None:
        """Between backward and clipping: the seeds' gradients are clipped here and set aside until the step."""
        gardener = self._tending.tends
        model = gardener.model
        if innermost(optimizer) is not gardener.optimizer or not seeds_of(model):
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            return  # a fused optimiser undoes the scaling itself; Lightning refuses to clip for it, and its step is measured as it is
        if trainer.gradient_clip_val or model.at(*LIVE):
            measure(model, scaled=scaler is not None)
        if trainer.gradient_clip_val:
            if trainer.gradient_clip_algorithm == "value":
                nn.utils.clip_grad_value_((p for each in seeds_of(model) for p in each), trainer.gradient_clip_val)
            else:
                clip_seeds(model, trainer.gradient_clip_val)
        model.set_seeds_aside()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look, decide, act. Checkpoints of this epoch are written after it."""
        self._tending.tends.step()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The record ends."""
        self._tending.end(finished=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The record stays as it is, for a training that goes on with it."""
        self._tending.end(finished=False)

    def state_dict(self) -> dict[str, Any]:
        """For the Trainer's checkpoints."""
        return self._tending.state() or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint of the Trainer; taken up when the training starts."""
        self._restored = state_dict or None


def _epochs_done(trainer: Trainer) -> int:
    # Not current_epoch, which in a training that is limited by steps lags behind after a checkpoint was loaded.
    done: int = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    return done


def _optimizer_of(trainer: Trainer, model: Growable) -> optim.Optimizer:
    """The Trainer's optimiser that has groups for the slots, or else the one that steps the host."""
    host = {id(p) for p in model.host.parameters()}
    told = [each for each in trainer.optimizers if any(group.get(SLOT_KEY) in model.slot_ids for group in each.param_groups)]
    held = [each for each in trainer.optimizers if any(id(p) in host for group in each.param_groups for p in group["params"])]
    found = told or held
    if len(found) != 1:
        there = f"{len(found)} of its {len(trainer.optimizers)} optimisers hold" if found else "none of its optimisers holds"
        raise ConfigError(
            f"one optimiser steps the Growable's host; of this LightningModule, {there} its parameters; "
            "build the one that is to step the seeds from model.parameter_groups()"
        )
    return found[0]
