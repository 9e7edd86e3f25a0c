"""A compiled network grows: right in every stage, one graph for each structure, and no new one while alpha moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, optim

from esper.kasmina import Growable
from esper.kasmina.blueprints import names
from esper.kasmina.hosts import ConvHost
from esper.leyline.actions import Style
from esper.leyline.reports import LifecycleConfig
from esper.leyline.stages import Stage
from tests.kasmina.growing import STYLES, assert_equal, grow, measure, to_blending, to_fossil, to_training, unlike_birth
from tests.kasmina.zoo import BY_NAME, Specimen, leaves, loss_of, run

TINY = BY_NAME["conv_host"]
FIRST, INNER, SECOND = TINY.slots[1], TINY.slots[0], TINY.slots[2]


class Counting:
    """A backend that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing compiled before or afterwards; the limit of recompilation is an error, where it would be a warning."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def compiled(net: Growable, **settings: Any) -> tuple[Callable[..., Any], Counting]:
    backend = Counting()
    return torch.compile(net, backend=backend, **settings), backend


def check(net: Growable, fast: Callable[..., Any], specimen: Specimen = TINY) -> None:
    """Outputs and gradients of the compiled network in training mode, and its output in evaluation, against the eager one's."""
    found = []
    for model in (net, fast):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net.zero_grad()
            output = run(model, specimen.example(4))  # type: ignore[arg-type]
            loss_of(output).backward()
            found.append([*leaves(output), *(p.grad for p in net.parameters() if p.grad is not None)])
    assert_equal(found[1], [leaf.detach() for leaf in found[0]], tolerance=1e-5)


def counts(net: Growable, fast: Callable[..., Any], backend: Counting) -> int:
    """How many graphs the next pass compiles."""
    before = backend.graphs
    fast(TINY.example(4))
    return backend.graphs - before


WHOLE = [(name, True) for name in ("conv_host", "encoder", "in_place", "namedtuple", "tied")]


@pytest.mark.parametrize(("name", "fullgraph"), [*WHOLE, ("tied", False)])
def test_the_compiled_network_is_right_in_every_stage(name: str, fullgraph: bool) -> None:
    specimen = BY_NAME[name]
    net = grow(specimen)
    fast, _ = compiled(net, fullgraph=fullgraph)
    check(net, fast, specimen)
    check(net, fast, specimen)
    unlike_birth(to_training(net, specimen, STYLES))
    check(net, fast, specimen)
    to_blending(net, specimen)
    check(net, fast, specimen)
    to_fossil(net, specimen)
    check(net, fast, specimen)
    assert {net.report(slot).stage for slot in net.slot_ids} == {Stage.FOSSILIZED}


@pytest.mark.parametrize("style", STYLES)
def test_a_step_of_alpha_compiles_nothing(style: Style) -> None:
    net = grow(TINY)
    fast, backend = compiled(net, fullgraph=True)
    net.germinate(FIRST, "conv_small", style=style, tempo=6)
    net.advance(FIRST)
    check(net, fast)
    unlike_birth(net)
    measure(net, TINY)
    net.advance(FIRST)
    check(net, fast)
    before, alphas = backend.graphs, []
    while net.report(FIRST).stage is Stage.BLENDING:
        net.tick()
        check(net, fast)
        alphas.append(net.report(FIRST).alpha)
    assert len(set(alphas)) == 6
    assert net.report(FIRST).stage is Stage.HOLDING
    net.set_alpha_target(FIRST, 0.5, speed=2)
    for _ in range(2):
        net.tick()
        check(net, fast)
    assert backend.graphs == before, "blending and holding are one structure, whatever alpha is"


def test_each_structure_is_compiled_once() -> None:
    net = grow(TINY)
    fast, backend = compiled(net)
    assert counts(net, fast, backend) == 1
    assert counts(net, fast, backend) == 0
    net.germinate(FIRST, "conv_small")
    assert counts(net, fast, backend) == 0, "the seed is not in the forward pass yet"
    net.advance(FIRST)
    assert counts(net, fast, backend) == 1
    with net.without(FIRST):
        assert counts(net, fast, backend) == 1
    with net.trial(FIRST):
        assert counts(net, fast, backend) == 1
    for _ in range(3):
        assert counts(net, fast, backend) == 0
        with net.without(FIRST):
            assert counts(net, fast, backend) == 0
        with net.trial(FIRST):
            assert counts(net, fast, backend) == 0


