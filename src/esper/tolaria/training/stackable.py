"""Which hosts can be in one fleet, and whether so many of them fit: tried on copies, before anything is stacked."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.stacking.check import Checked, check_stackable
from esper.kasmina.stacking.errors import Unstackable
from esper.kasmina.stacking.growables import bare_host
from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.stacked import StackedModule, Streams, vmapped
from esper.leyline.errors import DeviceError, in_a_line
from esper.tolaria.data import Split
from esper.tolaria.tasks import Member, Task
from esper.tolaria.training.config import TrainingConfig
from esper.tolaria.training.host import Host, autocast

CHECK_SAMPLES = 6
"""Samples, of two hosts together, that an architecture is tried on."""
SHORT_EPOCH = 64
"""Steps up to which an epoch is short: on a GPU it takes longer to capture a step than to replay it so often."""
LIGHT_BATCH = 2**16
"""Numbers in a batch up to which a step is light: starting its operations takes a GPU longer than doing them, for idle rows too."""
SEEDS_SHARE = 3
"""How many times the memory of a bare host a growing one may take."""


def fleet_key(host: Host, *, mixed: bool | None = None) -> Hashable:
    """Hosts with the same key can be in one fleet. mixed: see `key_of`."""
    slots = {slot.id: slot.place.path for slot in host.model.slots.values()}
    return key_of(host.task, host.config, host.member, host.architecture, slots, host.split, mixed=mixed)


def key_of(
    task: Task,
    config: TrainingConfig,
    member: Member,
    architecture: Hashable,
    slots: Mapping[str, str],
    split: Split,
    *,
    mixed: bool | None = None,
) -> tuple[Hashable, ...]:
    """The same of a host that may not have been made yet. slots: module path by slot id. split: what it trains on.

    mixed: whether hosts with different amounts of data are together if their epochs are short: those with less of it wait for the others,
    which costs a GPU less than a fleet of their own. By default so on a GPU.
    """
    kind = (member.optimizer, member.momentum > 0, member.batch, member.augment)
    mixed = split.x.device.type == "cuda" if mixed is None else mixed
    size = "short" if mixed and is_short(split, member) else len(split)
    return (task.name, config, architecture, tuple(slots.items()), kind, size, split.x.device)


def is_short(split: Split, member: Member) -> bool:
    """Whether epochs on these samples are so short and light that idle rows cost less than dealing them out anew when something changes."""
    return len(split) <= SHORT_EPOCH * member.batch and member.batch * split.x[0].numel() <= LIGHT_BATCH


def kind_of(key: Hashable) -> str:
    """A key as a name that is the same in every process."""
    return hashlib.sha256(repr(key).encode()).hexdigest()


def check_fleet(host: Host) -> Checked:
    """Raise Unstackable, with the reason, unless hosts like this one can be in a fleet."""
    if host.config.compile:
        raise Unstackable("training.compile is set, and a fleet runs as written")
    for slot in host.model.slots.values():
        if not slot.place.layout.plain:
            raise Unstackable(f"the features at slot {slot.id!r} lie as {slot.place.layout}, which only hosts one by one can arrange")
        if slot.place.calls > 1:
            raise Unstackable(f"the module at slot {slot.id!r} is called {slot.place.calls} times, which only hosts one by one can count")
    positions = torch.arange(CHECK_SAMPLES, device=host.split.x.device) % len(host.split)
    x, y = host.batch(positions, 0)
    checked = check_stackable(bare_host(host.model), x, [slot.place.path for slot in host.model.slots.values()])
    with torch.no_grad():
        logits = torch.randn(*y.shape, host.data.classes, generator=torch.Generator().manual_seed(0)).to(x.device)
        try:
            both = stacked_losses(host.task, logits, y, 2)
        except Exception as error:
            raise Unstackable(f"the task's loss does not run for several hosts at once: {in_a_line(error)}") from error
        alone = torch.stack([host.task.loss(logits[i::2], y[i::2]) for i in range(2)])
        if both.shape != alone.shape or not torch.allclose(both, alone, rtol=1e-3, atol=1e-5):
            raise Unstackable("the task's loss is another for two hosts at once than one by one")
    return checked


def check_memory(host: Host, checked: Checked, rows: int) -> None:
    """Raise DeviceError if so many hosts like this one do not fit on its GPU, by what a step of two of them takes."""
    device = host.split.x.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    _try_step(host, checked)
    each = (torch.cuda.max_memory_allocated(device) - before) // 2
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if SEEDS_SHARE * each * rows > free:
        fits = max(0, int(free // (SEEDS_SHARE * each)) - 1)
        need, there = (f"{size / 2**30:.1f} GiB" for size in (SEEDS_SHARE * each * rows, free))
        raise DeviceError(
            f"{rows - 1} hosts of task {host.task.name!r} with batches of {host.member.batch} need about {need} on {device}, "
            f"which has {there} free: at most {fits} fit; lower --hosts, or name more --devices"
        )


def _try_step(host: Host, checked: Checked) -> None:
    """The forward and backward pass of two hosts like this one, on copies."""
    module = bare_host(host.model)
    stacked, rows = StackedModule(module, [slot.place.path for slot in host.model.slots.values()]), Rows(module, 2, None, checked.unused)
    values = rows.values()
    stacked.bind(values, 2, Streams([0, 0], host.split.x.device), [0, 1])
    x, y = host.batch(torch.arange(2 * host.member.batch, device=host.split.x.device) % len(host.split), 0)
    with autocast(host.config.precision, x.device):
        losses = stacked_losses(host.task, stacked.module(x), y, 2)
    torch.autograd.grad(losses.sum(), [values[name] for name in rows.names], allow_unused=True)


def stacked_losses(task: Task, logits: Tensor, y: Tensor, hosts: int) -> Tensor:
    """The loss of each host, (hosts,), from logits and targets of all, samples first."""
    if type(task).loss is Task.loss:  # as vmap would have it, in a fifth of the operations
        each = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(-1, hosts, y[0].numel())
        return each.mean((0, 2))
    losses: Tensor = vmapped(task.loss, 1, 0, logits.unflatten(0, (-1, hosts)), y.unflatten(0, (-1, hosts)))
    return losses
