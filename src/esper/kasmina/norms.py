"""Batch norms. Their running statistics lag behind a network that changes, so that in eval mode a growing network looks worse than it
is, by an amount that is mostly chance. Before a measurement they are made anew from training inputs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase as Norm
from torch.utils import _pytree as pytree

from esper.kasmina.attach.running import call, evaluating
from esper.kasmina.attach.variation import Example, batch_size
from esper.leyline.errors import ConfigError, in_a_line

REFERENCE_SAMPLES = 256
"""Training samples that statistics are made anew from before a measurement; see docs/learning.md for how few are enough."""
HARVEST_SAMPLES = 2048
"""The same for a network that is harvested: it is what remains, made once, and 256 samples cost it some tenths of a point."""


def tracked_norms(model: nn.Module) -> list[Norm]:
    """The norms that keep running statistics and use them in eval mode: batch norms, and instance norms that were told to."""
    return [module for module in model.modules() if is_tracked(module)]


def is_tracked(module: nn.Module) -> TypeGuard[Norm]:
    """Whether the module is one of them."""
    return isinstance(module, Norm) and module.running_mean is not None


@contextmanager
def recalibrated(model: nn.Module, norms: Sequence[Norm], batches: Iterable[Example]) -> Iterator[None]:
    """Inside, these norms have the statistics of the network as it is now, on these inputs. Put back bit for bit, whatever happens.

    One forward pass for each batch, without gradients and with everything but the norms in eval mode: each norm takes the mean of its
    batches' statistics, weighted by their samples. A norm that the forward pass does not reach keeps what it has.
    """
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    try:
        _recalibrate(model, norms, batches)
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)  # in place: a compiled graph holds the tensor itself


def _recalibrate(model: nn.Module, norms: Sequence[Norm], batches: Iterable[Example]) -> None:
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), evaluating(model):
        refit(model, norms, batches)


def refit(model: nn.Module, norms: Sequence[Norm], batches: Iterable[Example]) -> None:
    """Give these norms the statistics of the model on these inputs, weighted by their samples. The model is in eval mode, without
    gradients."""
    seen: dict[Norm, int] = {}

    def weigh(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, Norm)
        if norm not in seen:
            norm.reset_running_stats()  # a NaN would outlast any average
        samples = len(args[0])
        seen[norm] = seen.get(norm, 0) + samples
        norm.momentum = samples / seen[norm]

    before = [(norm.momentum, norm.training) for norm in norms]
    handles = [norm.register_forward_pre_hook(weigh) for norm in norms]
    try:
        for norm in norms:
            norm.training = True
        for batch in batches:
            try:
                call(model, batch)
            except Exception as error:
                what = "the model does not run on a batch of training inputs that its batch norms are to be made anew from"
                raise ConfigError(f"{what}: {in_a_line(error)}") from error
    finally:
        for norm, (momentum, training), handle in zip(norms, before, handles, strict=True):
            norm.momentum, norm.training = momentum, training
            handle.remove()


def reference_batches(loader: Iterable[Any], device: torch.device, samples: int) -> list[Example]:
    """Inputs of the loader's first batches on the device, as many as it takes for so many samples.

    A batch is what the model takes (a tensor, or a dict of keyword arguments), or a tuple or list of that and the targets. Random numbers
    that the loader draws, by torch, numpy or Python, are given back: training goes on as if it had not been looked at.
    """
    check_loader(loader)
    batches: list[Example] = []
    left = samples
    with _random_streams_kept(loader):
        for batch in loader:
            inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
            if not isinstance(inputs, (Tensor, tuple, list, dict)):
                raise ConfigError(
                    "recalibrate gives batches of inputs, or of inputs and targets: a tensor, or a tuple or dict of arguments; "
                    f"found a batch of type {type(batch).__name__}"
                )
            size = batch_size(inputs)
            if size == 1 and batches:
                continue  # a last batch of one sample, on which a norm over vectors cannot work
            batches.append(pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs))
            left -= size
            if left <= 0:
                break
    if not batches:
        raise ConfigError("recalibrate gave no batch; expected a loader of training data that can be read again and again")
    return batches


def check_loader(loader: object) -> None:
    """Raise ConfigError for what cannot be read anew before each measurement."""
    if not isinstance(loader, Iterable) or isinstance(loader, (Tensor, str, dict)):
        raise ConfigError(f"recalibrate is a loader of training batches, such as a DataLoader or a list, found {type(loader).__name__}")
    if isinstance(loader, Iterator):
        raise ConfigError(
            f"recalibrate is read anew before each measurement, and a {type(loader).__name__} can be read once; "
            "give the DataLoader itself, or a list of batches"
        )


@contextmanager
def _random_streams_kept(loader: object) -> Iterator[None]:
    own = [getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None)]
    generators = [(each, each.get_state()) for each in own if isinstance(each, torch.Generator)]
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        for generator, state in generators:
            generator.set_state(state)
