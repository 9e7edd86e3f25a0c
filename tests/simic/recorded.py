"""A stand-in for a CUDA graph on the CPU: operations are recorded with the tensors that they were given, and done again on these.

As on a GPU nothing of Python runs again: what a number, a setting or the place of a tensor was is as it was when it was recorded. What a
GPU cannot capture is refused: reading a tensor's values, sizes that depend on them, and numbers of Python's that would have to be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REFUSED = ("_local_scalar_dense", "nonzero", "lift_fresh", "is_nonzero", "equal", "masked_select", "unique")


class Recorded(TorchDispatchMode):
    """What a piece of work did. Recording does it already, so that the first replay has nothing to do."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any], tuple[bool, bool]]] = []
        with self:
            work()
        self.done = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in REFUSED, f"{name} cannot be captured"
        if name in ("index", "index_put", "index_put_"):
            assert all(each is None or each.dtype is not torch.bool for each in args[1]), "an index whose size depends on values"
        found = function(*args, **(kwargs or {}))
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        if not _is_view(args, found):  # of memory that another operation writes
            self.operations.append((function, args, kwargs or {}, tree_leaves(found), modes))
        return found

    def replay(self) -> None:
        if self.done:
            self.done = False
            return
        for function, args, kwargs, before, modes in self.operations:
            with torch.inference_mode(modes[0]), torch.set_grad_enabled(modes[1]), torch._C._AutoDispatchBelowAutograd():
                for old, new in zip(before, tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old is not new:
                        old.copy_(new)


def _is_view(args: Any, found: Any) -> bool:
    """Whether a result is another tensor on memory that was given; what is written in place is the same tensor."""
    given = [each for each in tree_leaves(args) if isinstance(each, Tensor)]
    memory = {each.untyped_storage().data_ptr() for each in given}
    return isinstance(found, Tensor) and all(found is not each for each in given) and found.untyped_storage().data_ptr() in memory