def test_more_than_thirty_changes_of_structure_keep_working() -> None:
    specimen = BY_NAME["mlp"]  # which compiles fastest
    first, second = specimen.slots
    net = grow(specimen, lifecycle=LifecycleConfig(embargo_epochs=1, reset_epochs=1))
    fast, backend = compiled(net, fullgraph=True)
    known = names(net.report(first).topology)
    changes = 0
    for turn in range(6):
        for slot in (first, second):
            net.germinate(slot, known[turn % len(known)], style=STYLES[turn % len(STYLES)], tempo=20)
            net.advance(slot)
            check(net, fast, specimen)
            unlike_birth(net)
            measure(net, specimen)
            net.advance(slot)
            net.tick()
            check(net, fast, specimen)
        for slot in (first, second):
            net.prune(slot)
            check(net, fast, specimen)
            while net.report(slot).stage is not Stage.DORMANT:
                net.tick()
            check(net, fast, specimen)
        changes += 6
    assert changes == 36
    assert backend.graphs == changes, "each change of structure compiles one graph, and nothing else does"


def test_one_blueprint_after_another_keeps_working_while_their_absence_is_measured() -> None:
    specimen = BY_NAME["in_place"]
    net = grow(specimen, lifecycle=LifecycleConfig(embargo_epochs=1, reset_epochs=1))
    fast, backend = compiled(net)
    slot = specimen.slots[0]
    for blueprint in names(net.report(slot).topology):
        net.germinate(slot, blueprint)
        net.advance(slot)
        check(net, fast, specimen)
        with net.without(slot):
            check(net, fast, specimen)
        net.eval()
        check(net, fast, specimen)
        net.train()
        net.prune(slot)
        while net.report(slot).stage is not Stage.DORMANT:
            net.tick()
    assert backend.graphs > 8, "more than the versions of one function that torch allows"


def test_counterfactuals_are_right_in_a_compiled_network() -> None:
    net = unlike_birth(to_blending(to_training(grow(TINY), TINY, STYLES), TINY)).eval()
    fast, _ = compiled(net, fullgraph=True)
    example = TINY.example(4)
    ways: list[Callable[[], Any]] = [
        lambda: net.without(FIRST),
        lambda: net.without(SECOND),
        net.bare,
        lambda: net.without(),
    ]
    with torch.no_grad():
        expected = []
        for way in ways:
            with way():
                expected.append(net(example))
        for _ in range(2):
            for way, right in zip(ways, expected, strict=True):
                with way():
                    assert_equal([fast(example)], [right])
        sets = [frozenset(net.slot_ids) - {FIRST}, frozenset(net.slot_ids) - {SECOND}, frozenset[str](), frozenset(net.slot_ids)]
        with net.stacked(sets, len(example)):
            stacked = fast(torch.cat([example] * 4))
        assert_equal(list(stacked.chunk(4)), expected, tolerance=1e-5)
    assert not torch.allclose(expected[0], expected[3], atol=1e-4)


def test_a_shadow_pass_works_in_a_compiled_network() -> None:
    net = unlike_birth(to_training(grow(TINY, isolation="shadow"), TINY))
    fast, _ = compiled(net, fullgraph=True)
    check(net, fast)
    found = []
    for model in (net, fast):
        net.zero_grad()
        net.shadow_backward(lambda model=model: loss_of(run(model, TINY.example(4))))  # type: ignore[misc]
        found.append([p.grad.clone() for p in net.slots.parameters() if p.grad is not None])
    assert found[0]
    assert_equal(found[1], found[0], tolerance=1e-5)
    assert all(p.grad is None for p in net.host.parameters())


def test_a_loaded_state_is_what_the_compiled_network_computes() -> None:
    source = unlike_birth(to_blending(to_training(grow(TINY), TINY, STYLES), TINY))
    net = unlike_birth(to_training(grow(TINY), TINY))
    fast, _ = compiled(net, fullgraph=True)
    check(net, fast)
    net.load_state_dict(source.state_dict())
    check(net, fast)
    with torch.no_grad():
        assert_equal([fast(TINY.example(4))], [source(TINY.example(4))], tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_network_compiled_for_real_grows_from_seed_to_fossil() -> None:
    smallest = Specimen(name="conv_host", factory=lambda: ConvHost(1, 3, (2,)), inputs=TINY.inputs, slots=("blocks.0",))
    slot = smallest.slots[0]
    net = grow(smallest)
    fast = torch.compile(net)
    optimizer = optim.SGD(net.parameter_groups(), lr=0.01, momentum=0.9)
    net.follow(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(fast(smallest.example())).backward()
        optimizer.step()

    net.germinate(slot, "norm", tempo=2)
    net.advance(slot)
    step()
    check(net, fast, smallest)
    net.advance(slot)
    while net.report(slot).stage is Stage.BLENDING:
        net.tick()
        step()
        check(net, fast, smallest)
    net.record(slot, contribution=1.0)
    net.fossilize(slot)
    step()
    check(net, fast, smallest)
    assert net.report(slot).stage is Stage.FOSSILIZED
