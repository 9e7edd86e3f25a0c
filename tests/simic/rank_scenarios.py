"""What two processes with a Gardener each do: run by tests/simic/test_gardener_ranks.py, once, in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import esper
from esper.leyline.actions import Decision, Op
from esper.tolaria.tasks import get
from tests.ranks import SIZE, begin, end, error_of, leave

EPOCHS = 12
BATCH = 128


def network(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.ReLU())
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))


class Loop:
    """An ordinary loop on the digits, in which each rank has a part of every batch and a part of val."""

    def __init__(self, rank: int, *, norm: bool = False, size: int = SIZE, **settings: Any) -> None:
        data = get("digits").load(None, torch.device("cpu"))
        self.rank, self.size, self.train_data, self.val = rank, size, data.train, data.val
        self.shuffle = torch.Generator().manual_seed(7)
        self.model = esper.Growable(network(norm), ["2", "5"], data.train.x[:2])
        self.wrapped = DistributedDataParallel(self.model) if size > 1 else self.model
        self.optimizer = optim.SGD(self.model.parameter_groups(), lr=0.1, momentum=0.9)
        settings = {"evaluate": self.accuracy, "epochs": EPOCHS, **settings}
        self.gardener = esper.Gardener(self.model, self.optimizer, **settings)

    def accuracy(self, model: nn.Module) -> float:
        """Over the whole of val, a part of which each rank looks at: with a collective in it."""
        x, y = self.val.x[self.rank :: self.size], self.val.y[self.rank :: self.size]
        right = (model(x).argmax(1) == y).float().sum()
        if self.size > 1:
            dist.all_reduce(right)
        return 100 * right.item() / len(self.val.x)

    def run(self, epochs: int) -> Loop:
        x, y, share = self.train_data.x, self.train_data.y, BATCH // self.size
        for _ in range(epochs):
            loss = torch.zeros(())
            for batch in torch.randperm(len(x), generator=self.shuffle).split(BATCH):
                mine = batch[self.rank * share : (self.rank + 1) * share]
                self.optimizer.zero_grad()
                if len(batch) == BATCH:
                    loss = F.cross_entropy(self.wrapped(x[mine]), y[mine])
                    loss.backward()
                    self.optimizer.step()
            self.gardener.step(train_loss=loss.item())  # another one on each rank
        return self

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        parts = {"model": self.model, "optimizer": self.optimizer, "gardener": self.gardener}
        return {**{name: part.state_dict() for name, part in parts.items()}, "shuffle": self.shuffle.get_state()}

    def load(self, state: dict[str, Any]) -> Loop:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.gardener.load_state_dict(state["gardener"])
        self.shuffle.set_state(state["shuffle"])
        return self

    def history(self) -> list[str]:
        return [str(entry) for entry in self.gardener.history]

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


class Counting:
    """A sink that counts."""

    def __init__(self) -> None:
        self.events = 0

    def write(self, envelope: Any) -> None:
        self.events += 1

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held."""


class Fragile:
    """Decides what is written for an epoch, by rank 0 alone, and fails there in one."""

    name = "fragile"

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at, self.asked = fails_at, 0

    def start(self, seed: int) -> dict[str, Any]:
        return {"asked": 0}

    def decide(self, observation: Any, state: dict[str, Any]) -> tuple[Decision, dict[str, Any]]:
        self.asked += 1
        if observation.report.epoch == self.fails_at:
            raise ValueError("no idea")
        grow = Decision(op=Op.GERMINATE, slot="2", blueprint="conv_light", tempo=1)
        return grow if self.asked == 1 else Decision(op=Op.WAIT), {"asked": self.asked}


def whole(rank: int, folder: Path) -> dict[str, Any]:
    """A run that is saved half-way and goes on, and another that goes on from what was saved."""
    sink = Counting()
    loop = Loop(rank, run=folder / "run", sinks=[sink]).run(EPOCHS // 2)
    saved = loop.state()
    torch.save(saved, folder / f"half{rank}.pt")
    loop.run(EPOCHS // 2)
    record = loop.gardener.state_dict()["record"]
    with loop.gardener:
        pass
    again = Loop(rank).load(torch.load(folder / f"half{rank}.pt"))
    again.run(EPOCHS // 2)
    return {
        "history": loop.history(),
        "values": loop.values(),
        "saved": saved["gardener"],
        "again": {"history": again.history(), "values": again.values()},
        "record": record,
        "folder": loop.gardener.folder is not None,
        "events": sink.events,
        "harvested": sum(p.numel() for p in loop.model.harvest().parameters()),
        "accuracy": loop.gardener.history[-1].accuracy,
    }


def normed(rank: int) -> dict[str, Any]:
    """A host with batch norms, which each rank makes anew from a loader of its own."""
    data = get("digits").load(None, torch.device("cpu")).train
    loop = Loop(rank, norm=True, policy=Fragile(), recalibrate=list(data.x[rank::SIZE].split(64))).run(4)
    return {"history": loop.history(), "values": loop.values()}


def opinions(rank: int) -> dict[str, Any]:
    """Ranks that measure something else each: an error of which less is better."""

    def error(model: nn.Module) -> esper.Evaluation:
        return esper.Evaluation(score=2.0 + rank, higher_is_better=False, unit="RMSE")

    controller = Fragile()
    loop = Loop(rank, policy=controller, evaluate=error).run(2)
    return {"history": loop.history(), "state": loop.gardener.state_dict(), "asked": controller.asked}


def troubles(rank: int) -> dict[str, Any]:
    """What goes wrong on one rank, told to both."""
    found: dict[str, Any] = {}
    calls = 0

    def failing(model: nn.Module) -> float:
        nonlocal calls
        calls += 1
        if calls == 2 and rank == 1:
            raise ValueError("no data here")
        return 50.0

    loop = Loop(rank, policy=Fragile(fails_at=3), evaluate=failing).run(1)
    found["evaluate"] = error_of(loop.gardener.step)
    found["epoch"] = loop.gardener.epoch
    loop.gardener.step()
    found["again"] = loop.gardener.epoch
    found["controller"] = error_of(loop.gardener.step)

    loop = Loop(rank, policy="wait", evaluate=lambda model: 50.0).run(1)
    with torch.no_grad():
        loop.model.host.get_parameter("4.bias")[0] += 1e-7 * rank
    found["parameter"] = error_of(loop.gardener.step)
    loop = Loop(rank, policy="wait", evaluate=lambda model: 50.0)
    assert esper.Gardener(loop.wrapped, loop.optimizer, evaluate=loop.accuracy).model is loop.model
    found["unwrapped"] = error_of(lambda: _train_the_model_inside(loop))
    return found


def _train_the_model_inside(loop: Loop) -> None:
    loop.wrapped = loop.model
    loop.run(1)


def main(rank: int, folder: Path) -> None:
    """Everything, one after another."""
    begin(rank, folder / "meeting")
    found = {"whole": whole(rank, folder), "normed": normed(rank), "opinions": opinions(rank), "troubles": troubles(rank)}
    end()
    leave(rank, folder, found)
