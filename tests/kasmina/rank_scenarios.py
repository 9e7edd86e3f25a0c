"""What two processes do with a growing model that both train: run by tests/kasmina/test_ranks.py, once, in each of them."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from esper.kasmina import Growable, SlotShape, blueprint
from esper.leyline.errors import GateError, TransitionError
from esper.leyline.events import StageChanged
from esper.leyline.reports import Topology
from esper.leyline.stages import LIVE
from tests.kasmina.garden import OPEN_GATES, SLOTS, grow, seed_of, sgd, values
from tests.ranks import SIZE, begin, end, error_of, leave

BATCH = 8
"""Samples of a step over all ranks."""
_data = torch.Generator().manual_seed(2)
X = torch.randn(64, 6, generator=_data)
Y = torch.randint(3, (64,), generator=_data)
PATIENCE = 3.0
"""Seconds that the ranks wait for each other where one of them does not come."""


def mlp(**settings: Any) -> Growable:
    """A host without batch norms: the mean of gradients over halves of a batch is the gradient over the whole."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        host = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return Growable(host, ["1", "3"], X[:4], **{"gates": OPEN_GATES, **settings})


def grow_by_plan(isolation: str, rank: int = 0, size: int = 1, micro: int = 1, outer: bool = False) -> list[Tensor]:
    """A few epochs in which one seed is kept and one is pruned, on this rank's share of each batch; the parameters at the end.

    micro: parts of a share, accumulated with no_sync. outer: the wrapper holds a module that holds the model.
    """
    net = mlp(isolation=isolation)
    optimizer = optim.SGD(net.parameter_groups(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    net.follow(optimizer)
    wrapped: nn.Module = nn.Sequential(net, nn.Flatten()) if outer else net
    model = DistributedDataParallel(wrapped) if size > 1 else wrapped
    share = BATCH // size

    def train() -> None:
        for start in range(0, len(X), BATCH):
            optimizer.zero_grad()
            mine = range(start + rank * share, start + (rank + 1) * share)
            parts = torch.tensor(mine).chunk(micro)
            for part in parts:
                held = isinstance(model, DistributedDataParallel) and part is not parts[-1]
                with model.no_sync() if held else contextlib.nullcontext():  # type: ignore[operator]
                    (F.cross_entropy(model(X[part]), Y[part]) / micro).backward()
                if isolation == "shadow":
                    net.shadow_backward(lambda part=part: F.cross_entropy(net(X[part]), Y[part]) / micro)  # type: ignore[misc]
            net.clip_gradients(1.0)
            optimizer.step()
        net.tick()

    net.germinate("1", "mlp_small", tempo=1, style="gated")
    train()
    net.germinate("3", "lora8", tempo=1)
    train()
    net.advance("1")
    train()
    net.advance("3")
    train()
    net.record("1", contribution=2.0)
    net.fossilize("1")
    net.prune("3")
    train()
    return values(net)


def thirty_events(rank: int) -> dict[str, Any]:
    """Commands drawn at random, and a step of training after each, on data that only this rank has."""
    net = grow(isolation="boost")
    optimizer = sgd(net)
    model = DistributedDataParallel(net)
    draw, data = random.Random(4), torch.Generator().manual_seed(rank)
    events, refusals = 0, 0
    while events < 30:
        slot = draw.choice(SLOTS)
        style, speed = draw.choice(["linear_add", "gated", "linear_multiply"]), draw.choice([0, 2])
        commands: list[Callable[[], None]] = [
            lambda slot=slot, style=style: net.germinate(slot, "norm", tempo=1, style=style),  # type: ignore[misc]
            lambda slot=slot: net.advance(slot),  # type: ignore[misc]
            lambda slot=slot, speed=speed: net.prune(slot, speed=speed),  # type: ignore[misc]
            lambda slot=slot: net.set_alpha_target(slot, 0.5, speed=1),  # type: ignore[misc]
            lambda slot=slot: net.fossilize(slot),  # type: ignore[misc]
            net.tick,
        ]
        try:
            draw.choices(commands, weights=[4, 4, 1, 2, 1, 6])[0]()
        except (GateError, TransitionError):
            refusals += 1
        optimizer.zero_grad()
        images = torch.randn(4, 1, 4, 4, generator=data)
        F.cross_entropy(model(images), torch.randint(3, (4,), generator=data)).backward()
        optimizer.step()
        events += sum(isinstance(event, StageChanged) for event in net.drain_journal())
    net.tick()
    live = [slot for slot in SLOTS if net.report(slot).stage in LIVE]
    return {"parameters": values(net), "stages": {s: net.report(s).stage for s in SLOTS}, "live": live, "refusals": refusals}


def hooked(rank: int) -> list[Tensor]:
    """With a hook that sends a second message when the first has arrived, as PowerSGD does, on each rank at a moment of its own."""
    net = mlp()
    model = DistributedDataParallel(net)

    def twice(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
        def second(arrived: torch.futures.Future[list[Tensor]]) -> Tensor:
            dist.all_reduce(torch.zeros(3))
            return arrived.value()[0]

        time.sleep(0.1 * rank)  # the other waits, and has come to the end of its backward pass by then
        return dist.all_reduce(bucket.buffer().div_(SIZE), async_op=True).get_future().then(second)

    model.register_comm_hook(None, twice)
    lead_by_hand(net)
    F.cross_entropy(model(X[rank::SIZE]), Y[rank::SIZE]).backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def joined(model: DistributedDataParallel) -> None:
    """A step as for uneven data."""
    with model.join():
        model(X[:8]).sum().backward()


class Forked(nn.Module):
    """Goes through its second layer only for inputs above zero."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        logits: Tensor = self.head(self.second(x) if x.device.type == "cpu" and self.way else x)
        return logits

    way = True


def missing_gradients(rank: int) -> dict[str, Any]:
    """A seed that the data of one rank does not reach, and then that of none."""
    host = Forked()
    net = Growable(host, ["second"], X[:4], gates=OPEN_GATES, isolation="ste")
    optimizer = sgd(net)
    net.germinate("second", "lora8")
    net.advance("second")
    model = DistributedDataParallel(net, find_unused_parameters=True)
    found = {}
    for name, ways in {"one": (True, False), "none": (False, False)}.items():
        host.way = ways[rank]
        optimizer.zero_grad()
        F.cross_entropy(model(X[:4]), Y[:4]).backward()
        found[name] = [p.grad if p.grad is None else p.grad.clone() for p in seed_of(net, "second").parameters()]
    alone = Growable(Forked(), ["second"], X[:4], gates=OPEN_GATES, isolation="ste")
    alone.germinate("second", "lora8")
    alone.advance("second")
    F.cross_entropy(alone(X[:4]), Y[:4]).backward()
    return {**found, "alone": [p.grad for p in seed_of(alone, "second").parameters()]}


def buffers_of_seeds(rank: int) -> list[Tensor]:
    """A seed with a batch norm, that each rank feeds with other data: its statistics at the end of an epoch."""
    blueprint("normed", Topology.VECTOR, purpose="a test")(_normed)
    net = mlp()
    optimizer = sgd(net)
    model = DistributedDataParallel(net)
    net.germinate("1", "normed")
    net.advance("1")
    for i in range(3):
        optimizer.zero_grad()
        part = slice(16 * i + 8 * rank, 16 * i + 8 * rank + 8)
        F.cross_entropy(model(X[part]), Y[part]).backward()
        optimizer.step()
    before = [buffer.clone() for buffer in seed_of(net, "1").buffers()]
    net.tick()
    return [*before, *(buffer.clone() for buffer in seed_of(net, "1").buffers())]


def _normed(shape: SlotShape) -> nn.Module:
    return nn.Sequential(nn.Linear(shape.width, shape.width), nn.BatchNorm1d(shape.width))


def grown_before(rank: int) -> dict[str, Any]:
    """Models with seeds in them when they are wrapped: with other values on each rank, and then with another history."""
    net = mlp()
    lead_by_hand(net)
    with torch.no_grad():
        for parameter in seed_of(net, "1").parameters():
            parameter.add_(float(rank))
    values_of_first = values(seed_of(net, "1"))
    DistributedDataParallel(net)
    other = mlp()
    if rank == 1:
        lead_by_hand(other)
    return {"parameters": values(net), "mine": values_of_first, "refused": error_of(lambda: DistributedDataParallel(other))}


def lead_by_hand(net: Growable) -> None:
    net.germinate("1", "lora8")
    net.advance("1")


@dataclass
class Answer:
    logits: Tensor


class Opaque:
    """An output that nobody can look into."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = (logits,)


class Answering(nn.Module):
    """Logits in an object of some class."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(self.head(self.body(x)))


def outputs(rank: int) -> dict[str, Any]:
    """Logits in a dataclass, and in something that they cannot be found in."""
    found: dict[str, Any] = {}
    for kind, logits_of in ((Answer, lambda answer: answer.logits), (Opaque, lambda answer: answer._logits[0])):
        net = Growable(Answering(kind), ["body"], X[:4], gates=OPEN_GATES)
        optimizer = sgd(net)
        model = DistributedDataParallel(net)
        net.germinate("body", "lora8")
        net.advance("body")
        part = slice(8 * rank, 8 * rank + 8)
        F.cross_entropy(logits_of(model(X[part])), Y[part]).backward()
        found[kind.__name__] = error_of(optimizer.step) or values(net)
    return found


def mistakes(rank: int) -> dict[str, str]:
    """What would make the ranks differ, and what cannot be wrapped: each told to every rank, which can go on afterwards."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = mlp()
    model = DistributedDataParallel(net)
    found = {"other command": error_of(lambda: net.germinate("1", "lora8") if rank == 0 else net.germinate("3", "norm"))}
    found["other settings"] = error_of(lambda: net.germinate("1", "lora8", tempo=2 + rank))
    found["command against tick"] = error_of(lambda: net.germinate("1", "lora8") if rank == 0 else net.tick())
    found["still empty"] = str({net.report(slot).stage.name for slot in net.slot_ids})
    net.germinate("1", "lora8")
    with torch.no_grad():
        kept = seed_of(net, "1").get_parameter(next(name for name, _ in seed_of(net, "1").named_parameters()))
        before = kept.clone()
        kept.view(-1)[0] += 1e-6 * rank
        found["parameter"] = error_of(net.tick)
        kept.copy_(before)
    net.tick()  # which takes the seed on to TRAINING
    net.record("1", trial_contribution=1.0 + rank)
    found["record"] = error_of(net.tick)
    net.record("1", trial_contribution=1.0)
    net.tick()
    found["alone"] = error_of(lambda: copy.deepcopy(net).germinate("3", "norm") if rank == 0 else None)
    found["FSDP around"] = error_of(lambda: FullyShardedDataParallel(mlp(), device_id=torch.device("cpu")))
    sharded = FullyShardedDataParallel(nn.Linear(6, 6), device_id=torch.device("cpu"))
    found["FSDP inside"] = error_of(lambda: Growable(nn.Sequential(sharded, nn.Linear(6, 3)), ["0"], X[:4]))
    inside = DistributedDataParallel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)))
    found["DDP inside"] = error_of(lambda: Growable(inside, ["module.0"], X[:4]))
    found["join"] = error_of(lambda: joined(model))
    return found


