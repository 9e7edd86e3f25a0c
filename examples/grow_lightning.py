"""Grow a small network inside Lightning's Trainer while it trains on handwritten digits.

python examples/grow_lightning.py
"""

from __future__ import annotations

import argparse
import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.integrations.lightning import GrowthCallback
from esper.tolaria import tasks


class Digits(LightningModule):
    """A module as one writes it anyway; that its network can grow is nobody's business here."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps, pct_start=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Train, tell what grew, harvest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25, help="epochs of training (default: 25)")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints about workers, and about torch's own changes
    torch.set_num_threads(1)  # a network this small is slower with more
    seed_everything(0, verbose=False)

    data = tasks.get("digits").load(None, torch.device("cpu"))
    net = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip

    def accuracy(network: nn.Module) -> float:
        return 100 * (network(data.val.x).argmax(1) == data.val.y).float().mean().item()

    model = esper.Growable(net, slots=["1", "4"], example=data.train.x[:8])
    growth = GrowthCallback(evaluate=accuracy)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=options.epochs, accelerator="cpu", gradient_clip_val=1.0, callbacks=[growth], **quiet)
    trainer.fit(Digits(model), DataLoader(TensorDataset(data.train.x, data.train.y), batch_size=64, shuffle=True))

    for entry in growth.gardener.history:
        print(entry)
    print(model)
    plain = model.harvest().eval()
    print(f"harvested: {accuracy(plain):.2f} points on val, {sum(p.numel() for p in plain.parameters()):,} parameters")


if __name__ == "__main__":
    main()
