"""Averages of a growing model's weights over its training, such as an exponential moving average."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim import swa_utils

from esper.kasmina.growable import Growable
from esper.leyline.errors import OptimizerError


class AveragedModel(swa_utils.AveragedModel):
    """torch's AveragedModel for a model that grows, or that holds one: before each update the average grows to where the model is.

    The average of a new seed starts from the seed as it is at the first update after its germination.
    """

    def update_parameters(self, model: nn.Module) -> None:
        """Grow like the model, then average."""
        for mine, its in zip(_growables(self.module), _growables(model), strict=True):
            mine.grow_like(its)
        super().update_parameters(model)


def _growables(model: nn.Module) -> list[Growable]:
    return [module for module in model.modules() if isinstance(module, Growable)]


def _refuse_blind_average(module: nn.Module, name: str, child: nn.Module | None) -> None:
    """torch's own AveragedModel copies the model once and pairs parameters by position, so what grows later is left out in silence."""
    if isinstance(module, swa_utils.AveragedModel) and not isinstance(module, AveragedModel) and child is not None and _growables(child):
        raise OptimizerError("torch's AveragedModel does not see what grows in a Growable; use esper.AveragedModel, which grows alike")


register_module_module_registration_hook(_refuse_blind_average)
