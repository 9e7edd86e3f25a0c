"""A checker that users run on their own models: what works with growing here, and what does not."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from esper.kasmina.attach.places import find_slots
from esper.kasmina.attach.proposal import Proposal
from esper.kasmina.attach.running import call, untouched
from esper.kasmina.attach.survey import probe
from esper.kasmina.attach.variation import Example
from esper.kasmina.blueprints import names
from esper.kasmina.copying import copied
from esper.kasmina.growable import Growable
from esper.leyline.errors import EsperError, SlotError, in_a_line
from esper.leyline.reports import GateConfig


@dataclass(frozen=True, slots=True)
class Check:
    """One property of a model and whether it holds."""

    name: str
    passed: bool | None
    """None where the bare model cannot do it either, so that nothing can be said of growing."""
    detail: str


@dataclass(frozen=True, slots=True)
class Growability:
    """What check_growable found. Prints as a table; true when no check failed."""

    slots: tuple[Proposal, ...]
    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        marks = {True: "ok  ", False: "FAIL", None: "--  "}
        lines = [f"{marks[c.passed]} {c.name}: {c.detail}" for c in self.checks]
        return "\n".join([*lines, *(f"     slot {p}" for p in self.slots)])


def check_growable(model: nn.Module, example: Example, slots: list[str] | None = None) -> Growability:
    """Try everything that growing needs on a copy of the model; the model itself is not touched.

    slots: the paths to try; by default those that find_slots proposes.
    """
    if isinstance(slots, str):
        raise SlotError(f"slots is a list of module paths, found {slots!r}")
    checks: list[Check] = []
    proposals: list[Proposal] = []

    def run(name: str, test: Callable[[], str]) -> bool:
        try:
            checks.append(Check(name, True, test()))
        except _BareModelCannotError as error:
            checks.append(Check(name, None, str(error)))
        except (EsperError, AssertionError) as error:
            checks.append(Check(name, False, str(error)))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            checks.append(Check(name, False, f"{in_a_line(error)} ({where.filename}:{where.lineno})"))
        return checks[-1].passed is not False

    def places() -> str:
        found = find_slots(model, example) if slots is None else _given(model, example, slots)
        assert found, str(found)
        proposals.extend(found)
        return f"{len(proposals)} place{'s'[: len(proposals) != 1]} for slots"

    if run("places", places):
        paths = [p.path for p in proposals]
        if run("copy", lambda: _check_copy(model)):
            run("dormant", lambda: _check_identical(model, example, paths, train=False))
            run("isolation", lambda: _check_identical(model, example, paths, train=True))
            grown: list[Growable] = []
            if run("growth", lambda: _check_growth(model, example, paths, grown)):
                run("harvest", lambda: _check_harvest(grown[0]))
                run("export", lambda: _check_export(model, grown[0], example))
    return Growability(tuple(proposals), tuple(checks))


class _BareModelCannotError(Exception):
    """The model without slots cannot do what is asked either."""


def _given(model: nn.Module, example: Example, slots: list[str]) -> list[Proposal]:
    places = probe(model, example, slots, causal=True, topology={})
    return [Proposal(p.path, p.shape.topology, p.shape.width, p.example_shape, p.layout.axes, "as you chose") for p in places.values()]


def _check_copy(model: nn.Module) -> str:
    again = copied(model)
    assert len(again.state_dict()) == len(model.state_dict()), "a deep copy has other parameters than the model"
    return "the model can be copied"


def _check_identical(model: nn.Module, example: Example, paths: list[str], train: bool) -> str:
    """Outputs and gradients with slots against those without, bit for bit."""
    bare, again, grown = copied(model), copied(model), _growable(model, example, paths, germinate=train)
    expected, repeated, found = _step(bare, bare, example), _step(again, again, example), _step(grown, grown.host, example)
    if not all(torch.equal(value, repeated[name]) for name, value in expected.items()):
        raise _BareModelCannotError("the model gives other numbers each time from the same random state; there is nothing to compare")
    for (name, a), (_, b) in zip(expected.items(), found.items(), strict=True):
        assert torch.equal(a, b), f"{name} differs by {float((a - b).abs().max()):.2e} from the bare model's"
    return f"outputs and {len(expected)} tensors of output and gradient are bit-identical" + (" while seeds train" if train else "")


def _check_growth(model: nn.Module, example: Example, paths: list[str], into: list[Growable]) -> str:
    """Lead a seed at every slot from germination to fossil; `into` gets the grown model."""
    grown = _growable(model, example, paths, germinate=True)
    _step(grown, grown.host, example)
    # Random data may give any size of gradient, which says nothing about the model.
    nn.utils.clip_grad_norm_(grown.parameters(), 1.0)
    grown.measure_gradients()
    for slot in grown.slot_ids:
        grown.advance(slot)
    grown.tick()
    for slot in grown.slot_ids:
        grown.record(slot, contribution=0.0)
        grown.fossilize(slot)
    into.append(grown)
    return f"{len(paths)} seed{'s'[: len(paths) != 1]} went from germination to fossil"


def _check_harvest(grown: Growable) -> str:
    plain = grown.harvest()
    copied(plain).load_state_dict(plain.state_dict())
    return "the grown network is a plain module with equal outputs"


def _check_export(model: nn.Module, grown: Growable, example: Example) -> str:
    try:
        _export(copied(model), example)
    except Exception as error:
        raise _BareModelCannotError(f"torch.export does not take the model as it is ({in_a_line(error)})") from error
    _export(grown.harvest(), example)
    return "torch.export takes the grown network"


def _export(model: nn.Module, example: Example) -> None:
    args = () if isinstance(example, dict) else tuple(example) if isinstance(example, (tuple, list)) else (example,)
    torch.export.export(model.eval(), args, example if isinstance(example, dict) else None)


def _growable(model: nn.Module, example: Example, paths: list[str], *, germinate: bool) -> Growable:
    """A copy of the model with slots, and with a seed in TRAINING in each if so asked."""
    grown = Growable(copied(model), paths, example, gates=GateConfig(strict=False, min_training_epochs=0, min_gradient_health=0.0))
    if germinate:
        for report in grown.reports():
            grown.germinate(report.slot, names(report.topology)[-1], tempo=1)
        grown.tick()
    return grown


def _step(model: nn.Module, host: nn.Module, example: Example) -> dict[str, Tensor]:
    """Output and gradients of one step in training mode, from a fixed random state."""
    model.train()
    with untouched(host):
        torch.manual_seed(0)
        outputs = [leaf for leaf in pytree.tree_leaves(call(model, example)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        assert outputs, "the model's output does not depend on its parameters"
        sum((leaf.float() ** 2).mean() for leaf in outputs).backward()  # type: ignore[union-attr]
    found = {f"output {i}": leaf.detach() for i, leaf in enumerate(outputs)}
    found.update({f"gradient of {name}": p.grad for name, p in host.named_parameters() if p.grad is not None})
    return found
