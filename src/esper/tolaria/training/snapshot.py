"""A healthy moment of a host, kept in CPU memory: host and fossils with their optimiser state, and the governor, to roll back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.leyline.stages import Stage
from esper.tolaria.training.governor import Governor

HOST = "host"
"""The part of a model that is its host; see `_parts`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of the host's and fossils' tensors and of the optimiser's state for each of their parameters."""

    epoch: int
    tensors: dict[str, Tensor]
    momentum: dict[str, dict[str, Any]]
    """Optimiser state by parameter name; no entry where there was none."""
    governor: dict[str, Any]
    """What the governor knew: a host put back to before it had learned must not be judged as one that has."""
    restored: bool = False
    """Whether a rollback has put the host back to it."""

    @classmethod
    @torch.no_grad()
    def take(cls, model: Growable, optimizer: optim.Optimizer, governor: Governor, epoch: int) -> Snapshot:
        """The host as it is now, after `epoch` epochs."""
        lasting = _lasting(model)
        states = {name: optimizer.state[p] for name, p in _lasting_parameters(model).items() if p in optimizer.state}
        kept = [(name, key, value) for name, state in states.items() for key, value in state.items()]
        copies = iter(_on_cpu([*lasting.values(), *(value for _, _, value in kept if isinstance(value, Tensor))]))
        tensors = {name: next(copies) for name in lasting}
        momentum: dict[str, dict[str, Any]] = {name: {} for name in states}
        for name, key, value in kept:
            momentum[name][key] = next(copies) if isinstance(value, Tensor) else value
        return cls(epoch, tensors, momentum, governor.state())

    @classmethod
    def untrained(cls, host: nn.Module, governor: Governor) -> Snapshot:
        """A host before its first epoch, of which nothing has grown yet."""
        state = host.state_dict()
        tensors = {f"{HOST}.{name}": copy for name, copy in zip(state, _on_cpu(list(state.values())), strict=True)}
        return cls(0, tensors, {}, governor.state())

    def with_new_fossils(self, model: Growable, optimizer: optim.Optimizer, governor: Governor) -> Snapshot:
        """This moment, and the fossils that it does not know yet as they are now: their gate found them sound, and the host may not be."""
        now = Snapshot.take(model, optimizer, governor, self.epoch)
        tensors = {name: value for name, value in now.tensors.items() if name not in self.tensors}
        momentum = {name: value for name, value in now.momentum.items() if name in tensors}
        return replace(self, tensors={**self.tensors, **tensors}, momentum={**self.momentum, **momentum})

    @torch.no_grad()
    def restore(self, model: Growable, optimizer: optim.Optimizer, governor: Governor) -> None:
        """Write everything back in place. Every fossil is in the snapshot, because each fossilisation sees to it."""
        for name, value in _lasting(model).items():
            value.copy_(self.tensors[name])
        for name, parameter in _lasting_parameters(model).items():
            optimizer.state.pop(parameter, None)
            if name in self.momentum:
                # Counts of steps are kept on the CPU by every optimiser here, so that reading one waits for no device.
                optimizer.state[parameter] = {
                    k: v.to("cpu" if k == "step" else parameter.device, copy=True) if isinstance(v, Tensor) else v
                    for k, v in self.momentum[name].items()
                }
        governor.load_state(self.governor)

    def state(self) -> dict[str, Any]:
        """The fields by name, which `Snapshot(**state)` takes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors in CPU memory. From a GPU they come together, one transfer for each type: each would be waited for."""
    copies: list[Tensor | None] = [tensor.detach().clone() if tensor.device.type == "cpu" else None for tensor in tensors]
    for dtype in {tensor.dtype for tensor, copy in zip(tensors, copies, strict=True) if copy is None}:
        mine = [at for at, copy in enumerate(copies) if copy is None and tensors[at].dtype == dtype]
        together = torch.cat([tensors[at].detach().reshape(-1) for at in mine]).cpu()
        for at, part in zip(mine, together.split([tensors[at].numel() for at in mine]), strict=True):
            copies[at] = part.view(tensors[at].shape).clone()
    return [copy for copy in copies if copy is not None]


def _lasting(model: Growable) -> dict[str, Tensor]:
    """Tensors of the host and of the fossils by name, buffers among them: running statistics break as weights do."""
    return {f"{part}.{name}": value for part, module in _parts(model).items() for name, value in module.state_dict().items()}


def _lasting_parameters(model: Growable) -> dict[str, Tensor]:
    return {f"{part}.{name}": value for part, module in _parts(model).items() for name, value in module.named_parameters()}


def _parts(model: Growable) -> dict[str, nn.Module]:
    """The modules that last, by name: the host, and seed and gate of each fossil."""
    parts: dict[str, nn.Module] = {HOST: model.host}
    for slot in model.slots.values():
        if slot.state.stage is Stage.FOSSILIZED:
            modules = {"seed": slot.seed, "gating": slot.gating}
            parts.update({f"{slot.id}/{name}": module for name, module in modules.items() if module is not None})
    return parts
