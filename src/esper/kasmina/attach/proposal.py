"""What is said of a network's modules when places for slots are looked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from esper.leyline.reports import Topology


@dataclass(frozen=True, slots=True)
class Proposal:
    """A module whose output could carry a slot, and why it is a good place."""

    path: str
    topology: Topology
    width: int
    shape: tuple[int, ...]
    """Shape of the features for the example input."""
    axes: str
    """Which axis of them is what: B the batch, C the features; see `esper.kasmina.layout`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.topology} of width {self.width}, {self.reason}"


class Proposals(list[Proposal]):
    """Places for slots, in the order of the forward pass, and for every other module why it is none of them."""

    def __init__(self, proposals: Iterable[Proposal], rejected: Mapping[str, str]) -> None:
        super().__init__(proposals)
        self.rejected = dict(rejected)
        """Path of each module that is not proposed, and the reason."""

    def __str__(self) -> str:
        if not self:
            return self.why_none()
        return "\n".join(map(str, self))

    def why_none(self) -> str:
        """Why nothing is proposed: the commonest reasons, each with a module that it holds for."""
        kinds: dict[str, list[str]] = {}
        for path, reason in self.rejected.items():
            kinds.setdefault(reason, []).append(path)
        common = sorted(kinds.items(), key=lambda kind: -len(kind[1]))[:3]
        told = "; ".join(f"{paths[0]!r}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}" for reason, paths in common)
        return f"no place for a slot was found among {len(self.rejected)} modules" + (f" ({told})" if told else "")
