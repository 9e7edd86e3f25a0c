"""Kernels that take rows to seeds and blend them back give what torch gives, for every kind of row, its gradients and room to spare."""

from __future__ import annotations

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
from esper.kasmina.stacking.rules import KERNEL_DTYPES, stacking_rule
from esper.kasmina.stacking.stacked import StackedModule
from esper.kasmina.stacking.views import View
from esper.leyline.reports import Topology
from tests.kasmina.kernels import DEVICE, cuda, needs_kernels

pytestmark = needs_kernels
SAMPLES = 5
EXACT, BF16 = 1e-5, 3e-2
"""How far a value may be from that in double precision, as a share of the largest: of its row, and of a gradient of all seeds alike."""

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
Outcome = tuple[Tensor, Tensor, list[list[Tensor]]]
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
    """A branch that gives a row the same bits whatever rows are beside it.

    dtype: what its output is rounded to. overwrites: whether it spoils its input.
    """

    def __init__(self, width: int, trailing: int, dtype: torch.dtype | None = None, overwrites: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, *[1] * trailing))
        self.dtype, self.overwrites = dtype, overwrites


@stacking_rule(Bend)
def bend(layer: Bend, x: Tensor) -> Tensor:
    if layer.overwrites:
        x = x.mul_(2.0) / 2.0
    weight = layer.weight.view(layer.weight.shape[0], *[1] * (x.dim() - 1 - layer.weight.dim()), *layer.weight.shape[1:])
    out = torch.tanh(x * weight) + 0.1 * x
    return out if layer.dtype is None or x.dtype is torch.float64 else out.to(layer.dtype)


@pytest.fixture(autouse=True)
def uses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each use of the kernels, which without a GPU are tried on tensors of the CPU."""
    from esper.kasmina.stacking.kernels import grafting

    used: list[str] = []
    put = grafting.put
    monkeypatch.setattr(grafting, "put", lambda *args: (used.append("put"), put(*args))[1])
    if DEVICE.type == "cpu":
        monkeypatch.setattr(views, "has_kernels", lambda x: x.dtype in KERNEL_DTYPES)
    return used


@dataclass
class Slot:
    """A view with one slot, and its features."""

    view: View
    h: Tensor
    """(S, N, ...)."""
    used: list[dict[int, int]]
    """Of each stack that learns, the row of each host's seed."""

    def fill(self, forms: Forms) -> None:
        hosts = self.h.shape[1]
        self.view.fill(list(range(hosts)), [{} if part is None else {"a": part} for part in [*forms, *[None] * (hosts - len(forms))]])

    def blended(self, h: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=h.dtype is torch.bfloat16):
            return self.view.blend(self.view.slots["a"], h.flatten(0, 1)).unflatten(0, h.shape[:2])

    def outcome(self) -> Outcome:
        """The output, the features' gradient, and those of each stack."""
        h = self.h.detach().requires_grad_()
        out = self.blended(h)
        stacks = [[each.values[name] for name in each.rows.names] for each in self.view.learning[1:]]
        found = torch.autograd.grad(out, [h, *(each for stack in stacks for each in stack)], weights(out), allow_unused=True)
        rest = iter(found[1:])
        grads = [[torch.zeros_like(each) if (g := next(rest)) is None else g for each in stack] for stack in stacks]
        return out.detach(), found[0], grads


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 1000 * seed))


def weights(out: Tensor) -> Tensor:
    """Of a loss in which every number weighs differently."""
    return torch.linspace(-1, 2, out.numel(), dtype=torch.float64, device=out.device).sin().view(out.shape).to(out.dtype)


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
        rows = Rows(like.to(DEVICE, parameters), len(mine) + spare)
        rows.flat.copy_(1 + 0.5 * drawn(len(rows.flat), seed=number))
        at = {host: row + (spare > 0) for row, host in enumerate(mine)}
        seeds[key] = Seeds(StackedModule(branch), rows, at, checkpoint=checkpoint and bool(key.blueprint))

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
    found = Slot(View(network, needs, learns), drawn(samples, hosts, *shape).to(DEVICE, dtype), [each.row_of for each in seeds.values()])  # type: ignore[arg-type]
    found.fill(forms)
    return found


def near(mine: Tensor, theirs: Tensor, share: float) -> None:
    torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=share * float(theirs.abs().max()))


