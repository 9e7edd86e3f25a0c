"""One network, from wrapping to export: what works, what it costs, and what went wrong where something did."""

from __future__ import annotations

import copy
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import esper
from esper.kasmina.blueprints import names
from esper.leyline.reports import GateConfig
from esper.leyline.stages import Stage
from tests.tour.network import Built, Network

STEPS = ("places", "dormant", "isolated", "grows", "resumes", "saves", "harvests", "names", "plain", "exports")
"""What is tried with each network, in order."""
STEPS_IN_EPOCH = 4
MOST_SLOTS = 6
"""Of the places that are proposed, so many are grown, spread over the network."""


@dataclass(kw_only=True)
class Journey:
    """What came of one network."""

    name: str
    package: str
    kind: str
    parameters: int = 0
    places: list[str] = field(default_factory=list)
    """What was proposed, in words."""
    rejected: dict[str, str] = field(default_factory=dict)
    gap: float = 1.0
    """Largest share of the forward pass, counted in modules, without a place."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of one forward pass, of the search for places, of wrapping, and of all."""
    passes: dict[str, int] = field(default_factory=dict)
    """Forward passes that the search and the wrapping took."""
    steps: dict[str, str] = field(default_factory=dict)
    """By step: "ok", "bare" where the network by itself cannot do it, else what went wrong."""

    @property
    def whole(self) -> bool:
        """Whether the network went all the way, as far as it can go by itself."""
        return bool(self.steps) and all(said in ("ok", "bare") for said in self.steps.values())


def travel(network: Network, without: Collection[str] = ()) -> Journey:
    """Take one network all the way. What fails is noted, and what does not depend on it is tried nonetheless.

    without: steps to leave out; the slowest by far is "exports".
    """
    started = time.perf_counter()
    journey = Journey(name=network.name, package=network.package, kind=network.kind)
    _Traveller(network, journey, without).go()
    journey.seconds["all"] = time.perf_counter() - started
    return journey


