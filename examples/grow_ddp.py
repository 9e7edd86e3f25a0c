"""Grow a network while several processes train it together, each on its part of every batch, with DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 examples/grow_ddp.py     # or, in one process: python examples/grow_ddp.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import esper
from esper.tolaria import tasks

BATCH = 64
"""Samples of a step, over all processes."""


def make_net() -> nn.Module:
    """A network that is too small on purpose; the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def main() -> None:
    """Train, grow, and show what rank 0 has seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25, help="epochs of training (default: 25)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    together = "RANK" in os.environ  # torchrun says who is who
    if together:
        dist.init_process_group("gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    data = tasks.get("digits").load(None, torch.device("cpu"))
    train, val = TensorDataset(data.train.x, data.train.y), data.val
    sampler = DistributedSampler(train, size, rank, drop_last=True)
    loader = DataLoader(train, BATCH // size, sampler=sampler, drop_last=True)

    def accuracy(model: nn.Module) -> float:
        return 100 * (model(val.x).argmax(1) == val.y).float().mean().item()

    model = esper.Growable(make_net(), slots=["1", "4"], example=data.train.x[:8])
    wrapped = DistributedDataParallel(model) if together else model
    optimizer = torch.optim.SGD(model.parameter_groups(), lr=0.1, momentum=0.9)
    gardener = esper.Gardener(model, optimizer, policy="heuristic", evaluate=accuracy, epochs=options.epochs)

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
        entry = gardener.step()
        if rank == 0:
            print(entry)

    if rank == 0:
        plain = model.harvest().eval()
        size_of = sum(p.numel() for p in plain.parameters())
        with torch.no_grad():
            print(f"{size} {'processes' if size > 1 else 'process'}: {accuracy(plain):.2f} points on val, {size_of:,} parameters")
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