def check_close(slot: Slot, found: Outcome, expected: Outcome, share: float, rows: int) -> None:
    """Of rows that are hosts' and seeds that are theirs: what is nobody's may differ, and is finite."""
    assert all(each.isfinite().all() for each in (found[0], found[1], *(grad for grads in found[2] for grad in grads)))
    for row in range(rows):
        for mine, theirs in zip(found[:2], expected[:2], strict=True):
            near(mine[:, row], theirs[:, row], share)
    for used, mine_of, theirs_of in zip(slot.used, found[2], expected[2], strict=True):
        for mine, theirs in zip(mine_of, theirs_of, strict=True):
            near(mine[list(used.values())], theirs[list(used.values())], share)


def check_agreement(share: float = EXACT, forms: Forms = MIXED, **settings: Any) -> None:
    """What the kernels give is what torch gives in double precision."""
    given = slot(forms=forms, **settings)
    plain = slot(forms=forms, **{**settings, "dtype": torch.float64, "parameters": torch.float64, "overwrites": False})
    plain.h.copy_(given.h)
    for mine, theirs in zip(given.view.learning, plain.view.learning, strict=True):
        theirs.rows.flat.copy_(mine.rows.flat)
    found = given.outcome()
    assert found[0].dtype == found[1].dtype == given.h.dtype
    check_close(given, found, plain.outcome(), share, len(forms))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("isolation", ["boost", "ste", "none"])
def test_every_kind_of_row_and_its_gradients(name: str, isolation: str, uses: list[str]) -> None:
    check_agreement(name=name, isolation=isolation)
    assert uses == ["put"]


@pytest.mark.parametrize("name", ["maps", "sequences"])
@pytest.mark.parametrize("kind", Kind)
def test_rows_of_one_kind_alone(name: str, kind: Kind) -> None:
    check_agreement(name=name, forms=[None, Part(kind, 0.7), Part(kind), Part(kind, 0.2)])


@pytest.mark.parametrize("name", SHAPES)
def test_rows_in_many_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.kasmina.stacking.kernels.grafting.SMALL_TILE", 16)
    check_agreement(name=name, samples=3, forms=MIXED[:6])


@pytest.mark.parametrize("spare", [0, 5])
@pytest.mark.parametrize("outputs", [(None,), (None, None, None)], ids=["one blueprint", "three"])
def test_places_that_are_nobody_s(spare: int, outputs: tuple[None, ...]) -> None:
    check_agreement(spare=spare, outputs=outputs)


@pytest.mark.parametrize("seed", range(6))
def test_tables_of_all_sorts(seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 6, (7,), generator=stream).tolist()
    alphas = torch.rand(7, generator=stream).tolist()
    forms = [Part(Kind(kind), alpha) if kind else None for kind, alpha in zip(kinds, alphas, strict=True)]
    check_agreement(name=list(SHAPES)[seed], forms=forms, spare=seed % 3, isolation=("boost", "none", "ste")[seed % 3])


@pytest.mark.parametrize("name", ["maps", "even maps", "sequences"])
@pytest.mark.parametrize("outputs", [(None, None), (torch.float32, torch.bfloat16), (torch.float64, None)], ids=str)
def test_features_in_bfloat16(name: str, outputs: tuple[torch.dtype | None, ...]) -> None:
    check_agreement(BF16, name=name, dtype=torch.bfloat16, parameters=torch.float32, outputs=outputs)


def test_features_in_float32_and_branches_in_bfloat16() -> None:
    check_agreement(BF16, outputs=(torch.bfloat16, None))


def test_branches_that_are_computed_again_and_those_that_overwrite_their_inputs() -> None:
    check_agreement(checkpoint=True)
    check_agreement(overwrites=True)


