"""Observations of many hosts as tensors, and decisions as rows of indices: the border between hosts and the policy network.

A policy has a list of blueprints of its own. Everything that crosses the border is matched by the blueprints' names, so that it does
not matter in which order, or among how many others, a host knows them. A policy chooses among those that both know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import Decision, Head, Op, matters
from esper.leyline.observation import NO_BLUEPRINT, OBSERVATION
from esper.tamiyo.observe.masks import Masks
from esper.tamiyo.observe.signals import Observation

HEADS: tuple[Head, ...] = tuple(Head)
"""The columns of an action, in order."""

Index = Tensor | slice | int | tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservationBatch:
    """What a policy sees of many hosts. `...` is [hosts] when acting and [hosts, steps] when whole episodes are replayed.

    H, F: values per host and per slot; S: slots of the host that has most; B: blueprints of the policy.
    """

    host: Tensor
    """float [..., H]: the host fields, in the order of OBSERVATION.host_fields."""
    slots: Tensor
    """float [..., S, F]: the slot fields, in the order of OBSERVATION.slot_fields."""
    blueprints: Tensor
    """int64 [..., S]: NO_BLUEPRINT, or 1 + the place of the seed's blueprint in the policy's list."""
    exists: Tensor
    """bool [..., S]: False where a host has fewer slots than S."""
    op_mask: Tensor
    """bool [..., 6]: ops that are legal for some slot. WAIT always is, in padding too."""
    slot_mask: Tensor
    """bool [..., 6, S]: for each op the slots that it may name."""
    blueprint_mask: Tensor
    """bool [..., S, B]: what can grow in each slot."""
    costs: Tensor
    """float [..., S, B]: doublings of the network by each blueprint there, log2(1 + its parameters / those of the network now); 0 where it
    does not fit."""

    @classmethod
    def padding(cls, shape: Sequence[int], slots: int, blueprints: int, device: torch.device | str = "cpu") -> ObservationBatch:
        """Hosts without a slot that can only wait: what lies behind the end of an episode, and what a buffer is filled with first.

        `slots` is at least 1, so that the slot head always has a value to point at where it does not matter.
        """
        assert slots >= 1

        def zeros(*size: int, dtype: torch.dtype = torch.bool) -> Tensor:
            return torch.zeros(*shape, *size, dtype=dtype, device=device)

        op_mask = zeros(len(Op))
        op_mask[..., Op.WAIT] = True
        return cls(
            host=zeros(OBSERVATION.host_size, dtype=torch.float32),
            slots=zeros(slots, OBSERVATION.slot_size, dtype=torch.float32),
            blueprints=torch.full((*shape, slots), NO_BLUEPRINT, dtype=torch.int64, device=device),
            exists=zeros(slots),
            op_mask=op_mask,
            slot_mask=zeros(len(Op), slots),
            blueprint_mask=zeros(slots, blueprints),
            costs=zeros(slots, blueprints, dtype=torch.float32),
        )

    @classmethod
    def from_observations(
        cls, observations: Sequence[Observation], blueprints: tuple[str, ...], device: torch.device | str = "cpu"
    ) -> ObservationBatch:
        """A batch [hosts] for a policy with these blueprints. Hosts may differ in their slots and in the blueprints that they have.

        A host's blueprint that is not among these is masked, and so is GERMINATE at a slot where no other fits. A seed of such a
        blueprint, which somebody else germinated, is given NO_BLUEPRINT: all but its kind is seen as of any other seed.
        """
        most = max((len(each.masks.slot_names) for each in observations), default=0)
        batch = cls.padding((len(observations),), max(1, most), len(blueprints))
        # Written through numpy: a call of torch for each tensor of each host takes longer than the network.
        host, slots, seeds, exists, _, slot_mask, blueprint_mask, costs = (tensor.numpy() for tensor in batch.tensors().values())
        numberings: dict[tuple[str, ...], np.ndarray[Any, np.dtype[np.int64]]] = {}
        for row, each in enumerate(observations):
            masks, here = each.masks, len(each.masks.slot_names)
            if masks.blueprint_names not in numberings:
                # [1 + blueprints of the host]: its blueprint indices in the policy's numbering.
                places = [1 + blueprints.index(name) if name in blueprints else NO_BLUEPRINT for name in masks.blueprint_names]
                numberings[masks.blueprint_names] = np.array([NO_BLUEPRINT, *places])
            numbering = numberings[masks.blueprint_names]
            known = numbering[1:] != NO_BLUEPRINT
            columns = numbering[1:][known] - 1
            host[row] = each.host
            slots[row, :here] = each.slots
            seeds[row, :here] = numbering[each.blueprints]
            exists[row, :here] = True
            slot_mask[row, :, :here] = masks.slot_mask
            blueprint_mask[row, :here, columns] = masks.blueprint_mask[:, known].T
            costs[row, :here, columns] = np.log2(1.0 + each.costs[:, known] / max(1, each.report.parameters)).T
        batch.slot_mask[:, Op.GERMINATE] &= batch.blueprint_mask.any(dim=-1)
        batch.op_mask.logical_or_(batch.slot_mask.any(dim=-1))
        return batch.to(device)

    @property
    def shape(self) -> torch.Size:
        """What stands for `...` in every tensor: [hosts] or [hosts, steps]."""
        return self.host.shape[:-1]

    @property
    def slot_count(self) -> int:
        """S, the slots of the host that has most of them; at least 1."""
        return self.slots.shape[-2]

    def map(self, change: Callable[[Tensor], Tensor]) -> ObservationBatch:
        """The same change made to every tensor."""
        return ObservationBatch(**{field.name: change(getattr(self, field.name)) for field in fields(self)})

    def __getitem__(self, index: Index) -> ObservationBatch:
        """The part of the batch at an index of hosts, or of hosts and steps."""
        return self.map(lambda tensor: tensor[index])

    def fill(self, index: tuple[Tensor | int, ...], hosts: ObservationBatch) -> None:
        """Write a batch [hosts] to an index of hosts, or of hosts and steps; slots that it does not have stay as they are."""
        for own, tensor in zip(self.tensors().values(), hosts.tensors().values(), strict=True):
            own[(*index, *(slice(size) for size in tensor.shape[1:]))] = tensor

    def to(self, device: torch.device | str) -> ObservationBatch:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by the name of its field."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def values_of(head: Head, masks: Masks, blueprints: tuple[str, ...]) -> tuple[Any, ...]:
    """What a head of a policy with these blueprints chooses among, in the order of its indices."""
    return blueprints if head is Head.BLUEPRINT else masks.choices(head)


def decision_of(masks: Masks, action: Sequence[int], blueprints: tuple[str, ...]) -> Decision:
    """The decision that an action [8] of a policy with these blueprints stands for."""
    indices = [int(index) for index in action]
    if matters(Head.BLUEPRINT, Op(indices[0])):
        place = HEADS.index(Head.BLUEPRINT)
        indices[place] = masks.blueprint_names.index(blueprints[indices[place]])
    return masks.decision(indices)
