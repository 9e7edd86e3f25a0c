"""An optimiser that follows the growth: one parameter group for each slot, made up front, filled and emptied as seeds come and go.

Groups made up front are what keeps learning-rate schedulers working: they count the groups once, when they are built. Where a framework
builds optimiser and scheduler in one go, seeds can share the group of their neighbours instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn, optim

from esper.kasmina.gradients import Scale
from esper.kasmina.slot import Slot, Slots
from esper.leyline.errors import OptimizerError

SLOT_KEY = "slot"
"""Key in a parameter group that names the slot it belongs to."""


UNFIT: dict[type[optim.Optimizer], str] = {
    optim.LBFGS: "has one fixed parameter group and cannot follow the growth; use SGD or Adam, for example",
    optim.Muon: "steps matrices alone, and seeds have other parameters as well; let the optimiser of the other parameters follow",
    optim.SparseAdam: "steps sparse gradients alone, and those of seeds are dense; let the optimiser of the other parameters follow",
}
"""Optimisers of torch that cannot step seeds, and why."""


class Follower:
    """Ties one optimiser to the slots of a model."""

    def __init__(
        self,
        optimizer: optim.Optimizer,
        host: nn.Module,
        slots: Slots,
        before_step: Callable[[Scale | None], None],
        share_groups: bool = False,
    ) -> None:
        self.optimizer = optimizer
        # By place: when an optimiser loads a state dict its groups are new objects in the same order.
        self._places = _slot_groups(optimizer, host, slots, share_groups)
        self._filled: dict[str, tuple[nn.Module | None, nn.Module | None]] = {}
        groups = {id: optimizer.param_groups[place] for id, place in self._places.items()}
        self._members = {id: list(group["params"]) if SLOT_KEY in group else [] for id, group in groups.items()}
        """Of each slot, its parameters that are in the optimiser."""
        for slot in slots.values():
            self.sync(slot)
        self._measure = before_step
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def sync(self, slot: Slot) -> None:
        """Make the optimiser hold exactly the parameters of the slot's seed; state of those that left is dropped."""
        modules = slot.seed, slot.gating
        if self._filled.get(slot.id) == modules:
            return
        self._filled[slot.id] = modules
        self._fill(slot.id, {f"{slot.id}.{name}": p for name, p in slot.named_parameters()})

    def leave(self) -> None:
        """Take the seeds out of the optimiser and no longer follow."""
        self._hook.remove()
        for slot in self._places:
            self._fill(slot, {})

    def _before_step(self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Before a step, or where it is given a closure that makes the gradients, after that has."""
        by_name = "closure" in kwargs
        closure = kwargs["closure"] if by_name else args[1] if len(args) > 1 else None
        if closure is None:
            self._prepare()
            return None

        def prepared() -> Any:
            loss = closure()
            self._prepare()
            return loss

        return (args, {**kwargs, "closure": prepared}) if by_name else ((args[0], prepared, *args[2:]), kwargs)

    def _prepare(self) -> None:
        self._measure(_scale(self.optimizer))
        for place in {*self._places.values()}:
            _start_state(self.optimizer, self.optimizer.param_groups[place])

    def _fill(self, slot: str, parameters: Mapping[str, nn.Parameter]) -> None:
        """Replace a slot's parameters in its group. Seeds of a shared group lie behind what else is in it, in the order of their slots, so
        that a state dict of the optimiser fits whichever way they came."""
        place = self._places[slot]
        group, kept = self.optimizer.param_groups[place], {id(p) for p in parameters.values()}
        here = [each for each, other in self._places.items() if other == place]
        for parameter in self._members[slot]:
            if id(parameter) not in kept:
                self.optimizer.state.pop(parameter, None)
        names = dict(zip(map(id, group["params"]), group["param_names"], strict=True)) if "param_names" in group else None
        seeds = {id(p) for each in here for p in self._members[each]}
        self._members[slot] = list(parameters.values())
        group["params"][:] = [p for p in group["params"] if id(p) not in seeds] + [p for each in here for p in self._members[each]]
        if names is not None:
            names |= {id(p): name for name, p in parameters.items()}
            group["param_names"] = [names[id(p)] for p in group["params"]]


def innermost(optimizer: optim.Optimizer) -> optim.Optimizer:
    """The optimiser of torch inside whatever a framework has wrapped around it; accelerate and Lightning keep it as `.optimizer`."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), optim.Optimizer):
        optimizer = inner
    return optimizer


def _scale(optimizer: optim.Optimizer) -> Scale | None:
    """What a gradient scaler has told an optimiser that undoes the scaling in its step, as the fused ones do; None without one."""
    if not hasattr(optimizer, "found_inf"):
        return None
    skipped: torch.Tensor = optimizer.found_inf
    factor: torch.Tensor | None = optimizer.grad_scale  # type: ignore[attr-defined]
    return Scale(torch.ones_like(skipped) if factor is None else factor, skipped)


def _start_state(optimizer: optim.Optimizer, group: dict[str, Any]) -> None:
    """Give late parameters the state that an optimiser expects of them in its step.

    Adagrad makes it when it is built. Fused SGD fails where only a part of a group has a momentum, as when a gate begins to learn later
    than its seed; it gets a momentum of zero.
    """
    learning = [p for p in group["params"] if p.grad is not None]
    if isinstance(optimizer, optim.Adagrad):
        for parameter in learning:
            if not optimizer.state[parameter]:
                step = torch.zeros((), device=parameter.device if group["fused"] else "cpu")
                optimizer.state[parameter] = {"step": step, "sum": torch.full_like(parameter, group["initial_accumulator_value"])}
    elif isinstance(optimizer, optim.SGD) and group["fused"] and group["momentum"]:
        late = [p for p in learning if "momentum_buffer" not in optimizer.state[p]]
        if len(late) < len(learning):
            for parameter in late:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _slot_groups(optimizer: optim.Optimizer, host: nn.Module, slots: Slots, share_groups: bool) -> dict[str, int]:
    """Where the group of each slot is: made where it does not exist yet, or with `share_groups` that of its neighbours. Checks everything
    before adding anything."""
    groups = {group[SLOT_KEY]: group for group in optimizer.param_groups if SLOT_KEY in group}
    foreign = sorted(set(groups) - set(slots))
    if foreign:
        raise OptimizerError(f"the optimiser has a group for slot {foreign[0]!r}, which this model does not have")
    others = [group for group in optimizer.param_groups if SLOT_KEY not in group]
    missing = [slot for slot in slots.values() if slot.id not in groups]
    known = {id(p) for p in host.parameters()}
    host_groups = [g for g in optimizer.param_groups if any(id(p) in known for p in g["params"])]
    # An optimiser of the seeds alone has a group for each slot and nothing else; that of a frozen host may step other modules as well.
    if not host_groups and (missing or (any(g["params"] for g in others) and any(p.requires_grad for p in host.parameters()))):
        raise OptimizerError("the optimiser holds none of the model's parameters; build it from model.parameter_groups()")
    for kind, why in UNFIT.items():
        if isinstance(optimizer, kind):
            raise OptimizerError(f"{kind.__name__} {why}")
    # Building a scheduler leaves initial_lr in the optimiser's groups.
    if missing and not share_groups and any("initial_lr" in group for group in optimizer.param_groups):
        raise OptimizerError(
            "a learning-rate scheduler was built before the optimiser followed the model; "
            "build the optimiser from model.parameter_groups(), or call model.follow(optimizer) before making the scheduler"
        )
    # Seeds that grew before the optimiser was built from model.parameters() leave the host's groups, or they would be stepped twice.
    seeds = {id(p) for slot in slots.values() for p in slot.seed_parameters()}
    for group in others:
        stay = [i for i, p in enumerate(group["params"]) if id(p) not in seeds]
        for key in {"params", "param_names"} & group.keys():
            group[key][:] = [group[key][i] for i in stay]
    shared: dict[str, int] = {}
    for slot in missing:
        neighbour = _neighbour(host_groups, host, slot)
        if share_groups:
            shared[slot.id] = next(place for place, group in enumerate(optimizer.param_groups) if group is neighbour)
            continue
        settings = {k: copy.deepcopy(v) for k, v in neighbour.items() if k not in ("params", "param_names")}
        names: dict[str, list[str]] = {"param_names": []} if "param_names" in host_groups[0] else {}
        optimizer.add_param_group({**settings, **names, "params": [], SLOT_KEY: slot.id})
    own = {group[SLOT_KEY]: place for place, group in enumerate(optimizer.param_groups) if SLOT_KEY in group}
    return {id: (own | shared)[id] for id in slots}


def _neighbour(groups: list[dict[str, Any]], host: nn.Module, slot: Slot) -> dict[str, Any]:
    """The group whose settings a new seed takes over: the first with parameters of the module it grows at, or else of the nearest module
    before it, in the order of registration, that has any in the optimiser; else the optimiser's first."""
    modules = dict(host.named_modules())
    before = list(modules)[: list(modules).index(slot.place.path)]
    neighbours = [modules[slot.place.path].parameters(), *(modules[path].parameters(recurse=False) for path in reversed(before))]
    for nearby in ({id(p) for p in parameters} for parameters in neighbours):
        for group in groups:
            if any(id(p) in nearby for p in group["params"]):
                return group
    return groups[0]
