"""An optimiser that follows the growth: one parameter group for each slot, made up front, filled and emptied as seeds come and go.

Groups made up front are what keeps learning-rate schedulers working: they count the groups once, when they are built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn, optim

from esper.kasmina.slot import Slot
from esper.leyline.errors import OptimizerError

SLOT_KEY = "slot"
"""Key in a parameter group that names the slot it belongs to."""


class Follower:
    """Ties one optimiser to the slots of a model."""

    def __init__(self, optimizer: optim.Optimizer, host: nn.Module, slots: Mapping[str, Slot], before_step: Callable[[], None]) -> None:
        self.optimizer = optimizer
        self.groups = _slot_groups(optimizer, host, slots)
        for slot in slots.values():
            self.sync(slot)
        optimizer.register_step_pre_hook(lambda *_: before_step())

    def sync(self, slot: Slot) -> None:
        """Make the slot's group hold exactly the parameters of its seed; state of those that left is dropped."""
        group = self.groups[slot.id]
        now = slot.seed_parameters()
        for parameter in group["params"]:
            if not any(parameter is p for p in now):
                self.optimizer.state.pop(parameter, None)
        group["params"][:] = now


def _slot_groups(optimizer: optim.Optimizer, host: nn.Module, slots: Mapping[str, Slot]) -> dict[str, dict[str, Any]]:
    """The group of each slot, made where it does not exist yet. Checks everything before adding anything."""
    groups = {group[SLOT_KEY]: group for group in optimizer.param_groups if SLOT_KEY in group}
    foreign = sorted(set(groups) - set(slots))
    if foreign:
        raise OptimizerError(f"the optimiser has a group for slot {foreign[0]!r}, which this model does not have")
    known = {id(p) for p in host.parameters()}
    host_groups = [g for g in optimizer.param_groups if any(id(p) in known for p in g["params"])]
    if not host_groups:
        raise OptimizerError("the optimiser holds none of the model's parameters; build it from model.parameter_groups()")
    if isinstance(optimizer, optim.LBFGS):
        raise OptimizerError("LBFGS has one fixed parameter group and cannot follow the growth; use SGD or Adam, for example")
    missing = [slot for slot in slots.values() if slot.id not in groups]
    if missing and _has_scheduler(optimizer):
        raise OptimizerError(
            "a learning-rate scheduler was built before the optimiser followed the model; "
            "build the optimiser from model.parameter_groups(), or call model.follow(optimizer) before making the scheduler"
        )
    for slot in missing:
        settings = {k: v for k, v in _neighbour(host_groups, host, slot).items() if k != "params"}
        optimizer.add_param_group({**settings, "params": [], SLOT_KEY: slot.id})
        groups[slot.id] = optimizer.param_groups[-1]
    return groups


def _neighbour(groups: list[dict[str, Any]], host: nn.Module, slot: Slot) -> dict[str, Any]:
    """The group whose settings a new seed takes over: that of the module it grows at, else the optimiser's first."""
    nearby = {id(p) for p in host.get_submodule(slot.place.path).parameters()}
    return next((g for g in groups if any(id(p) in nearby for p in g["params"])), groups[0])


def _has_scheduler(optimizer: optim.Optimizer) -> bool:
    # Building a scheduler replaces the optimiser's bound step by a counting one and leaves initial_lr in its groups.
    return any("initial_lr" in group for group in optimizer.param_groups)


def parameter_groups(host: nn.Module, slots: Iterable[Slot]) -> list[dict[str, Any]]:
    """Groups to build an optimiser from: the host's parameters, then one group for each slot, empty while it has no seed."""
    return [
        {"params": [p for p in host.parameters() if p.requires_grad]},
        *({"params": slot.seed_parameters(), SLOT_KEY: slot.id} for slot in slots),
    ]
