"""Proposing places for slots in a model that nobody has prepared for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.attach.graph import Role
from esper.kasmina.attach.proposal import Proposal, Proposals
from esper.kasmina.attach.sighting import Sighting, features_of, last_order, position
from esper.kasmina.attach.survey import Survey, has_slot
from esper.kasmina.attach.variation import Example
from esper.kasmina.slot import Place
from esper.kasmina.trial import unharvestable
from esper.leyline.errors import SlotError

DROPOUT = nn.modules.dropout._DropoutNd
LARGE = 0.6
"""A block with more than this share of the model's layers is taken apart, if there are blocks inside it."""
LARGE_STAGE = 0.4
"""The same for a block that repeats one kind of block inside it, as a stage does."""
BEGINNING = -1.0
"""Before all positions, the first of which is 0."""
LONGEST_GAP = 0.6
"""A longer share of the forward pass without a place is filled with the ends of layers."""
NO_SAMPLES = "its output does not depend on the samples, as that of a table of positions"
MASKED = -1e4
"""Additive attention masks hold nothing but zeros and values below this."""


def find_slots(model: nn.Module, example: Example, *, causal: bool = True) -> Proposals:
    """Good places for slots, in the order of the forward pass; `.rejected` of what is returned says why each other module is none.

    model: any nn.Module; it is left exactly as it was. example: an input for it, of at least two samples: a tensor, a tuple of positional
    arguments, or a dict of keyword arguments. causal: whether features of tokens may only look back.

    Blocks are preferred: the outermost modules that hold others and whose features further layers work on; a block that is most of the
    model is taken apart into those inside it. Without blocks, or where they leave much of the forward pass without a place, a place is
    behind a layer and its norm and activation. Each place has been tried: what grows there can be harvested.
    """
    survey = Survey(model, example)
    seen = survey.sightings
    taken = next((path for path in seen if has_slot(seen[path].module)), None)
    if taken is not None:
        raise SlotError(f"the model carries slots already, at {taken!r} for one; look for places before it is wrapped, or after release()")
    usable, rejected = _usable(survey, causal)
    once = [path for path in usable if seen[path].calls == 1 and _is_block(seen[path].module)]
    blocks = _without_parts_of_heads(_blocks(once, seen), [path for path in rejected if survey.role(path) is Role.HEAD], seen)
    ends = [features_of(seen[block].output) for block in blocks]
    layers = [path for path in _layers(usable, seen) if not any(_is_same(features_of(seen[path].output), end) for end in ends)]
    repeated = _blocks([path for path in usable if seen[path].calls > 1 and _is_block(seen[path].module)], seen)
    found = [*blocks, *_where_blocks_are_missing(blocks, layers, repeated, seen)] or _outermost(usable)
    chosen = sorted(found, key=lambda path: seen[path].order)
    refused = unharvestable(model, example, [usable[path] for path in chosen])
    kept = [path for path in chosen if path not in refused]
    rejected |= refused
    rejected |= {path: _why_not(path, kept, seen) for path in usable if path not in kept and path not in refused}
    proposals = [_propose(usable[path], seen[path]) for path in kept]
    return Proposals(proposals, {path: rejected[path] for path in seen if path in rejected})


def _usable(survey: Survey, causal: bool) -> tuple[dict[str, Place], dict[str, str]]:
    """Every place where growing makes sense, and for all other modules why not."""
    usable: dict[str, Place] = {}
    rejected: dict[str, str] = {}
    unmoved: dict[str, Place] = {}
    first = min((s.order for s in survey.sightings.values() if s.calls and _has_weights(s)), default=0)
    last = last_order(survey.sightings)
    ends = [leaf for leaf in pytree.tree_leaves(survey.output) if isinstance(leaf, Tensor)]
    ends += [features_of(s.output) for s in survey.sightings.values() if s.order == last]  # a softmax may still follow
    for path, seen in survey.sightings.items():
        place = survey.examine(path, causal=causal)
        if isinstance(place, str):
            rejected[path] = place
            continue
        features = features_of(seen.output)
        reason = "no weight comes before it: it hands on the input" if seen.order < first else _senseless(survey, path, features, place)
        if not reason and survey.role(path) is not Role.HIDDEN and any(_is_same(features, end) for end in ends):
            reason = "it gives the model's output; whatever grows there changes the answer itself"
        if reason:
            rejected[path] = reason
            if reason is NO_SAMPLES:
                unmoved[path] = place
        else:
            usable[path] = place
    if not usable:  # a network whose signal vanishes altogether is as good as one that does not see its input
        usable, rejected = unmoved, {path: reason for path, reason in rejected.items() if path not in unmoved}
    return usable, rejected


