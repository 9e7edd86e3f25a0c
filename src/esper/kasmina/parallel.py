"""Noticing what wraps a growing model to train it in several processes: DistributedDataParallel is told what to leave alone, and the model
what it belongs to. What shards parameters is refused."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from esper.kasmina.growable import Growable
from esper.kasmina.ranks import Ranks
from esper.leyline.errors import RankError


def notice_wrapping() -> None:
    """From here on, whatever wraps a Growable is noticed as it registers the module that it wraps."""
    register_module_module_registration_hook(_notice)


class Names(set[str]):
    """Names of tensors: those that it holds, and all that ever begin with one of some prefixes."""

    def __init__(self, names: Iterable[str], prefixes: tuple[str, ...]) -> None:
        super().__init__(names)
        self.prefixes = prefixes

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith(self.prefixes))


def _notice(module: nn.Module, name: str, child: nn.Module | None) -> None:
    if isinstance(module, DistributedDataParallel) and child is not None:
        _join(module, child)
    elif isinstance(module, Growable) and child is not None and any(_shards(inner) for inner in child.modules()):
        raise RankError("the model is sharded by FullyShardedDataParallel, and seeds are not; grow it first and shard what is harvested")
    elif isinstance(module, Growable) and child is not None and any(isinstance(each, DistributedDataParallel) for each in child.modules()):
        raise RankError("DistributedDataParallel goes around the Growable, not inside: DistributedDataParallel(Growable(net, ...))")
    elif _shards(module) and child is not None and any(isinstance(each, Growable) for each in child.modules()):
        raise RankError(
            "FullyShardedDataParallel shards parameters, and seeds that grow later cannot be; wrap the Growable in "
            "DistributedDataParallel, or grow it first and shard what is harvested"
        )


def _join(wrapper: DistributedDataParallel, child: nn.Module) -> None:
    """Called while the wrapper is built: it knows the group and what it was told to ignore, and has not looked for parameters to reduce."""
    grown = {f"{path}." if path else "": module for path, module in child.named_modules() if isinstance(module, Growable)}
    if not grown:
        return
    told = wrapper.parameters_to_ignore
    # Seeds come and go, with buffers of their own, and meters count for each process by itself.
    prefixes = tuple(prefix + part for prefix in grown for part in ("slots.", "host_meter."))
    wrapper.parameters_to_ignore = Names(told, prefixes)
    seeds = {id(p) for module in grown.values() for p in module.slots.parameters()}
    wrapper._module_parameters = [p for p in wrapper._module_parameters if id(p) not in seeds]
    wrapping = weakref.ref(wrapper)

    def joining() -> bool:
        found = wrapping()
        return found is not None and found._join_config.enable

    for prefix, module in grown.items():
        local = [name.removeprefix(prefix) for name in told if name.startswith(prefix)]
        ranks = Ranks(wrapper.process_group, next(module.host.parameters()).device, local, joining)
        ranks.join(module.slots)
        module.ranks = ranks


def _shards(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # imported by whoever shards
    return fsdp is not None and isinstance(module, getattr(fsdp, "FullyShardedDataParallel", ()))
