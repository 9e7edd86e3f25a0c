"""torch's transformer layers have a fast path for inference. They leave it where a hook hangs on them or on anything inside them, and the
encoder packs padded samples into nested tensors, which that path alone takes. So a slot that does nothing must not keep a layer from
it, and one that does something must never be handed nested features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from esper.kasmina.slot import Slot


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Inside, transformer layers compute in eval mode as they do in training, and all features are ordinary tensors."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def packing_encoders(host: nn.Module, path: str) -> list[nn.TransformerEncoder]:
    """The encoders around the module at this path that may hand on nested tensors."""
    encoders = [module for module in _way(host, path)[:-1] if isinstance(module, nn.TransformerEncoder)]
    return [encoder for encoder in encoders if encoder.use_nested_tensor]


class FastPath:
    """The slots of a model that lie in transformer layers of torch's, and the handles of their hooks."""

    def __init__(self, host: nn.Module, slots: Iterable[Slot], handles: Sequence[RemovableHandle]) -> None:
        self._host = host
        ways = [(slot, handle, _way(host, slot.place.path)) for slot, handle in zip(slots, handles, strict=True)]
        self._inside = [found for found in ways if any(isinstance(module, nn.TransformerEncoderLayer) for module in found[2])]

    def __bool__(self) -> bool:
        return bool(self._inside)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, hooks that would do nothing are off, so that layers take the path that they take without slots. An encoder with a seed at
        work in it hands on ordinary tensors."""
        off, dense = [], []
        for slot, handle, way in self._inside:
            hooks = handle.hooks_dict_ref()
            if slot.works:
                dense += packing_encoders(self._host, slot.place.path)
            # What is compiled with a hook or without one stays so.
            elif not way[-1].training and hooks is not None and handle.id in hooks and not any(map(_is_compiled, way)):
                off.append((hooks, handle.id, list(hooks)))
        own = [(hooks, id, hooks.pop(id), order) for hooks, id, order in off]
        for encoder in dense:
            encoder.use_nested_tensor = False
        try:
            yield
        finally:
            for encoder in dense:
                encoder.use_nested_tensor = True
            for hooks, id, hook, order in own:
                hooks[id] = hook
                for other in order[order.index(id) + 1 :]:  # those of others run in the order in which they were registered
                    if other in hooks:
                        hooks.move_to_end(other)


def _way(host: nn.Module, path: str) -> list[nn.Module]:
    """The modules from the host down to the one at a path, itself included."""
    names = path.split(".")
    return [host, *(host.get_submodule(".".join(names[: i + 1])) for i in range(len(names)))]


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules
