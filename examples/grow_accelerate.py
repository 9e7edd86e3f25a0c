"""Grow a small network in a loop that accelerate prepares, on handwritten digits: stopped half-way, and gone on with from its checkpoint.

python examples/grow_accelerate.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.integrations.accelerate import prepare
from esper.tolaria import tasks


class Training:
    """An ordinary training with accelerate; three lines of it are about growth."""

    def __init__(self, epochs: int) -> None:
        self.data = tasks.get("digits").load(None, torch.device("cpu"))
        set_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip
        model = esper.Growable(net, slots=["1", "4"], example=self.data.train.x[:8])
        optimizer = torch.optim.SGD(model.parameter_groups(), lr=0.1, momentum=0.9)
        loader = DataLoader(TensorDataset(self.data.train.x, self.data.train.y), batch_size=64, shuffle=True)
        self.accelerator = Accelerator(cpu=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.gardener = esper.Gardener(self.model, self.optimizer, evaluate=self.accuracy, epochs=epochs)
        prepare(self.accelerator, self.gardener)

    def accuracy(self, network: nn.Module) -> float:
        """In points, on val."""
        return 100 * (network(self.data.val.x).argmax(1) == self.data.val.y).float().mean().item()

    def go_on(self, epochs: int) -> None:
        """Train for so many epochs."""
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                self.accelerator.backward(F.cross_entropy(self.model(x), y))
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            print(self.gardener.step())


def main() -> None:
    """Train half of the epochs, save, build everything anew, load, train the rest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=24, help="epochs of training (default: 24)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a network this small is slower with more

    half = options.epochs // 2
    with tempfile.TemporaryDirectory() as folder:
        first = Training(options.epochs)
        first.go_on(half)
        first.accelerator.save_state(folder)
        second = Training(options.epochs)
        second.accelerator.load_state(folder)
        print("gone on with from the checkpoint")
        second.go_on(options.epochs - half)
    model = second.accelerator.unwrap_model(second.model)
    print(model)
    plain = model.harvest().eval()
    print(f"harvested: {second.accuracy(plain):.2f} points on val, {sum(p.numel() for p in plain.parameters()):,} parameters")


if __name__ == "__main__":
    main()
