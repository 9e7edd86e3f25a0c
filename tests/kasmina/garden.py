"""A small network to grow, always the same, and what a training loop does with it. Touches no global random stream."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.kasmina.blueprints import Seed
from esper.kasmina.slot import Slot
from esper.leyline import GateConfig, GradientStats, SeedReport, Stage

SLOTS = ("stem.0", "mix", "late")
"""Feature maps of width 4, then vectors of width 6 twice."""
BLUEPRINTS = {"stem.0": "conv_small", "mix": "mlp_small", "late": "lora8"}
OPEN_GATES = GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0)
"""Gates that ask for next to nothing, so that a seed can be led through its life quickly."""
WAY = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
STAGES = tuple(stage for stage in Stage if stage is not Stage.UNKNOWN)

_data = torch.Generator().manual_seed(5)
IMAGES = torch.randn(8, 1, 4, 4, generator=_data)
LABELS = torch.randint(3, (8,), generator=_data)


class TinyHost(nn.Module):
    """(B, 1, 4, 4) images to 3 logits: a convolution with batch norm, then three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.mix = nn.Linear(4, 6)
        self.late = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.stem(images).mean((2, 3))))
        logits: Tensor = self.head(torch.tanh(self.late(x)))
        return logits


def tiny_host() -> TinyHost:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return TinyHost()


def grow(host: nn.Module | None = None, *, example: Tensor = IMAGES, **settings: Any) -> Growable:
    """A network with three empty slots, and open gates unless told otherwise."""
    return Growable(tiny_host() if host is None else host, SLOTS, example, **{"gates": OPEN_GATES, **settings})


def slot_of(net: Growable, id: str) -> Slot:
    return net._by_id[id]


def seed_of(net: Growable, id: str) -> Seed:
    seed = slot_of(net, id).seed
    assert seed is not None
    return seed


def gate_of(net: Growable, id: str) -> nn.Module:
    gating = slot_of(net, id).gating
    assert gating is not None
    return gating


def gradients_of(net: Growable, id: str) -> GradientStats:
    gradients = net.report(id).gradients
    assert gradients is not None
    return gradients


def grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def sgd(net: Growable, **settings: Any) -> optim.Optimizer:
    """SGD with momentum that follows the network."""
    optimizer = optim.SGD(net.parameter_groups(), **{"lr": 0.05, "momentum": 0.9, **settings})
    net.follow(optimizer)
    return optimizer


def backward(net: nn.Module) -> Tensor:
    """New gradients of the loss on the data; returns the loss."""
    net.zero_grad()
    loss = F.cross_entropy(net(IMAGES.to(next(net.parameters()).dtype)), LABELS)
    loss.backward()
    return loss.detach()


def step(net: nn.Module, optimizer: optim.Optimizer) -> Tensor:
    """One step of an ordinary training loop; returns the loss."""
    loss = backward(net)
    optimizer.step()
    return loss


def lead(net: Growable, slot: str, stage: Stage, optimizer: optim.Optimizer, blueprint: str = "", **germination: Any) -> None:
    """Take the seed of an empty slot to `stage` by the shortest way, with a training step in each stage on it."""
    if stage is Stage.DORMANT:
        return
    net.germinate(slot, blueprint or BLUEPRINTS[slot], **{"tempo": 2, **germination})
    for following in WAY[1 : WAY.index(stage) + 1] if stage in WAY else ():
        step(net, optimizer)
        if following is Stage.HOLDING:
            while net.report(slot).stage is Stage.BLENDING:
                net.tick()
        elif following is Stage.FOSSILIZED:
            net.record(slot, contribution=2.0)
            net.fossilize(slot)
        else:
            net.advance(slot)
    if stage not in WAY:
        net.prune(slot)
        while net.report(slot).stage is not stage:
            net.tick()
    assert net.report(slot).stage is stage


def at(stage: Stage, **settings: Any) -> Growable:
    """A network whose slot "mix" is at this stage."""
    net = grow(**settings)
    lead(net, "mix", stage, sgd(net))
    net.drain_journal()
    return net


def mix(net: Growable) -> SeedReport:
    """The report of the slot that most tests use."""
    return net.report("mix")


def values(module: nn.Module) -> list[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in module.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def everything(net: Growable, *optimizers: optim.Optimizer) -> list[bytes]:
    """All that a refused command must leave alone, as bytes: the network's state, the optimisers', the random stream. Not the journal,
    in which a gate's refusal is written."""
    parts: list[Any] = [*net.state_dict().items(), torch.get_rng_state(), [slot.form for slot in net._slots()]]
    parts += [(id(p), p.grad) for p in net.parameters()]
    for optimizer in optimizers:
        state = optimizer.state_dict()
        parts += [*state["state"].items(), state["param_groups"], [[id(p) for p in group["params"]] for group in optimizer.param_groups]]
    return [as_bytes(part) for part in parts]


def as_bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return repr((value.dtype, value.shape)).encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return as_bytes(list(value.items()))
    if isinstance(value, (list, tuple)):
        return b"|".join(as_bytes(item) for item in value)
    return repr(value).encode()
