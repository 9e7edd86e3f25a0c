"""Proposing places for slots in a model that nobody has prepared for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from esper.kasmina.probe import Example, Sighting, examine, sight
from esper.kasmina.slot import Place
from esper.leyline.reports import Topology


@dataclass(frozen=True, slots=True)
class Proposal:
    """A module whose output could carry a slot, and why it is a good place."""

    path: str
    topology: Topology
    width: int
    shape: tuple[int, ...]
    """Shape of the features for the example input."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.topology} of width {self.width}, {self.reason}"


def find_slots(model: nn.Module, example: Example, *, causal: bool = True) -> list[Proposal]:
    """Good places for slots, in the order of the forward pass; an empty list when there is none.

    Blocks are preferred: the outermost modules that hold others, are called once, and do not give the model's own output.
    A model without such blocks is proposed its layers with parameters instead.
    """
    sightings = sight(model, example)
    last = max((s.order for s in sightings.values()), default=0)
    usable: dict[str, Place] = {}
    for path in sightings:
        place = examine(sightings, path, example, causal=causal, stated=None, last=last)
        if isinstance(place, Place) and not _gives_the_output(sightings, path, last):
            usable[path] = place
    blocks = [p for p in usable if _has_children_with_parameters(sightings[p].module)]
    outermost = [p for p in blocks if not any(p.startswith(other + ".") for other in blocks)]
    if len(outermost) == 1:  # a lone wrapper around the whole trunk: look one level deeper
        inner = [p for p in blocks if p != outermost[0]]
        deeper = [p for p in inner if not any(p.startswith(other + ".") for other in inner)]
        outermost = deeper or outermost
    chosen = outermost or [p for p in usable if any(True for _ in sightings[p].module.parameters(recurse=False))]
    chosen.sort(key=lambda p: sightings[p].order)
    return [_propose(usable[p], sightings, bool(outermost)) for p in chosen]


def _propose(place: Place, sightings: Mapping[str, Sighting], block: bool) -> Proposal:
    kind = type(sightings[place.path].module).__name__
    what = f"the end of a block ({kind})" if block else f"behind a layer with parameters ({kind})"
    reason = f"{what}, called once, {100 * place.position:.0f} % into the forward pass"
    return Proposal(place.path, place.shape.topology, place.shape.width, place.example_shape, reason)


def _has_children_with_parameters(module: nn.Module) -> bool:
    return any(any(True for _ in child.parameters()) for child in module.children())


def _gives_the_output(sightings: Mapping[str, Sighting], path: str, last: int) -> bool:
    """Whether this module's output is what the whole model returns: the head, where growing means changing the answer itself."""
    final = next(s for s in sightings.values() if s.order == last).output
    output = sightings[path].output
    if isinstance(final, Tensor) and isinstance(output, Tensor):
        return output is final or (output.shape == final.shape and output.data_ptr() == final.data_ptr())
    return output is final
