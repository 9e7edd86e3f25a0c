"""Growth in a loop that accelerate prepares.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    gardener = esper.Gardener(model, optimizer, evaluate=accuracy)
    prepare(accelerator, gardener)

The loop itself stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from esper.integrations._tending import clip_seeds, measure, without_seeds
from esper.leyline.errors import ConfigError
from esper.simic.gardener import Gardener

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise ConfigError('esper.integrations.accelerate needs accelerate; install it with: pip install "esper-lite[accelerate]"') from error


def prepare(accelerator: Accelerator, gardener: Gardener) -> None:
    """Tell an Accelerator of the growth: its checkpoints hold the gardener too, and its clipping keeps seeds and host apart.

    From here on `accelerator.save_state` and `load_state` save and load the gardener with model and optimiser, and
    `accelerator.clip_grad_norm_` clips each seed by itself and everything else as if nothing grew; the norm that it returns is that of
    everything else. Model and optimiser are to be prepared before.
    """
    if not isinstance(accelerator, Accelerator):
        raise ConfigError(f"prepare takes an accelerate.Accelerator and a Gardener, found {type(accelerator).__name__} first")
    if not isinstance(gardener, Gardener):
        raise ConfigError(f"prepare takes an accelerate.Accelerator and a Gardener, found {type(gardener).__name__} second")
    if not any(gardener.model is module for prepared in accelerator._models for module in prepared.modules()):
        raise ConfigError("the Accelerator does not know the gardener's model; call accelerator.prepare(model, optimizer, ...) first")
    accelerator.register_for_checkpointing(gardener)
    clip = accelerator.clip_grad_norm_

    def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        rest = without_seeds(gardener.model, given)
        if len(rest) == len(given):
            return clip(given, max_norm, norm_type)
        norm = clip(rest, float("inf"), norm_type)  # unscales, and clips nothing yet
        if accelerator.sync_gradients:
            measure(gardener.model, scaled=accelerator.scaler is not None)
        nn.utils.clip_grads_with_norm_(rest, max_norm, norm)
        clip_seeds(gardener.model, max_norm, norm_type)
        return norm

    accelerator.clip_grad_norm_ = clip_grad_norm_
