"""Kernels that take rows to seeds and blend them back give what torch gives: every kind of row, gradients too, in tables with room to spare.

They run on a GPU; `TRITON_INTERPRET=1` tries them without one, slowly, where Triton is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.blending import Gating
from esper.kasmina.blueprints import Seed
from esper.kasmina.stacking import views
from esper.kasmina.stacking.beside import Beside
from esper.kasmina.stacking.needs import Kind, Needs, Part, Role, SeedKey, Seeds
from esper.kasmina.stacking.rows import Rows
from esper.kasmina.stacking.rules import KERNEL_DTYPES, RULES, stacking_rule
from esper.kasmina.stacking.stacked import StackedModule
from esper.kasmina.stacking.views import View
from esper.leyline.reports import Topology

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ, reason="needs CUDA, or Triton's interpreter"
    ),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SAMPLES = 5
EXACT, BF16 = 1e-5, 3e-2
"""How far a value may be from that in double precision, as a share of the largest of its row."""

SHAPES: dict[str, tuple[Topology, tuple[int, ...]]] = {
    "maps": (Topology.MAP2D, (6, 3, 5)),
    "even maps": (Topology.MAP2D, (8, 4, 4)),
    "maps of one pixel": (Topology.MAP2D, (3, 1, 1)),
    "signals": (Topology.MAP1D, (3, 7)),
    "sequences": (Topology.TOKENS, (4, 6)),
    "vectors": (Topology.VECTOR, (9,)),
}
Forms = list[Part | None]
"""What each row does, but for the last, which is no host's."""
MIXED: Forms = [
    Part(Kind.ADD, 0.3),
    Part(Kind.ISOLATED),
    None,
    Part(Kind.MULTIPLY, 0.8),
    Part(Kind.GATED, 0.6),
    Part(Kind.FULL),
    Part(Kind.ISOLATED),
    None,
    Part(Kind.GATED, 1.0),
    Part(Kind.MULTIPLY, 1.0),
]


class Bend(nn.Module):
    """A branch that gives a row the same bits whatever rows are beside it. narrow: what its output is rounded to."""

    def __init__(self, width: int, trailing: int, dtype: torch.dtype | None = None, overwrites: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, *[1] * trailing))
        self.dtype, self.overwrites = dtype, overwrites

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches of these tests can be stacked; without a GPU the kernels are tried on tensors of the CPU."""
    monkeypatch.setattr("esper.kasmina.stacking.rules.RULES", RULES)
    if Bend not in RULES:
        stacking_rule(Bend)(bend)
    monkeypatch.setitem(RULES, Bend, RULES[Bend])
    if DEVICE.type == "cpu":
        monkeypatch.setattr(views, "has_kernels", lambda x: x.dtype in KERNEL_DTYPES)


def bend(layer: Bend, x: Tensor) -> Tensor:
    if layer.overwrites:
        x = x.mul_(2.0) / 2.0
    weight = layer.weight.view(layer.weight.shape[0], *[1] * (x.dim() - 1 - layer.weight.dim()), *layer.weight.shape[1:])
    out = torch.tanh(x * weight) + 0.1 * x
    return out if layer.dtype is None or x.dtype is torch.float64 else out.to(layer.dtype)


@dataclass
class Slot:
    """A view with one slot, and its features."""

    view: View
    h: Tensor
    """(S, N, ...)."""
    used: list[dict[int, int]]
    """Of each stack that learns, the row of each host's seed."""

    def blended(self, h: Tensor) -> Tensor:
        return self.view.blend(self.view.slots["a"], h.flatten(0, 1)).unflatten(0, h.shape[:2])

    def outcome(self, weights: Tensor | None = None) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """The output, the features' gradient, and the gradients of each learning stack but the hosts' own."""
        h = self.h.detach().requires_grad_()
        with torch.autocast(DEVICE.type, enabled=False):
            out = self.blended(h)
        if weights is None:
            weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64, device=out.device).sin().view(out.shape)
        stacks = [[each.values[name] for name in each.rows.names] for each in self.view.learning[1:]]
        found = torch.autograd.grad(out, [h, *(each for stack in stacks for each in stack)], weights.to(out.dtype), allow_unused=True)
        rest = iter(found[1:])
        grads = [[torch.zeros_like(each) if (g := next(rest)) is None else g for each in stack] for stack in stacks]
        return out.detach(), found[0], grads


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 1000 * seed))


