"""What an epoch of a host will cost, told before it is trained, so that hosts can be shared out evenly.

The formula was fitted on a CPU to hosts of the digits, stdlib and cifar10 families that grew under a policy. For such small networks time
goes by the kernels that are started and by the values that they write; arithmetic tells only in wide ones. It is a quarter off for a usual
host, because nobody knows yet what will grow in it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.attach.running import untouched
from esper.tolaria.data import Data
from esper.tolaria.tasks import Member
from esper.tolaria.tasks.registry import Prepared
from esper.tolaria.training.config import TrainingConfig

KERNEL = 1.3e-4
"""Seconds of a step for each kernel that the forward pass starts: its own, the backward pass's and the optimiser's."""
VALUE = 4.7e-9
"""Seconds of a sample for each value that the forward pass writes, all passes of an epoch together."""
OPERATION = 1e-11
"""Seconds of a sample for each floating-point operation of the forward pass, likewise."""
MEASURING = 10
"""Steps that take as long as the rest of an epoch does, whatever its length: validation, counterfactuals, the report."""


def epoch_cost(prepared: Prepared, data: Data, member: Member, config: TrainingConfig) -> float:
    """About how many seconds one epoch of this host takes on one core."""
    kernels, values, operations = _counted(prepared.host, prepared.example)
    size = len(prepared.split)
    steps = math.ceil(size / member.batch)
    samples = size + len(data.val) + min(config.recalibrate, size)
    return KERNEL * kernels * (steps + MEASURING) + samples * (VALUE * values + OPERATION * operations)


def _counted(net: nn.Module, example: Tensor) -> tuple[int, float, float]:
    """Kernels of a forward pass; values that they write and operations that they take for one sample."""
    flops, kernels = FlopCounterMode(display=False), _Kernels()
    with untouched(net), torch.no_grad(), flops, kernels:
        net(example)
    return kernels.started, kernels.values / len(example), flops.get_total_flops() / len(example)


class _Kernels(TorchDispatchMode):
    """Counts what is computed inside; views of what is there already are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.started = self.values = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.started += 1
            self.values += sum(each.numel() for each in tree_leaves(result) if isinstance(each, Tensor))
        return result
