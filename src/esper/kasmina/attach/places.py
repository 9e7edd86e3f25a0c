"""Proposing places for slots in a model that nobody has prepared for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.attach.probe import Example, Sighting, examine, features_of, last_order, sight
from esper.kasmina.harvest import can_be_harvested
from esper.kasmina.slot import Place
from esper.leyline.reports import Topology

DROPOUT = nn.modules.dropout._DropoutNd


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
    Without such blocks, or inside a lone chain of layers, a place is behind a layer and its norm and activation. Each place has
    been tried: the model runs with a plain module in its stead, so what grows there can be harvested.
    """
    sightings, output = sight(model, example)
    usable = _usable(sightings, output, example, causal)
    blocks = _outermost(path for path in usable if _is_block(sightings[path].module))
    if len(blocks) == 1:  # a lone wrapper around the whole trunk: look inside
        inner = [path for path in usable if path.startswith(blocks[0] + ".")]
        deeper = _outermost(path for path in inner if _is_block(sightings[path].module))
        blocks = deeper or blocks
    layers = [path for path in _layers(usable, sightings) if not blocks or path.startswith(_lone_chain(blocks, sightings))]
    ends = [features_of(sightings[block]) for block in blocks]
    chosen = [*blocks, *(path for path in layers if not any(_is_same(features_of(sightings[path]), end) for end in ends))]
    chosen.sort(key=lambda path: sightings[path].order)
    kept = [usable[path] for path in chosen]
    if not can_be_harvested(model, example, kept):  # all at once if that works, else one by one
        kept = [place for place in kept if can_be_harvested(model, example, [place])]
    return [_propose(place, sightings[place.path], block=place.path in blocks) for place in kept]


def _usable(sightings: Mapping[str, Sighting], output: Any, example: Example, causal: bool) -> dict[str, Place]:
    """Every place that could carry a slot, the head apart: growing there means changing the answer itself."""
    last = last_order(sightings)
    ends = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    ends += [features_of(s) for s in sightings.values() if s.order == last]  # a softmax may still follow
    usable = {}
    for path, seen in sightings.items():
        place = examine(sightings, path, example, causal=causal, stated=None)
        if isinstance(place, Place) and not any(_is_same(features_of(seen), end) for end in ends):
            usable[path] = place
    return usable


def _is_block(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) or any(any(True for _ in child.parameters()) for child in module.children())


def _outermost(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    return [path for path in listed if not any(path.startswith(other + ".") for other in listed)]


def _lone_chain(blocks: list[str], sightings: Mapping[str, Sighting]) -> str | tuple[str, ...]:
    """What the paths of layers worth proposing begin with: those of a single Sequential, whose layers are called one after another."""
    return blocks[0] + "." if len(blocks) == 1 and isinstance(sightings[blocks[0]].module, nn.Sequential) else ()


def _layers(usable: Mapping[str, Place], sightings: Mapping[str, Sighting]) -> list[str]:
    """For each layer with weights the last module beside it that norms or activates its features, or the layer itself."""
    ends: list[str] = []
    shape: tuple[int, ...] | None = None
    called = [s for s in sightings.values() if s.calls == 1 and not any(True for _ in s.module.children())]
    for seen in sorted(called, key=lambda s: s.order):
        here = usable[seen.path].example_shape if seen.path in usable else None
        if any(p.dim() > 1 for p in seen.module.parameters()):
            ends.append(seen.path)
            shape = here
        elif here is None or here != shape or isinstance(seen.module, DROPOUT) or _parent(seen.path) != _parent(ends[-1]):
            shape = None  # something else begins here; what follows is not this layer's
        else:
            ends[-1] = seen.path
    return [path for path in ends if path in usable]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _propose(place: Place, seen: Sighting, *, block: bool) -> Proposal:
    kind = type(seen.module).__name__
    what = f"the end of a block ({kind})" if block else f"the end of a layer ({kind})"
    reason = f"{what}, called once, {100 * place.position:.0f} % into the forward pass"
    return Proposal(place.path, place.shape.topology, place.shape.width, place.example_shape, reason)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same features, perhaps in another shape."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.numel() == b.numel() and a.data_ptr() == b.data_ptr())
    return a is b