def slot(
    name: str = "maps",
    forms: Forms = MIXED,
    *,
    isolation: str = "boost",
    dtype: torch.dtype = torch.float32,
    parameters: torch.dtype | None = None,
    outputs: tuple[torch.dtype | None, ...] = (None, None),
    spare: int = 2,
    learns: Role | None = Role.LEARNS,
    checkpoint: bool = False,
    overwrites: bool = False,
    samples: int = SAMPLES,
) -> Slot:
    """A slot at which rows do this, with seeds of as many blueprints as there are outputs, dealt in turns.

    parameters: their type; that of the features by default. spare: places and rows that are nobody's, for each stack and kind.
    """
    topology, shape = SHAPES[name]
    trailing = {Topology.MAP2D: 2, Topology.MAP1D: 1}.get(topology, 0)
    width, parameters = shape[-1 - trailing], dtype if parameters is None else parameters
    hosts = len(forms) + (spare > 0)
    seeds: dict[SeedKey, Seeds] = {}

    def stack(key: SeedKey, like: nn.Module, branch: nn.Module, mine: list[int], number: int) -> None:
        rows = Rows(like.to(parameters), len(mine) + spare)
        values = 1 + 0.5 * drawn(len(rows.flat), seed=number)
        rows.flat.copy_(values)
        where = {host: 1 + at if spare else at for at, host in enumerate(mine)}
        rows_on = Rows(like.to(DEVICE), len(rows))
        rows_on.flat.copy_(rows.flat)
        seeds[key] = Seeds(StackedModule(branch), rows_on, where, checkpoint=checkpoint and bool(key.blueprint))

    for number, output in enumerate(outputs):
        branch = Bend(width, trailing, output, overwrites)
        like = Seed(branch, SimpleNamespace(width=width, trailing=trailing))  # type: ignore[arg-type]
        mine = [host for host, part in enumerate(forms) if part is not None and host % len(outputs) == number]
        stack(SeedKey("a", str(number), Role.LEARNS), like, branch, mine, number)
    gated = [host for host, part in enumerate(forms) if part is not None and part.kind is Kind.GATED]
    if gated:
        gate = Gating(topology, width)
        stack(SeedKey("a", "", Role.LEARNS), gate, gate, gated, 9)
    counts = {kind: sum(part is not None and part.kind is kind for part in forms) for kind in Kind}
    network = SimpleNamespace(
        device=DEVICE,
        dtype=parameters,
        slots={"a": None},
        isolation=isolation,
        rows=Rows(nn.Linear(1, 1).to(DEVICE), hosts),
        seeds=seeds,
        idle=hosts - 1,
        beside=Beside(DEVICE),
    )
    needs = Needs(
        hosts, {key: len(each.rows) for key, each in seeds.items()}, {("a", kind): n + spare for kind, n in counts.items() if n}, None, True
    )
    view: Any = View(network, needs, learns)  # type: ignore[arg-type]
    view.fill(list(range(hosts)), [{} if part is None else {"a": part} for part in forms] + [{}] * (hosts - len(forms)))
    h = drawn(samples, hosts, *shape).to(DEVICE, dtype)
    return Slot(view, h, [each.row_of for each in seeds.values()])


def check_close(slot: Slot, found: Any, expected: Any, share: float, rows: int) -> None:
    """Of rows that are hosts' and seeds that are theirs: what is nobody's may differ."""

    def near(mine: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=share * float(theirs.abs().max()))

    for row in range(rows):
        for mine, theirs in zip(found[:2], expected[:2], strict=True):
            near(mine[:, row], theirs[:, row])
    for used, mine_of, theirs_of in zip(slot.used, found[2], expected[2], strict=True):
        for mine, theirs in zip(mine_of, theirs_of, strict=True):
            assert mine.isfinite().all()
            for at in used.values():
                near(mine[at], theirs[at])


def agree(share: float = EXACT, forms: Forms = MIXED, **settings: Any) -> None:
    given = slot(forms=forms, **settings)
    plain = slot(forms=forms, **{**settings, "dtype": torch.float64, "parameters": torch.float64})
    plain.h.copy_(given.h)
    for mine, theirs in zip(given.view.learning, plain.view.learning, strict=True):
        theirs.rows.flat.copy_(mine.rows.flat)
    found = given.outcome()
    assert found[0].dtype == found[1].dtype == given.h.dtype
    check_close(given, found, plain.outcome(), share, len(forms))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("isolation", ["boost", "ste", "none"])
def test_every_kind_of_row_and_its_gradients(name: str, isolation: str) -> None:
    agree(name=name, isolation=isolation)
