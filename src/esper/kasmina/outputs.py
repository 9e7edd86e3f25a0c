"""What a module returns: a tensor of features, or containers that hold it, maybe in several places."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.utils import _pytree as pytree

DICTS = (dict, OrderedDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A tuple, list or dict in a module's output, and where in it the features are."""

    kind: type
    length: int
    parts: tuple[tuple[int | str, Holder | None], ...]
    """Index, key or name of a field of each item that is the features, None, or that holds them."""

    def pick(self, output: Any) -> Any:
        """The features in such an output."""
        key, inner = self.parts[0]
        item = self._item(output, key)
        return item if inner is None else inner.pick(item)

    def put(self, output: Any, features: Any) -> Any:
        """Such an output with other features, wherever they are; the rest, of whatever length, stays.

        Only asks for items and slices, adds, or calls the container's own methods, so that it can be traced.
        """
        changed = {key: features if inner is None else inner.put(self._item(output, key), features) for key, inner in self.parts}
        if self._is_named:
            return output._replace(**{str(name): item for name, item in changed.items()})
        if self.kind in DICTS:
            return output | changed
        if self.kind not in (tuple, list):  # a class of the user's own, which is made from as many items as the probe saw
            items = [changed[i] if i in changed else output[i] for i in range(self.length)]
            # A trace would take it for the tuple or list that it is.
            return output.tracer.create_proxy("call_function", self.kind, (items,), {}) if isinstance(output, Proxy) else self.kind(items)
        for key, item in changed.items():
            assert isinstance(key, int)
            between = self.kind((item,))
            output = output[:key] + between + output[key + 1 :] if key else between + output[1:]
        return output

    @property
    def _is_named(self) -> bool:
        return hasattr(self.kind, "_fields")

    def _item(self, output: Any, key: int | str) -> Any:
        return getattr(output, str(key)) if self._is_named else output[key]


def holder_of(output: Any, features: Tensor) -> Holder | None:
    """Where in an output these very features are; None when they are not inside, or are the output itself."""
    if isinstance(output, (tuple, list)):
        items = zip(getattr(output, "_fields", range(len(output))), output, strict=True)
    elif type(output) in DICTS:
        items = output.items()
    else:
        return None
    parts = []
    for key, item in items:
        inner = None if item is features else holder_of(item, features)
        if item is features or inner is not None:
            parts.append((key, inner))
    return Holder(kind=type(output), length=len(output), parts=tuple(parts)) if parts else None


def replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """The output with `new` wherever it holds the very tensor `old`: a module may hand on its features twice, to the next and as a skip."""
    if output is old:
        return new
    if isinstance(output, (tuple, list)):
        items = [replaced(item, old, new) for item in output]
        if all(a is b for a, b in zip(items, output, strict=True)):
            return output
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    if type(output) in DICTS:
        values = {key: replaced(item, old, new) for key, item in output.items()}
        return output if all(values[key] is item for key, item in output.items()) else type(output)(values)
    return output


def floating_leaves(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output, in order."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def difference(a: Any, b: Any) -> float:
    """Largest difference between two outputs, as a share of the largest finite size in a's tensors where that is above 1.

    Infinities and NaNs must be in the same places; outputs with other tensors, or with others in number, are infinitely apart.
    """
    pairs = [floating_leaves(a), floating_leaves(b)]
    if [leaf.shape for leaf in pairs[0]] != [leaf.shape for leaf in pairs[1]]:
        return float("inf")
    return max((_apart(x, y) for x, y in zip(*pairs, strict=True)), default=0.0)


def _apart(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, (a - b).abs())
    scale = torch.where(a.isfinite(), a.abs(), 0.0)
    found = float(apart.max()) / max(1.0, float(scale.max()))
    return found if found == found else float("inf")
