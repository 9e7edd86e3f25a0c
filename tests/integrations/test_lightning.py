"""Growth inside Lightning's Trainer is growth in a loop of one's own, whatever stops and resumes it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn, optim

from esper.integrations.lightning import GrowthCallback
from esper.kasmina import Growable
from esper.leyline.errors import ConfigError, RunError, UnknownNameError
from tests.integrations.growing import MAX_NORM, Eager, accuracy, by_hand, growable, loader, same, told

pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:Be aware that when using `ckpt_path`, callbacks:UserWarning",
)
EPOCHS = 10


class Batches:
    """The loader's batches, and where it stands in them, which a checkpoint in the middle of an epoch has to say."""

    def __init__(self) -> None:
        self.batches, self.at = list(loader()), 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        begin = self.at % len(self.batches)
        for at, batch in enumerate(self.batches[begin:], begin + 1):
            self.at = at
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Digits(LightningModule):
    """A module as people write it: the optimiser from self.parameters(), and the scheduler with it."""

    def __init__(self, net: nn.Module, schedule: str = "lambda") -> None:
        super().__init__()
        self.net, self.schedule = net, schedule

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> Any:
        if self.schedule == "sgd":
            optimizer: optim.Optimizer = optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            steps = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5 * EPOCHS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}
        optimizer = optim.Adam(self.parameters(), lr=0.02)
        if self.schedule == "plateau":
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "train_loss"},
            }
        return {"optimizer": optimizer, "lr_scheduler": optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)}


def train(module: LightningModule, folder: Path, *callbacks: Any, ckpt: Any = None, growth: Any = None, **settings: Any) -> GrowthCallback:
    """A training with a callback that grows."""
    growth = growth or GrowthCallback(evaluate=accuracy, policy=Eager())
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    known = {"max_epochs": EPOCHS, "default_root_dir": folder, "callbacks": [growth, *callbacks], **quiet, **settings}
    seed_everything(0, verbose=False)
    Trainer(enable_checkpointing=bool(callbacks), **known).fit(module, Batches(), ckpt_path=ckpt)
    return growth


def test_it_is_the_same_as_a_loop_of_ones_own(tmp_path):
    """Clipped in every step: an isolated seed that had a part in the host's norm would change the host."""
    for settings in ({"gradient_clip_val": MAX_NORM}, {"accumulate_grad_batches": 2}):
        module = Digits(growable())
        growth = train(module, tmp_path, **settings)
        max_norm, accumulate = settings.get("gradient_clip_val"), settings.get("accumulate_grad_batches", 1)
        model, history = by_hand(EPOCHS, max_norm=max_norm, accumulate=accumulate)
        assert told(growth.gardener) == history
        assert sum("FOSSILIZE" in line for line in history) == 2
        same(module.net, model)


CHECKPOINTS = {
    "lambda": ("end-epoch=3.ckpt", "epoch=3-step=18.ckpt"),
    "sgd": ("end-epoch=3.ckpt", "epoch=4-step=25.ckpt"),
    "plateau": ("end-epoch=3.ckpt",),  # whose metric is not in a checkpoint of the middle of an epoch
}
"""By schedule: from the end of an epoch; from the middle of one; from its last step, when the gardener has not looked at it yet."""


@pytest.mark.parametrize("schedule", CHECKPOINTS)
def test_a_resumed_training_is_the_same_bit_for_bit(tmp_path, schedule):
    steps = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=5 if schedule == "sgd" else 3)
    ends = ModelCheckpoint(dirpath=tmp_path, filename="end-{epoch}", save_top_k=-1)
    whole = Digits(growable(), schedule)
    growth = train(whole, tmp_path, steps, ends, gradient_clip_val=MAX_NORM)
    for name in CHECKPOINTS[schedule]:
        again = Digits(growable(), schedule)
        resumed = train(again, tmp_path, ckpt=tmp_path / name, gradient_clip_val=MAX_NORM)
        assert told(resumed.gardener) == told(growth.gardener), name
        same(again, whole)