class _Traveller:
    """The steps, each of which raises where something is wrong."""

    def __init__(self, network: Network, journey: Journey, without: Collection[str]) -> None:
        self.network, self.journey, self.without = network, journey, without
        self.model, self.example = self.build()
        self.paths: list[str] = []
        self.grown: esper.Growable | None = None
        self.plain: nn.Module | None = None

    def go(self) -> None:
        """All steps; those that need what an earlier one did not bring are left out."""
        self.journey.parameters = sum(p.numel() for p in self.model.parameters())
        if not self.tries("places", self.places):
            return
        self.tries("dormant", self.dormant)
        self.tries("isolated", self.isolated)
        if self.tries("grows", self.grows):
            self.tries("resumes", self.resumes)
            self.tries("saves", self.saves)
            if self.tries("harvests", self.harvests):
                self.tries("names", self.names)
                self.tries("plain", self.plain_and_portable)
                self.tries("exports", self.exports)

    def tries(self, name: str, step: Callable[[], str]) -> bool:
        """Run a step and note what came of it."""
        if name in self.without:
            return True
        try:
            self.journey.steps[name] = step()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = str(error).split("\n")[0][:400]
            self.journey.steps[name] = (
                f"{type(error).__name__}: {said} ({where.name} in {where.filename.rpartition('/')[2]}:{where.lineno})"
            )
        return self.journey.steps[name] in ("ok", "bare")

    def build(self) -> Built:
        """The network and its example, the same each time."""
        with seeded():
            return self.network.make()

    def places(self) -> str:
        model, example = self.build()
        start = time.perf_counter()
        with seeded(), torch.no_grad():
            run(model.eval(), example)
        self.journey.seconds["forward"] = time.perf_counter() - start
        model, example = self.build()
        start = time.perf_counter()
        with counting(type(model)) as calls:
            found = esper.find_slots(model, example)
        self.journey.seconds["search"], self.journey.passes["search"] = time.perf_counter() - start, calls[0]
        self.journey.places = [str(each) for each in found]
        self.journey.rejected = dict(getattr(found, "rejected", {}))
        self.paths = [each.path for each in found]
        assert self.paths, "nothing is proposed"
        return "ok"

    def dormant(self) -> str:
        """Outputs and gradients of the wrapped model are the bare one's, its names are its own."""
        model, example = self.build()
        before = list(model.state_dict())
        start = time.perf_counter()
        with counting(type(model)) as calls:
            grown = esper.Growable(model, self.paths, example)
        self.journey.seconds["wrap"], self.journey.passes["wrap"] = time.perf_counter() - start, calls[0]
        positions = sorted(slot.place.position for slot in grown.slots.values())
        self.journey.gap = max(b - a for a, b in zip([0.0, *positions], [*positions, 1.0], strict=True))
        assert list(grown.host.state_dict()) == before, "the state dict has other names"
        compare(self.bare_outputs(train=False), outputs(grown, example, train=False), "in eval mode")
        model, example = self.build()  # anew, as some keep what they have seen
        return self.compare_steps(esper.Growable(model, self.paths, example), example, "in a training step")

    def isolated(self) -> str:
        """The same while a seed trains at every place."""
        grown = self.germinated()
        grown.tick()
        assert grown.at(Stage.TRAINING) == list(grown.slot_ids)
        return self.compare_steps(grown, self.example, "while seeds train")

    def grows(self) -> str:
        """A seed at every place goes from germination to fossil, with an optimiser that follows."""
        self.grown = grown = self.germinated()
        optimizer = torch.optim.Adam(grown.parameter_groups(), lr=1e-3)
        grown.follow(optimizer)
        grown.tick()
        self.train(optimizer)
        for slot in grown.slot_ids:
            grown.advance(slot)
        grown.tick()
        self.train(optimizer)
        grown.tick()
        self.train(optimizer)
        for slot in grown.slot_ids:
            grown.record(slot, contribution=0.0)
            grown.fossilize(slot)
        self.train(optimizer)
        assert grown.at(Stage.FOSSILIZED) == list(grown.slot_ids)
        for slot in grown.slots.values():
            assert any(p.grad is not None and bool(p.grad.any()) for p in slot.seed_parameters()), f"no gradient arrives at {slot.id!r}"
        return "ok"

    def train(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.grown is not None
        for _ in range(STEPS_IN_EPOCH):
            step(self.grown, self.grown.host, self.example)
            optimizer.step()

    def harvests(self) -> str:
        """What is harvested right after a training step computes the same, bit for bit."""
        assert self.grown is not None
        self.plain = self.grown.harvest()
        compare(outputs(self.grown, self.example, train=False), outputs(self.plain, self.example, train=False), "after the harvest")
        return "ok"

    def names(self) -> str:
        """What is harvested has the host's tensors under the host's names."""
        assert self.grown is not None
        assert self.plain is not None
        expected, found = self.grown.host.state_dict(), self.plain.state_dict()
        missing = [name for name in expected if name not in found]
        assert not missing, f"{len(missing)} of {len(expected)} names are lost, such as {missing[0]!r}"
        for name, value in expected.items():
            if isinstance(value, Tensor):
                assert torch.equal(value, found[name]) or value.isnan().any(), f"{name!r} has other values"
        return "ok"

    def plain_and_portable(self) -> str:
        """What is harvested holds nothing of esper, can be copied, and can be pickled where the network by itself can."""
        assert self.plain is not None
        ours = [path for path, module in self.plain.named_modules() if type(module).__module__.startswith("esper")]
        assert not ours, f"{ours[0]!r} is of esper"
        copied = copy.deepcopy(self.plain)
        compare(outputs(self.plain, self.example, train=False), outputs(copied, self.example, train=False), "in a copy")
        model, example = self.build()
        outputs(model, example, train=False)  # a model may hang up hooks in its first pass that cannot be pickled
        try:
            pickle.dumps(model)
        except Exception:
            return "bare"
        written = pickle.dumps(self.plain)
        assert b"esper" not in written, "the pickle names esper"
        return "ok"

    def resumes(self) -> str:
        """The state dict of the grown model, loaded into a new one, gives the same network."""
        assert self.grown is not None
        model, example = self.build()
        again = esper.Growable(model, list(self.grown.slot_ids), example, gates=GATES)
        again.load_state_dict(copy.deepcopy(self.grown.state_dict()))
        compare(outputs(self.grown, self.example, train=False), outputs(again, example, train=False), "after loading")
        return "ok"

    def saves(self) -> str:
        """What was written to a file and loaded onto a new host computes the same as what was harvested."""
        assert self.grown is not None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "grown.safetensors"
            esper.save_grown(self.grown, file)
            loaded = esper.load_grown(self.build()[0], file)
        compare(outputs(self.grown, self.example, train=False), outputs(loaded, self.example, train=False), "loaded from a file")
        return "ok"

    def exports(self) -> str:
        """torch.export takes what was harvested, where it takes the bare network."""
        assert self.plain is not None
        try:
            export(self.build()[0], self.example)
        except Exception:
            return "bare"
        program = export(self.plain, self.example)
        expected, found = outputs(self.plain, self.example, train=False), outputs(program.module(), self.example, train=None)
        for a, b in zip(expected, found, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True), f"exported, it differs by {float((a - b).abs().max()):.2e}"
        return "ok"

    def germinated(self) -> esper.Growable:
        """A new copy of the network with a seed at some places, of one blueprint after another."""
        model, example = self.build()
        grown = esper.Growable(model, spread(self.paths), example, gates=GATES)
        for i, slot in enumerate(grown.slots.values()):
            known = names(slot.place.shape.topology)
            grown.germinate(slot.id, known[i % len(known)], tempo=1)
        return grown

    def compare_steps(self, grown: esper.Growable, example: Any, when: str) -> str:
        """A training step is the bare network's, bit for bit, unless the bare network itself takes another one each time."""
        expected = self.bare_step()
        try:
            compare(expected, self.bare_step(), "")
        except AssertionError:
            return "bare"
        compare(expected, step(grown, grown.host, example), when)
        return "ok"

    def bare_outputs(self, train: bool) -> list[Tensor]:
        return outputs(self.build()[0], self.example, train=train)

    def bare_step(self) -> dict[str, Tensor]:
        model, example = self.build()
        return step(model, model, example)


GATES = GateConfig(strict=False, min_training_epochs=0)


def spread(paths: list[str]) -> list[str]:
    """At most MOST_SLOTS of them, evenly, the first and the last among them."""
    if len(paths) <= MOST_SLOTS:
        return paths
    return [paths[round(i * (len(paths) - 1) / (MOST_SLOTS - 1))] for i in range(MOST_SLOTS)]


def run(model: Any, example: Any) -> Any:
    """The model's output for an example of any form."""
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, (tuple, list)) else model(example)


