"""One of two processes, started by torchrun, that train in each framework together; what came out goes into the folder it is given."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.integrations import accelerate, lightning
from tests.integrations import test_transformers
from tests.integrations.growing import BATCH, MAX_NORM, Eager, X, Y, accuracy, growable
from tests.integrations.test_lightning import Digits

EPOCHS = 7
warnings.filterwarnings("ignore", module=r"lightning|torch")


def loader() -> DataLoader[Any]:
    """Batches of half the size, dealt to two processes: together they see what one sees."""
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH // 2)


def in_accelerate() -> esper.Gardener:
    """A loop of one's own."""
    accelerator, model = Accelerator(cpu=True), growable()
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=0.02)
    prepared, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    gardener = esper.Gardener(prepared, optimizer, policy=Eager(), evaluate=accuracy, epochs=EPOCHS)
    accelerate.prepare(accelerator, gardener)
    for _ in range(EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
            accelerator.clip_grad_norm_(prepared.parameters(), MAX_NORM)
            optimizer.step()
        gardener.step()
    return gardener


def in_lightning(folder: Path) -> tuple[esper.Gardener, esper.Gardener]:
    """Whole, and resumed from the middle."""
    made = []
    for checkpoint in (None, folder / "epoch=2.ckpt"):
        growth = lightning.GrowthCallback(evaluate=accuracy, policy=Eager())
        keep = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=2, strategy="ddp", gradient_clip_val=MAX_NORM, callbacks=[growth, keep], **quiet
        )
        trainer.fit(Digits(growable()), DataLoader(TensorDataset(X, Y), batch_size=BATCH // 2), ckpt_path=checkpoint)
        made.append(growth.gardener)
    return made[0], made[1]


def in_transformers(folder: Path) -> tuple[esper.Gardener, esper.Gardener]:
    """Whole, and resumed from the middle."""
    made = []
    for checkpoint in (None, str(folder / "checkpoint-6")):
        growth = test_transformers.eager()
        settings = {"num_train_epochs": EPOCHS, "save_strategy": "epoch", "ddp_backend": "gloo"}
        test_transformers.trainer(test_transformers.growable(), folder, growth, **settings).train(resume_from_checkpoint=checkpoint)
        made.append(growth.gardener)
    return made[0], made[1]


def main(folder: Path) -> None:
    """Train in all of them; the ranks that the model found are part of what is told."""
    torch.set_num_threads(1)
    gardeners = [in_accelerate(), *in_lightning(folder / "lightning"), *in_transformers(folder / "trainer")]
    found = [([str(entry) for entry in each.history], each.model.state_dict(), each.model.ranks is not None) for each in gardeners]
    torch.save(found, folder / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