def one_does_not_come(rank: int) -> str:
    """A command that rank 0 alone gives."""
    net = mlp()
    DistributedDataParallel(net)
    if rank == 0:
        return error_of(lambda: net.germinate("1", "lora8"))
    time.sleep(PATIENCE + 1.0)
    return ""


def one_is_lost(rank: int) -> dict[str, Any]:
    """Rank 1 dies between two epochs."""
    net = mlp()
    model = DistributedDataParallel(net)
    lead_by_hand(net)
    F.cross_entropy(model(X[:8]), Y[:8]).backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    in_tick = error_of(net.tick)
    in_backward = error_of(lambda: F.cross_entropy(model(X[:8]), Y[:8]).backward())
    return {"tick": in_tick, "backward": in_backward, "seconds": time.monotonic() - started}


@contextlib.contextmanager
def world(rank: int, meeting: Path, seconds: float = 60.0) -> Iterator[None]:
    """Inside, the ranks are joined."""
    begin(rank, meeting, seconds)
    try:
        yield
    finally:
        end()


def main(rank: int, folder: Path) -> None:
    """Everything, one after another; the ends of the world last."""
    found: dict[str, Any] = {}
    with world(rank, folder / "healthy"):
        found["thirty"] = thirty_events(rank)
        for isolation in ("ste", "boost", "shadow"):
            found[isolation] = grow_by_plan(isolation, rank, SIZE)
        found["accumulated"] = grow_by_plan("ste", rank, SIZE, micro=2)
        found["accumulated shadow"] = grow_by_plan("shadow", rank, SIZE, micro=2)
        found["outer"] = grow_by_plan("ste", rank, SIZE, outer=True)
        found["hooked"] = hooked(rank)
        found["missing"] = missing_gradients(rank)
        found["buffers"] = buffers_of_seeds(rank)
        found["grown before"] = grown_before(rank)
        found["outputs"] = outputs(rank)
        found["mistakes"] = mistakes(rank)
        net = mlp()
        DistributedDataParallel(net)
    net.germinate("1", "lora8")
    found["afterwards"] = (net.ranks, net.report("1").stage)
    with world(rank, folder / "impatient", PATIENCE):
        found["alone"] = one_does_not_come(rank)
    leave(rank, folder, found)
    with world(rank, folder / "mortal", PATIENCE):
        found["lost"] = one_is_lost(rank)
    leave(rank, folder, found)
