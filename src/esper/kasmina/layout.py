"""Which axis of a host's features is what, and how a seed gets to see them in the order it works on.

A layout is written with one letter for each axis: B the batch, C the features, T a place in a sequence, H and W one in an image, any
other letter something that is gone through one by one, as the frames of a video: "BCHW", "BHWC", "BTC", "TBC", "BCDHW".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from esper.leyline.errors import SlotError, unknown
from esper.leyline.reports import Topology

OWN_AXES: dict[Topology, str] = {Topology.MAP2D: "BCHW", Topology.MAP1D: "BCT", Topology.TOKENS: "BTC", Topology.VECTOR: "BC"}
"""The axes that the seeds of each topology work on."""
MOST_AXES = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of the features at a slot. A seed sees them as its topology has them: other axes are folded into the batch."""

    axes: str
    topology: Topology = field(init=False)
    order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Axes of the features in the order of a seed's: first those that its batch is folded from."""
    folded: int = field(init=False, repr=False, compare=False)
    """How many axes a seed's batch is folded from."""

    def __post_init__(self) -> None:
        topology = _topology(self.axes)
        own = OWN_AXES[topology][1:]
        rows = "B" + "".join(axis for axis in self.axes if axis not in own and axis != "B")
        object.__setattr__(self, "topology", topology)
        object.__setattr__(self, "order", tuple(self.axes.index(axis) for axis in rows + own))
        object.__setattr__(self, "folded", len(rows))

    @property
    def plain(self) -> bool:
        """Whether features lie as a seed takes them."""
        return self.axes == OWN_AXES[self.topology]

    @property
    def batch(self) -> int:
        """The axis of the batch."""
        return self.axes.index("B")

    @property
    def channels(self) -> int:
        """The axis of the features' channels."""
        return self.axes.index("C")

    def arrange(self, h: Tensor) -> Tensor:
        """Features of the host as a seed takes them."""
        if self.plain:
            return h
        ordered = h.permute(self.order)
        return (ordered.flatten(0, self.folded - 1) if self.folded > 1 else ordered).contiguous()

    def restore(self, s: Tensor, h: Tensor) -> Tensor:
        """What a seed, or a gate with one channel, made of `arrange(h)`, in the host's own order."""
        if self.plain:
            return s
        if self.folded > 1:
            s = s.unflatten(0, [h.shape[axis] for axis in self.order[: self.folded]])
        return s.permute([self.order.index(axis) for axis in range(len(self.axes))])

    def arranged(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of `arrange(h)` for an h of this shape."""
        rows = 1
        for axis in self.order[: self.folded]:
            rows *= shape[axis]
        return rows, *(shape[axis] for axis in self.order[self.folded :])

    def __str__(self) -> str:
        return self.axes


def named_layout(stated: Topology | str) -> Layout:
    """A layout as a user states it: by its axes, or by a topology whose own axes it has."""
    if stated in list(Topology):
        return Layout(OWN_AXES[Topology(stated)])
    if not isinstance(stated, str) or not stated.isupper():
        raise unknown("topology", str(stated), [kind.value for kind in Topology])
    return Layout(stated)


def _topology(axes: str) -> Topology:
    """What can grow in features with these axes; maps before sequences, as the frames of a video are maps."""
    letters = set(axes)
    if len(letters) != len(axes) or not axes.isalpha() or not {"B", "C"} <= letters or len(axes) > MOST_AXES:
        raise SlotError(
            f'axes are written with one letter each, B for the batch and C for the features, as "BCHW" or "TBC"; found {axes!r}'
        )
    if {"H", "W"} <= letters:
        return Topology.MAP2D
    if "T" in letters:
        return Topology.TOKENS if axes.index("C") > axes.index("T") else Topology.MAP1D
    if len(axes) == 2:
        return Topology.VECTOR
    raise SlotError(f"axes {axes!r} have neither T, a place in a sequence, nor H and W, a place in an image; one of them is needed")