def export(model: nn.Module, example: Any) -> torch.export.ExportedProgram:
    """torch.export with an example of any form."""
    args = () if isinstance(example, dict) else tuple(example) if isinstance(example, (tuple, list)) else (example,)
    return torch.export.export(model.eval(), args, example if isinstance(example, dict) else None)


@contextmanager
def seeded() -> Iterator[None]:
    """The same random numbers, whoever draws them, each time."""
    random.seed(0)
    np.random.seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@contextmanager
def counting(kind: type) -> Iterator[list[int]]:
    """Counts the forward passes of models of one class, not those of modules of the same class inside."""
    calls, depth = [0], [0]

    def enter(module: nn.Module, args: Any) -> None:
        if type(module) is kind:
            calls[0] += depth[0] == 0
            depth[0] += 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        depth[0] -= type(module) is kind

    hooks = nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(enter), hooks.register_module_forward_hook(leave, always_call=True)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def floats(output: Any) -> list[Tensor]:
    """The floating-point tensors in an output of any form."""
    leaves = pytree.tree_leaves(output)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())]
    for leaf in leaves:  # an output object that pytree does not know
        if not isinstance(leaf, (Tensor, str, bytes)) and hasattr(leaf, "__dict__"):
            found += [v for v in vars(leaf).values() if isinstance(v, Tensor) and v.is_floating_point()]
    return found


def outputs(model: Any, example: Any, *, train: bool | None) -> list[Tensor]:
    """What a model computes, without gradients."""
    if train is not None:
        model.train(train)
    with seeded(), torch.no_grad():
        found = floats(run(model, example))
    assert found, "the output holds no tensor"
    return [leaf.clone() for leaf in found]


def step(model: nn.Module, host: nn.Module, example: Any) -> dict[str, Tensor]:
    """Outputs and the host's gradients of one training step."""
    model.train()
    model.zero_grad()
    with seeded():
        found = [leaf for leaf in floats(run(model, example)) if leaf.requires_grad]
        assert found, "no output depends on a parameter"
        # Random targets: the squares of what a norm has made are the same whatever went into it.
        sum((leaf - torch.randn_like(leaf)).abs().pow(2).where(leaf.isfinite(), 0.0).mean() for leaf in found).backward()
    result = {f"output {i}": leaf.detach() for i, leaf in enumerate(found)}
    return result | {f"the gradient of {name}": p.grad.clone() for name, p in host.named_parameters() if p.grad is not None}


def compare(expected: Any, found: Any, when: str) -> None:
    """Raise where two lists or dicts of tensors are not the same bit for bit."""
    a, b = (dict(enumerate(each)) if isinstance(each, list) else each for each in (expected, found))
    assert a.keys() == b.keys(), f"{when}, other tensors: {sorted(map(str, a.keys() ^ b.keys()))[:3]}"
    for name, value in a.items():
        other = b[name]
        same = value.shape == other.shape and bool(((value == other) | ((value != value) & (other != other))).all())
        assert same, f"{when}, {name} differs by {float((value - other).abs().max()) if value.shape == other.shape else 'its shape'}"