class ByHand(Digits):
    """Manual optimisation: the module steps its optimisers itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.automatic_optimization = False
        self.other = nn.Linear(2, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        mine, others = self.optimizers()
        mine.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        mine.step()
        others.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        optimizer = optim.Adam(self.net.parameters(), lr=0.02)
        return [optimizer, optim.SGD(self.other.parameters(), lr=0.1)], [optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)]


def test_manual_optimisation_and_a_second_fit(tmp_path):
    module = ByHand(growable())
    growth = train(module, tmp_path)
    model, history = by_hand(EPOCHS, max_norm=None)
    assert told(growth.gardener) == history
    same(module.net, model)
    # The same callback goes on with what it knows, in a training with an optimiser of its own.
    train(module, tmp_path, growth=growth, max_epochs=2)
    assert told(growth.gardener)[:EPOCHS] == history
    assert len(told(growth.gardener)) == EPOCHS + 2
    assert growth.gardener.epochs == EPOCHS + 2


def test_a_checkpoint_of_a_recorded_training_may_be_written_after_its_end(tmp_path):
    growth = GrowthCallback(evaluate=accuracy, policy=Eager(), run=tmp_path / "run", epochs=EPOCHS)
    module = Digits(growable())
    train(module, tmp_path, growth=growth, max_epochs=4)
    module.trainer.save_checkpoint(tmp_path / "ended.ckpt")
    again, whole = Digits(growable()), Digits(growable())
    train(again, tmp_path, ckpt=tmp_path / "ended.ckpt")
    train(whole, tmp_path)
    same(again, whole)
    with pytest.raises(RunError, match="is finished: there is nothing to resume"):
        train(module, tmp_path, growth=growth)


def test_mixed_precision_with_a_scaler_that_skips_steps(tmp_path):
    """Half precision on the CPU. The first steps overflow and are skipped, which is no fault of a seed that is trained in them."""
    seen = []

    def half(model: Growable) -> float:
        seen.append((torch.is_autocast_enabled("cpu"), model.host_gradients().finite))
        return accuracy(model)

    model = growable()
    model.germinate("1", "conv_small")
    model.advance("1")
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**20))
    growth = GrowthCallback(evaluate=half, policy="wait")
    train(Digits(model), tmp_path, growth=growth, plugins=[plugin], max_epochs=3, gradient_clip_val=MAX_NORM)
    assert set(seen) == {(True, True)}, "evaluate runs in the precision of the Trainer, and no step that counted was broken"
    assert 0 < growth.gardener.steps < 15, "some steps were skipped"
    assert model.slots["1"].seed_parameters()[0].isfinite().all()


class Backbone(Digits):
    """A frozen network with a head behind it, each matrix of which a second optimiser steps."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.automatic_optimization = False
        torch.manual_seed(5)
        self.head = nn.Linear(10, 10)
        net.host.requires_grad_(False)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        mine, others = self.optimizers()
        self.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1]))
        mine.step()
        others.step()

    def configure_optimizers(self) -> Any:
        return [optim.Adam([*self.net.parameter_groups(), {"params": [self.head.bias]}], lr=0.02), optim.Muon([self.head.weight], lr=0.02)]


def test_a_frozen_host_grows_by_the_optimiser_that_has_groups_for_its_slots(tmp_path):
    before, keep = growable().host, ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    whole, again = Backbone(growable()), Backbone(growable())
    growth = train(whole, tmp_path, keep, max_epochs=6)
    same(whole.net.host, before)
    assert any("FOSSILIZE" in line for line in told(growth.gardener))
    train(again, tmp_path, ckpt=tmp_path / "epoch=2.ckpt", max_epochs=6)
    same(again, whole)


class Foreign(Digits):
    """Its optimiser steps something else."""

    def configure_optimizers(self) -> Any:
        return optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def test_what_cannot_work_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"Digits neither is nor holds one; wrap the model first"):
        train(Digits(nn.Linear(2, 2)), tmp_path)
    with pytest.raises(ConfigError, match=r"Digits holds 2 of them: net.0, net.1; expected one"):
        train(Digits(nn.Sequential(growable(), growable())), tmp_path)
    with pytest.raises(ConfigError, match=r"one optimiser steps the Growable's host; .*, none of its optimisers holds its parameters"):
        train(Foreign(growable()), tmp_path)
    with pytest.raises(ConfigError, match=r"StochasticWeightAveraging copies the module once .* update an esper\.AveragedModel"):
        train(Digits(growable()), tmp_path, StochasticWeightAveraging(swa_lrs=0.1))
    with pytest.raises(UnknownNameError, match=r"unknown setting of a Gardener 'polcy'; did you mean 'policy'"):
        GrowthCallback(evaluate=accuracy, polcy="heuristic")
    with pytest.raises(ConfigError, match=r"evaluate is a function of the model .* found 0.5"):
        GrowthCallback(evaluate=0.5)  # type: ignore[arg-type]


def test_a_library_that_is_missing_is_named_with_its_extra():
    program = """
import sys
for name in ("lightning", "transformers", "accelerate"):
    sys.modules[name] = None
    try:
        __import__(f"esper.integrations.{name}")
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for line, name in zip(done.stdout.splitlines(), ("lightning", "transformers", "accelerate"), strict=True):
        assert line.startswith(f"ConfigError esper.integrations.{name} needs ")
        assert line.endswith(f'pip install "esper-lite[{name}]"')
