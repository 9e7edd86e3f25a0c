"""Running a model without leaving a trace."""

from __future__ import annotations

import copy
import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from esper.kasmina.attach.variation import Example
from esper.leyline.errors import SlotError


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the model without leaving a trace: buffers are copies inside, attributes and random streams are put back."""
    buffers = [(module, name, value) for module in model.modules() for name, value in module.named_buffers(recurse=False)]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    python_stream, numpy_stream = random.getstate(), np.random.get_state()
    with _attributes_kept(model), torch.random.fork_rng(devices=devices):
        try:
            for module, name, value in buffers:
                setattr(module, name, value.clone())
            yield
        finally:
            for module, name, value in buffers:
                setattr(module, name, value)
            random.setstate(python_stream)
            np.random.set_state(numpy_stream)


@contextmanager
def _attributes_kept(model: nn.Module) -> Iterator[None]:
    """Attributes of all modules are put back, and what lists, dicts and sets among them hold.

    Not so where the model writes to its parameters: it may keep account of that in an attribute.
    """
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    own = [value for _, before in attributes for name, value in before.items() if name not in _OF_MODULES or name in _HOOKS]
    containers = [(value, copy.copy(value)) for value in own if type(value) in (dict, list, set, OrderedDict)]
    written = _writings(model)
    try:
        yield
    finally:
        if _writings(model) == written:
            for held, before in attributes:
                if held.keys() != before.keys() or any(held[name] is not value for name, value in before.items()):
                    held.clear()
                    held.update(before)
            for container, content in containers:
                container.clear()
                container.extend(content) if isinstance(container, list) else container.update(content)


_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has: its tensors, submodules and hooks."""
_HOOKS = frozenset(name for name in _OF_MODULES if "forward" in name and "hooks" in name)
"""Those of them that a model may fill itself in its first forward pass, and note in an attribute that it has."""


def _writings(model: nn.Module) -> list[tuple[type, int]]:
    """What changes when a parameter is written to, or gets its shape."""
    return [(type(p), 0 if p.is_inference() else p._version) for p in model.parameters()]


def call(model: nn.Module, example: Example) -> Any:
    """Run the model on an example: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, (tuple, list)) else model(example)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Each module's mode is put back on the way out, whatever it is set to inside."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients; each module's own mode is put back."""
    with modes_kept(model), torch.no_grad():
        model.eval()
        yield


def check_parameters(model: nn.Module) -> None:
    """Raise SlotError for what is no model, and for parameters that seeds, which are plain tensors, cannot be trained together with."""
    if not isinstance(model, nn.Module):
        raise SlotError(f"a model is an nn.Module, found {type(model).__name__}")
    sharding = sys.modules.get("torch.distributed.tensor")  # imported by whoever shards; it takes a second that others need not wait
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise SlotError(f"parameter {name!r} has no shape yet, as its layer is lazy; run the model on an example once, then wrap it")
        if parameter.is_meta:
            raise SlotError(f"parameter {name!r} is on the meta device, where nothing can grow; give the model its weights first")
        if sharding is not None and isinstance(parameter, sharding.DTensor):
            raise SlotError(f"parameter {name!r} is sharded, and seeds are not; grow the model first and shard what is harvested")
