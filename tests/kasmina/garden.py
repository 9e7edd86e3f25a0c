"""A small network to grow, always the same, and what a training loop does with it. Touches no global random stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from esper.kasmina import Growable
from esper.kasmina.blueprints import Seed
from esper.kasmina.slot import Slot
from esper.leyline.errors import OptimizerError
from esper.leyline.reports import GateConfig, GradientStats, SeedReport
from esper.leyline.stages import Stage

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
    return net.slots[id]


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


Build = Callable[[Any], optim.Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda params: optim.Adam(params, lr=0.01),
    "adam foreach": lambda params: optim.Adam(params, lr=0.01, foreach=True),
    "adam amsgrad": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: optim.AdamW(params, lr=0.01),
    "adamw fused": lambda params: optim.AdamW(params, lr=0.01, fused=True),
    "rmsprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.5),
    "adagrad": lambda params: optim.Adagrad(params, lr=0.01),
}

SOURCES: dict[str, Callable[[Growable], Any]] = {
    "parameter_groups": lambda net: net.parameter_groups(),
    "parameters": lambda net: net.parameters(),
    "the host's parameters": lambda net: net.host.parameters(),
    "names": lambda net: net.named_parameters(),
}


def followed(net: Growable, kind: str = "sgd", source: str = "parameter_groups") -> optim.Optimizer:
    optimizer = OPTIMIZERS[kind](SOURCES[source](net))
    net.follow(optimizer)
    return optimizer


def group_of(optimizer: optim.Optimizer, slot: str) -> dict[str, Any]:
    (group,) = (group for group in optimizer.param_groups if "slot" in group and group["slot"] == slot)
    return group


def check_groups(net: Growable, optimizer: optim.Optimizer) -> None:
    """The groups hold the live parameters and nothing else, each once, and no state is left of what is gone."""
    for slot in SLOTS:
        group = group_of(optimizer, slot)
        assert [id(p) for p in group["params"]] == [id(p) for p in slot_of(net, slot).seed_parameters()]
        assert "param_names" not in group or len(group["param_names"]) == len(group["params"])
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted({id(p) for p in net.parameters()})
    assert {id(p) for p in optimizer.state} <= set(held)


def whole_life(net: Growable, optimizer: optim.Optimizer, between: Callable[[], None]) -> None:
    """Takes "mix" to a fossil, "late" to a prune by a ramp and "stem.0" through a change of style to an end at once."""
    for slot, style in zip(SLOTS, ("gated", "linear_add", "linear_multiply"), strict=True):
        net.germinate(slot, "norm", tempo=1, style=style)
        between()
    net.tick()
    step(net, optimizer)
    for slot in SLOTS:
        net.advance(slot)
        between()
    net.tick()
    between()
    step(net, optimizer)
    net.record("mix", contribution=1.0)
    net.fossilize("mix")
    net.prune("late", speed=2)
    net.set_alpha_target("stem.0", 0.5, style="linear_add")
    between()
    for _ in range(2):
        net.tick()
        between()
        step(net, optimizer)
    net.prune("stem.0")
    between()
    assert [net.report(slot).stage for slot in SLOTS] == [Stage.PRUNED, Stage.FOSSILIZED, Stage.PRUNED]


def everything(net: Growable, *optimizers: optim.Optimizer) -> list[bytes]:
    """All that a refused command must leave alone, as bytes: the network's state, the optimisers', the random stream. Not the journal,
    in which a gate's refusal is written."""
    parts: list[Any] = [net.state_dict(), torch.get_rng_state(), [slot.form for slot in net.slots.values()]]
    parts += [[id(p) for p in net.parameters()], [p.grad for p in net.parameters()]]
    for optimizer in optimizers:
        state = optimizer.state_dict()
        parts += [state["state"], state["param_groups"], [[id(p) for p in group["params"]] for group in optimizer.param_groups]]
    return [as_bytes(part) for part in parts]


def as_bytes(value: Any) -> bytes:
    """A value of plain containers and tensors, bit for bit."""
    tensors: list[Tensor] = []

    def plain(inner: Any) -> Any:
        if isinstance(inner, Tensor):
            tensors.append(inner.detach())
            return inner.dtype, inner.shape
        if isinstance(inner, dict):
            return [(key, plain(item)) for key, item in inner.items()]
        return [plain(item) for item in inner] if isinstance(inner, (list, tuple)) else inner

    return repr(plain(value)).encode() + b"|".join(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def assert_refuses_to_follow(net: Growable, optimizer: optim.Optimizer, message: str) -> None:
    """Following raises, nothing has changed, and the network grows on without the optimiser."""
    before = everything(net, optimizer)
    with pytest.raises(OptimizerError, match=message):
        net.follow(optimizer)
    assert everything(net, optimizer) == before
    net.germinate("mix", "norm")
    assert len(optimizer.state_dict()["param_groups"]) == len(optimizer.param_groups)
    assert all(id(p) not in {id(q) for q in seed_of(net, "mix").parameters()} for g in optimizer.param_groups for p in g["params"])


@contextmanager
def reads() -> Iterator[list[str]]:
    """Inside, each read of a tensor's values is listed: each is a wait for the device."""
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "item", "__bool__", "__float__", "__int__", "cpu", "numpy"):
            original = getattr(Tensor, name)
            patch.setattr(Tensor, name, lambda self, *args, name=name, original=original: found.append(name) or original(self, *args))
        yield found
