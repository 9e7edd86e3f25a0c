"""A healthy moment of a host, kept in CPU memory: host and fossils with their optimiser state, to roll back to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, optim

from esper.kasmina import Growable
from esper.leyline.stages import Stage


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of the host's and fossils' tensors and of the optimiser's state for each of their parameters."""

    epoch: int
    tensors: dict[str, Tensor]
    momentum: dict[str, dict[str, Any]]
    """Optimiser state by parameter name; no entry where there was none."""

    @classmethod
    @torch.no_grad()
    def take(cls, model: Growable, optimizer: optim.Optimizer, epoch: int) -> Snapshot:
        tensors = {name: value.detach().to("cpu", copy=True) for name, value in _lasting(model).items()}
        momentum = {
            name: {k: v.detach().to("cpu", copy=True) if isinstance(v, Tensor) else v for k, v in optimizer.state[p].items()}
            for name, p in _lasting_parameters(model).items()
            if p in optimizer.state
        }
        return cls(epoch, tensors, momentum)

    @torch.no_grad()
    def restore(self, model: Growable, optimizer: optim.Optimizer) -> None:
        """Write everything back in place. Fossils are never newer than the last snapshot, as each fossilisation takes one."""
        for name, value in _lasting(model).items():
            if name in self.tensors:
                value.copy_(self.tensors[name])
        for name, parameter in _lasting_parameters(model).items():
            optimizer.state.pop(parameter, None)
            if name in self.momentum:
                optimizer.state[parameter] = {
                    k: v.to(parameter.device, copy=True) if isinstance(v, Tensor) else v for k, v in self.momentum[name].items()
                }

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "tensors": self.tensors, "momentum": self.momentum}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Snapshot:
        return cls(state["epoch"], state["tensors"], state["momentum"])


def _lasting(model: Growable) -> dict[str, Tensor]:
    """Tensors of the host, buffers among them, and of the fossils, by name."""
    found = {f"host.{name}": value for name, value in model.host.state_dict().items()}
    for slot in _fossils(model):
        found.update({f"{slot.id}/{name}": p for name, p in _named(slot)})
    return found


def _lasting_parameters(model: Growable) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {f"host.{name}": p for name, p in model.host.named_parameters()}
    for slot in _fossils(model):
        found.update({f"{slot.id}/{name}": p for name, p in _named(slot)})
    return found


def _fossils(model: Growable) -> list[Any]:
    return [slot for slot in model._slots() if slot.life.stage is Stage.FOSSILIZED]


def _named(slot: Any) -> list[tuple[str, Tensor]]:
    modules = {"seed": slot.seed, "gating": slot.gating}
    return [(f"{part}.{name}", p) for part, module in modules.items() if module is not None for name, p in module.named_parameters()]
