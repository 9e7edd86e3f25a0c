"""What the tests of attaching and harvesting do with the networks of the zoo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina import Growable, SlotShape, blueprint
from esper.kasmina.attach.survey import probe
from esper.kasmina.blueprints import names, unregister
from esper.leyline.actions import Style
from esper.leyline.reports import GateConfig, Topology
from esper.leyline.stages import Stage
from tests.kasmina.zoo import ZOO, Specimen, leaves, loss_of, run

OPEN = GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0)
"""Gates that ask for next to nothing, so that a seed can be led through its life in a few lines."""

STYLES = tuple(Style)


def grow(specimen: Specimen, model: nn.Module | None = None, **settings: Any) -> Growable:
    """The network with empty slots and open gates."""
    return Growable(specimen.model() if model is None else model, specimen.slots, specimen.example(), **{"gates": OPEN, **settings})


def assignments() -> dict[str, dict[str, str]]:
    """A blueprint for every slot of the zoo, by specimen and path: each blueprint of a topology in turn, over the whole zoo."""
    turns = Counter[Topology]()
    chosen: dict[str, dict[str, str]] = {}
    for specimen in ZOO:
        places = probe(specimen.model(), specimen.example(), specimen.slots, causal=True, topology={})
        chosen[specimen.name] = {}
        for path, place in places.items():
            known = names(place.shape.topology)
            chosen[specimen.name][path] = known[turns[place.shape.topology] % len(known)]
            turns[place.shape.topology] += 1
    return chosen


BLUEPRINTS = assignments()


def to_training(net: Growable, specimen: Specimen, styles: Iterable[Style] = (Style.LINEAR_ADD,), **settings: Any) -> Growable:
    """A seed in TRAINING in every slot, each with the next of the styles."""
    chosen = list(styles)
    for i, slot in enumerate(net.slot_ids):
        net.germinate(slot, BLUEPRINTS[specimen.name][slot], style=chosen[i % len(chosen)], **{"tempo": 4, **settings})
        net.advance(slot)
    return net


def to_blending(net: Growable, specimen: Specimen) -> Growable:
    """Every seed from TRAINING to BLENDING, with alpha at a quarter of its way."""
    measure(net, specimen)
    for slot in net.slot_ids:
        net.advance(slot)
    net.tick()
    return net


def to_fossil(net: Growable, specimen: Specimen) -> Growable:
    """Every seed from BLENDING to FOSSILIZED."""
    while any(net.report(slot).stage is Stage.BLENDING for slot in net.slot_ids):
        net.tick()
    measure(net, specimen)
    for slot in net.slot_ids:
        net.record(slot, contribution=2.0)
        net.fossilize(slot)
    return net


def fossilised(specimen: Specimen, styles: Iterable[Style] = STYLES, **settings: Any) -> Growable:
    """The network with a trained fossil in every slot."""
    net = to_fossil(to_blending(to_training(grow(specimen, **settings), specimen, styles), specimen), specimen)
    return unlike_birth(net)


def measure(net: Growable, specimen: Specimen) -> None:
    """One backward pass whose gradients are measured; they are scaled down, for no gate to call them exploding."""
    net.zero_grad()
    with torch.random.fork_rng():
        loss_of(run(net, specimen.example())).backward()
        if any(slot.isolation == "shadow" for slot in net.slots.values()):
            net.shadow_backward(lambda: loss_of(run(net, specimen.example())))
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    net.measure_gradients()
    net.zero_grad()


@torch.no_grad()
def unlike_birth(net: Growable) -> Growable:
    """Moves the seeds well away from the identity that they are born as."""
    generator = torch.Generator().manual_seed(3)
    for slot in net.slots.values():
        for parameter in slot.seed_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return net


def identical(a: Tensor, b: Tensor) -> bool:
    """The same bits, -0.0 and NaN and all."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.detach().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))


def gradients(host: nn.Module) -> dict[str, Tensor]:
    """Copies of the gradients that the host's parameters have now."""
    return {name: p.grad.clone() for name, p in host.named_parameters() if p.grad is not None}


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that attaching a slot may not change, hooks apart; compare with ==."""
    return {
        "tensors": {name: (id(t), t.detach().clone().numpy().tobytes()) for name, t in (*model.named_parameters(), *model.named_buffers())},
        "modes": {path: module.training for path, module in model.named_modules()},
        "modules": {path: id(module) for path, module in model.named_modules(remove_duplicate=False)},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "gradients": {name: p.grad is None for name, p in model.named_parameters()},
        "names": list(model.state_dict()),
        "random": torch.get_rng_state().numpy().tobytes(),
    }


def hook_count(model: nn.Module) -> int:
    """Hooks of every kind on every module of a model."""
    return sum(len(hooks) for module in model.modules() for kind, hooks in vars(module).items() if kind.endswith(("_hooks", "_pre_hooks")))


def grow_one(model: nn.Module, slot: str, example: Any, name: str | None = None) -> Growable:
    """The model with a fossil at one slot."""
    net = Growable(model, [slot], example, gates=OPEN)
    net.germinate(slot, name or names(net.report(slot).topology)[-1], tempo=1)
    net.advance(slot)
    for stage in (Stage.BLENDING, Stage.FOSSILIZED):
        net.zero_grad()
        loss_of(run(net, example)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        net.measure_gradients()
        if stage is Stage.BLENDING:
            net.advance(slot)
            net.tick()
        else:
            net.record(slot, contribution=0.0)
            net.fossilize(slot)
    return unlike_birth(net)


def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad():
        return leaves(run(model.eval(), example))


def assert_equal(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-6) -> None:
    """Equal within `tolerance` of the largest value."""
    for a, b in zip((leaf.detach() for leaf in found), expected, strict=True):
        scale = max(1.0, float(b.abs().max()))
        assert float((a - b).abs().max()) <= tolerance * scale


@contextmanager
def registered(name: str, build: Callable[[SlotShape], nn.Module]) -> Iterator[str]:
    """A blueprint of feature maps that is known inside alone."""
    blueprint(name, Topology.MAP2D, purpose="a test")(build)
    try:
        yield name
    finally:
        unregister(name, Topology.MAP2D)