def _senseless(survey: Survey, path: str, features: Tensor, place: Place) -> str:
    """Why a slot would work there and make no sense; empty when it would."""
    role = survey.role(path)
    if role is Role.HEAD:
        return "it gives the model's output, without any weight behind it; whatever grows there changes the answer itself"
    if role is Role.DEAD:
        return "the model's output does not depend on it, so no gradient would arrive"
    if role is Role.CUT:
        return "its part of the forward pass runs without gradients, so none would arrive"
    if not survey.depends(path):
        return NO_SAMPLES
    if not bool(features.isfinite().all()):
        return "its output is not finite everywhere, as that of a mask"
    if bool((features <= 0).all()) and float(features.min()) < MASKED:
        return "its output is a mask"
    sums = features.sum(place.layout.channels, dtype=torch.float32)
    if bool((features >= 0).all()) and bool(((sums - 1.0).abs() < 1e-3).all()):
        return "its output is a distribution: each sums to one, and would no longer"
    return ""


def _blocks(candidates: Sequence[str], seen: Mapping[str, Sighting]) -> list[str]:
    """The outermost of these blocks; those that are most of the model taken apart, as far as there are at least two inside."""
    total = _total(seen)
    waiting, kept = _outermost(candidates), []
    alone = len(waiting) == 1
    while waiting:
        path = waiting.pop()
        inside = _outermost(other for other in candidates if other.startswith(path + "."))
        share = 1.0 if alone else seen[path].leaves / total
        repeats = _repeats(path, inside, seen)
        large = share > (LARGE_STAGE if repeats else LARGE)
        # One block inside is the trunk, if it is most of this one. What is called several times is a unit, unless it is a stage.
        several = len(inside) > 1 or (inside and seen[inside[0]].leaves > seen[path].leaves / 2)
        if large and (repeats or (several and seen[path].calls == 1)):
            waiting += inside
        else:
            kept.append(path)
        alone = False
    return sorted(kept, key=lambda path: seen[path].order)


def _total(seen: Mapping[str, Sighting]) -> int:
    """Calls of modules with weights of their own in the whole model."""
    return max(1, sum(s.calls for s in seen.values() if _has_weights(s)))


def _has_weights(seen: Sighting) -> bool:
    return any(True for _ in seen.module.parameters(recurse=False))


def _repeats(path: str, inside: Sequence[str], seen: Mapping[str, Sighting]) -> bool:
    """Whether most of a block is several blocks of one kind."""
    layers: dict[type, list[int]] = {}
    for other in inside:
        layers.setdefault(type(seen[other].module), []).append(seen[other].leaves)
    return any(len(each) > 1 and 2 * sum(each) > seen[path].leaves for each in layers.values())


def _without_parts_of_heads(blocks: Sequence[str], heads: Collection[str], seen: Mapping[str, Sighting]) -> list[str]:
    """The blocks less those inside one that gives the output, where others of its kind beside it are proposed whole."""

    def is_last_of_its_kind(head: str) -> bool:
        kind, beside = type(seen[head].module), _parent(head)
        return any(_parent(block) == beside and type(seen[block].module) is kind for block in blocks)

    last = [head for head in heads if is_last_of_its_kind(head)]
    return [block for block in blocks if not any(block.startswith(head + ".") for head in last)]