@pytest.mark.parametrize("forms", [MIXED, [Part(Kind.ISOLATED), None, Part(Kind.ISOLATED)]], ids=["mixed", "isolated"])
def test_isolated_rows_are_as_they_were_to_the_last_bit_whatever_their_seeds_are(forms: Forms) -> None:
    spoilt, sound = slot(forms=forms), slot(forms=forms)
    isolated = [row for row, part in enumerate(forms) if part is not None and part.kind is Kind.ISOLATED]
    rows = [row for row in range(len(forms)) if row not in isolated]
    for each in (spoilt, sound):
        each.h[0, isolated[0]] = -0.0
    for learning in spoilt.view.learning[1:]:
        for row, host in enumerate(learning.hosts):
            if host in isolated:
                learning.values["gamma"].data[row] = float("nan")
    (out, of_h, grads), (expected, of_h_expected, grads_expected) = spoilt.outcome(), sound.outcome()
    as_bits = [each[:, isolated].contiguous().view(torch.int32) for each in (out, spoilt.h)]
    assert torch.equal(*as_bits)
    assert torch.equal(of_h, of_h_expected)
    assert torch.equal(out[:, rows], expected[:, rows])
    for learning, mine, theirs in zip(spoilt.view.learning[1:], grads, grads_expected, strict=True):
        sane = [row for row, host in enumerate(learning.hosts) if host not in isolated]
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one[sane], other[sane])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_twice(name: str, dtype: torch.dtype) -> None:
    first, second = (slot(name, dtype=dtype, parameters=torch.float32).outcome() for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    for one, other in zip(first[2], second[2], strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["maps", "sequences"])
@pytest.mark.parametrize("kind", Kind)
def test_a_row_gets_the_same_bits_whatever_rows_are_beside_it(name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    # A real gate is a product, which torch may round differently for other numbers of rows.
    monkeypatch.setattr(View, "_gate", lambda self, group, h: (h[:, :, :1] if name == "maps" else h[..., :1]).clamp(0.2, 0.8))
    others: Forms = [Part(Kind.FULL), Part(Kind.ADD, 0.5), Part(Kind.MULTIPLY, 0.5), None, Part(Kind.ISOLATED), Part(Kind.GATED, 0.5)]
    found = []
    for forms, row in (([*others, Part(kind, 0.3), *others], 6), ([Part(kind, 0.3)], 0), ([others[0], others[4], Part(kind, 0.3)], 2)):
        given = slot(name, forms, outputs=(None,))
        given.h[:, row] = drawn(*given.h[:, 0].shape, seed=7).to(DEVICE)
        for learning in given.view.learning[1:]:
            at = learning.hosts.index(row) if row in learning.hosts else None
            for value in (learning.values[each] for each in learning.rows.names):
                if at is not None:
                    value.data[at] = drawn(*value.shape[1:], seed=8).to(DEVICE)
        out = given.blended(given.h.requires_grad_())
        gradient = torch.zeros_like(out)
        gradient[:, row] = drawn(*out[:, 0].shape, seed=9).to(DEVICE)
        gammas = [learning.values["gamma"] for learning in given.view.learning[1:] if not learning.gate]
        of_h, of_gamma = torch.autograd.grad(out, [given.h, *gammas], gradient)
        found.append([out[:, row], of_h[:, row], of_gamma[given.used[0][row]]])
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_features_that_nothing_learns_through() -> None:
    given = slot(learns=Role.LEARNS)
    with_gradient = given.outcome()
    stacks = [each.values[name] for each in given.view.learning[1:] for name in each.rows.names]
    out = given.blended(given.h)
    found = torch.autograd.grad(out, stacks, weights(out))
    assert torch.equal(out, with_gradient[0])
    for mine, theirs in zip(found, [each for stack in with_gradient[2] for each in stack], strict=True):
        assert torch.equal(mine, theirs)


def test_a_view_on_copies_and_one_that_is_filled_anew() -> None:
    given = slot(learns=None)
    with torch.no_grad():
        given.view.copy()
        found = given.blended(given.h)
        plain = slot(learns=None, dtype=torch.float64)
        plain.view.copy()
        near(found[:, : len(MIXED)], plain.blended(given.h.double())[:, : len(MIXED)], EXACT)
    again, other = slot(), [*MIXED[:4], Part(Kind.GATED, 0.2), Part(Kind.MULTIPLY, 0.4), Part(Kind.FULL), *MIXED[7:]]
    again.outcome()
    again.fill(other)
    plain = slot(dtype=torch.float64)
    plain.fill(other)
    check_close(again, again.outcome(), plain.outcome(), EXACT, len(other))


@cuda
def test_what_was_captured_follows_its_tables() -> None:
    other = [*MIXED[:4], Part(Kind.GATED, 0.2), Part(Kind.MULTIPLY, 0.4), Part(Kind.FULL), *MIXED[7:]]
    with torch.cuda.stream(torch.cuda.Stream()):
        given = slot()
        given.outcome()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            out, of_h, grads = given.outcome()
        given.fill(other)
        graph.replay()
        expected = given.outcome()
    torch.cuda.synchronize()
    assert torch.equal(out, expected[0])
    assert torch.equal(of_h, expected[1])
    for mine, theirs in zip(grads, expected[2], strict=True):
        assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
