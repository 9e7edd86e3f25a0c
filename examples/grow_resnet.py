"""Grow a small ResNet, written in plain torch, while it trains on handwritten digits; then train it again without growth and compare.

python examples/grow_resnet.py
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import esper
from esper.leyline.actions import Op
from esper.tolaria import tasks
from esper.tolaria.data import Data, FinalEvaluation, Split


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, kernel, padding="same")
        self.second = nn.Conv2d(outputs, outputs, kernel, padding="same")
        self.norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.second(F.relu(self.first(x)))) + self.shortcut(x))


class ResNet(nn.Module):
    """(B, 1, 8, 8) to ten logits. With kernels of one pixel it is too small on purpose: there is something to gain."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 1)
        self.layer1, self.layer2, self.layer3 = Block(6, 6, kernel), Block(6, 12, kernel), Block(12, 12, kernel)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.layer1(self.stem(x)), 2)
        x = self.layer3(F.max_pool2d(self.layer2(x), 2))
        return self.head(x.mean((2, 3)))


def train(data: Data, policy: str, *, kernel: int, epochs: int, seed: int, tell: bool) -> tuple[nn.Module, esper.Gardener]:
    """An ordinary training loop with a gardener in it. Returns the harvested network, a plain module, and the gardener."""
    x, y = data.train.x, data.train.y
    torch.manual_seed(seed)
    net = ResNet(kernel)
    places = [place.path for place in esper.find_slots(net, x[:8])]
    if tell:
        print(f"places where it could grow: {', '.join(places)}")
    model = esper.Growable(net, slots=places, example=x[:8])
    optimizer = torch.optim.SGD(model.parameter_groups(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    gardener = esper.Gardener(
        model,
        optimizer,
        policy=policy,
        evaluate=lambda network: accuracy(network, data.val),
        recalibrate=x.split(64),  # it has batch norms, and what they know of a growing network is always a little out of date
        epochs=epochs,
    )

    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        schedule.step()
        entry = gardener.step()
        if tell:
            print(entry)
    return model.harvest().eval(), gardener


@torch.no_grad()
def accuracy(network: nn.Module, split: Split) -> float:
    """In points."""
    return 100 * (network(split.x).argmax(1) == split.y).float().mean().item()


def main() -> None:
    """Grow, train without growth, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", type=int, default=1, help="size of the host's convolutions; 3 leaves little to gain (default: 1)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of training (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and shuffling (default: 0)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a network this small is slower with more
    started = time.perf_counter()

    data = tasks.get("digits").load(None, torch.device("cpu"))
    grown, gardener = train(data, "heuristic", kernel=options.kernel, epochs=options.epochs, seed=options.seed, tell=True)
    print("\nthe same network from the same seed, without growth ...")
    plain, _ = train(data, "wait", kernel=options.kernel, epochs=options.epochs, seed=options.seed, tell=False)
    test = data.test(FinalEvaluation(asked_by="examples/grow_resnet.py"))  # decisions were made on val; this split has seen none
    for name, network in (("without growth", plain), ("grown", grown)):
        scores = f"{accuracy(network, data.val):.2f} points on val, {accuracy(network, test):.2f} on test"
        print(f"{name:>16}: {scores}, {sum(p.numel() for p in network.parameters()):,} parameters")
    kept = [entry.decision.slot for entry in gardener.history if entry.decision.op is Op.FOSSILIZE and not entry.refused]
    print(f"kept what grew at: {', '.join(kept) or 'no slot'}; {time.perf_counter() - started:.0f} seconds in all")


if __name__ == "__main__":
    main()