def _where_blocks_are_missing(
    blocks: Sequence[str], layers: Sequence[str], repeated: Sequence[str], seen: Mapping[str, Sighting]
) -> list[str]:
    """The layers inside a lone chain of them, and what lies in a long part of the forward pass without any block: blocks that are called
    several times or, where there is none, layers."""
    lone = blocks[0] if len(blocks) == 1 and isinstance(seen[blocks[0]].module, nn.Sequential) else None
    chain = [path for path in layers if lone and path.startswith(lone + ".")]
    units = [block for block in blocks if seen[block].leaves <= LARGE * _total(seen) and not isinstance(seen[block].module, nn.Sequential)]
    layers = [path for path in layers if not any(path.startswith(unit + ".") for unit in units)]
    found = list(chain)
    at = {path: position(seen[path].order, seen) for path in (*blocks, *layers, *repeated)}
    for start, end in itertools.pairwise(sorted([BEGINNING, *(at[path] for path in (*blocks, *chain)), 1.0])):
        if not blocks or end - max(start, 0.0) > LONGEST_GAP:
            between = [path for path in repeated if start < at[path] < end]
            found += between or [path for path in layers if start < at[path] < end]
    return found


def _why_not(path: str, kept: Sequence[str], seen: Mapping[str, Sighting]) -> str:
    """Why a usable place is not proposed."""
    outer = next((other for other in kept if path.startswith(other + ".")), None)
    if outer is not None:
        return f"it is inside {outer!r}, which is proposed"
    inner = [other for other in kept if other.startswith(path + ".")]
    if inner:
        return f"{len(inner)} places inside it are proposed"
    if seen[path].calls > 1:
        return f"it is called {seen[path].calls} times in one forward pass; a slot there would work on all of them"
    return "there are better places near it"


def _is_block(module: nn.Module) -> bool:
    """Whether a module is made of others with weights; those that only make its own weight do not count."""
    children = (child for name, child in module.named_children() if name != "parametrizations")
    return isinstance(module, nn.RNNBase) or any(any(True for _ in child.parameters()) for child in children)


def _outermost(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    known = set(listed)
    return [path for path in listed if not any(outer in known for outer in _above(path))]


def _above(path: str) -> Iterable[str]:
    while "." in path:
        path = _parent(path)
        yield path


def _layers(usable: Mapping[str, Place], seen: Mapping[str, Sighting]) -> list[str]:
    """For each layer with weights the last module beside it that norms or activates its features, or the layer itself."""
    ends: list[str] = []
    shape: tuple[int, ...] | None = None
    called = [s for s in seen.values() if s.calls == 1 and not _is_block(s.module)]
    before: Any = None
    for each in sorted(called, key=lambda s: s.order):
        here = usable[each.path].example_shape if each.path in usable else None
        features, before = before, features_of(each.output)
        if any(p.dim() > 1 for p in each.module.parameters()):
            ends.append(each.path)
            shape = here
        elif shape is not None and here is not None and here != shape and _is_same(before, features):
            shape = here  # the same features in another shape, which a norm may follow
        elif not ends or here is None or here != shape or isinstance(each.module, DROPOUT) or _parent(each.path) != _parent(ends[-1]):
            shape = None  # something else begins here; what follows is not this layer's
        else:
            ends[-1] = each.path
    return [path for path in ends if path in usable]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _propose(place: Place, seen: Sighting) -> Proposal:
    what = f"the end of a {'block' if _is_block(seen.module) else 'layer'} ({type(seen.module).__name__})"
    calls = "once" if seen.calls == 1 else f"{seen.calls} times"
    reason = f"{what}, called {calls}, {100 * place.position:.0f} % into the forward pass"
    return Proposal(place.path, place.shape.topology, place.shape.width, place.example_shape, place.layout.axes, reason)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same features, perhaps in another shape."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.numel() == b.numel() and a.data_ptr() == b.data_ptr())
    return a is b
