"""Every registered blueprint: born as the identity, alive, of the size that is promised, and plain enough to be exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.kasmina.blueprints import (
    BLUEPRINTS,
    GroupNorm,
    Seed,
    SlotShape,
    blueprint,
    build,
    names,
    parameter_count,
    unregister,
)
from esper.kasmina.blueprints.registry import get
from esper.kasmina.blueprints.seed import LAYER_SCALE
from esper.kasmina.blueprints.tokens import head_count
from esper.leyline.errors import BlueprintError, SlotError, UnknownNameError
from esper.leyline.reports import Topology

MAP2D, MAP1D, TOKENS, VECTOR = Topology.MAP2D, Topology.MAP1D, Topology.TOKENS, Topology.VECTOR
WIDTHS = {MAP2D: (1, 2, 3, 8, 32), MAP1D: (1, 2, 3, 8, 32), TOKENS: (2, 3, 8, 32, 48), VECTOR: (2, 3, 8, 32)}
EVERY = [pytest.param(kind, name, id=f"{kind}-{name}") for kind, name in BLUEPRINTS]
EVERY_WIDTH = [pytest.param(kind, name, width, id=f"{kind}-{name}-{width}") for kind, name in BLUEPRINTS for width in WIDTHS[kind]]


def features(kind: Topology, width: int, *, batch: int = 6) -> Tensor:
    """Unit-normal features at a slot."""
    return torch.randn({MAP2D: (batch, width, 6, 5), MAP1D: (batch, width, 9), TOKENS: (batch, 7, width), VECTOR: (batch, width)}[kind])


def convolution_counts(area: int) -> dict[str, Callable[[int], int]]:
    """Parameters of the branches for maps, by width; `area` is the number of places in a kernel of size 3."""
    return {
        "norm": lambda c: 2 * c,
        "attention": lambda c: 2 * c * max(1, c // 4) + c,
        "depthwise": lambda c: area * c + c * c + 2 * c,
        "bottleneck": lambda c: 2 * c * max(8, c // 4) + area * max(8, c // 4) ** 2 + 2 * c,
        "conv_small": lambda c: c * c + 2 * c,
        "conv_light": lambda c: area * c * c + 2 * c,
        "conv_heavy": lambda c: 2 * (area * c * c + 2 * c),
    }


TOKEN_COUNTS: dict[str, Callable[[int], int]] = {
    "norm": lambda d: 2 * d,
    "lora8": lambda d: 2 * d * 8,
    "lora32": lambda d: 2 * d * 32,
    "attention": lambda d: 4 * d * d + 4 * d,
    "mlp_small": lambda d: 4 * d * d + 2 * d + d,
    "mlp": lambda d: 8 * d * d + 4 * d + d,
}
COUNTS = {
    MAP2D: convolution_counts(9),
    MAP1D: convolution_counts(3),
    TOKENS: TOKEN_COUNTS,
    VECTOR: {name: count for name, count in TOKEN_COUNTS.items() if name != "attention"},
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def register() -> Iterator[None]:
    """Leaves the register as it was."""
    before = dict(BLUEPRINTS)
    yield
    BLUEPRINTS.clear()
    BLUEPRINTS.update(before)


def grown(kind: Topology, width: int) -> nn.Sequential:
    """One seed of every blueprint of a topology, in a row, with gammas large enough for each to be seen in the output."""
    seeds = nn.Sequential(*(build(name, SlotShape(kind, width)) for name in names(kind)))
    for seed in seeds:
        nn.init.normal_(seed.get_parameter("gamma"), std=0.5)
    return seeds


# Seeds


@pytest.mark.parametrize(("kind", "name", "width"), EVERY_WIDTH)
def test_a_seed_is_born_as_the_identity(kind: Topology, name: str, width: int) -> None:
    x = features(kind, width)
    seed = build(name, SlotShape(kind, width))
    change = (seed(x) - x).norm() / x.norm()
    assert 0 < change < 1e-2
    assert torch.equal(seed.gamma, torch.full_like(seed.gamma, LAYER_SCALE))


@pytest.mark.parametrize(("kind", "name", "width"), EVERY_WIDTH)
def test_a_seed_is_alive_every_parameter_has_a_gradient_within_two_steps(kind: Topology, name: str, width: int) -> None:
    x = features(kind, width)
    target = torch.randn_like(x)
    seed = build(name, SlotShape(kind, width))
    optimizer = torch.optim.SGD(seed.parameters(), lr=0.1)
    moved = set()
    for _ in range(2):
        optimizer.zero_grad()
        (seed(x) - target).square().mean().backward()
        moved |= {key for key, p in seed.named_parameters() if p.grad is not None and p.grad.norm() > 0}
        optimizer.step()
    assert moved == {key for key, _ in seed.named_parameters()}


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_branch_is_born_about_as_large_as_its_input_so_that_gamma_means_the_same_for_all(kind: Topology, name: str) -> None:
    branch = build(name, SlotShape(kind, 32)).branch
    assert 0.15 < branch(features(kind, 32, batch=32)).square().mean().sqrt() < 2


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_no_seed_is_born_dead_on_features_behind_a_relu(kind: Topology, name: str) -> None:
    dead = []
    for draw in range(20):
        torch.manual_seed(draw)
        for width in (2, 4, 8):
            x = features(kind, width).relu()
            seed = build(name, SlotShape(kind, width))
            (seed(x) - torch.randn_like(x)).square().sum().backward()
            dead += [(draw, width, key) for key, p in seed.named_parameters() if p.grad is None or p.grad.norm() == 0]
    assert dead == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "name", "width"), EVERY_WIDTH)
def test_a_seed_keeps_shape_and_dtype(kind: Topology, name: str, width: int, dtype: torch.dtype) -> None:
    x = features(kind, width).to(dtype)
    out = build(name, SlotShape(kind, width)).to(dtype)(x)
    assert (out.shape, out.dtype) == (x.shape, dtype)


@pytest.mark.parametrize(("kind", "name", "width"), EVERY_WIDTH)
def test_a_seed_has_as_many_parameters_as_its_formula_says(kind: Topology, name: str, width: int) -> None:
    shape = SlotShape(kind, width)
    real = sum(p.numel() for p in build(name, shape).parameters())
    assert real == COUNTS[kind][name](width) + width
    assert parameter_count(name, shape) == real


@given(entry=st.sampled_from(list(BLUEPRINTS)), width=st.integers(2, 300))
def test_the_formula_holds_for_any_width(entry: tuple[Topology, str], width: int) -> None:
    kind, name = entry
    assert parameter_count(name, SlotShape(kind, width)) == COUNTS[kind][name](width) + width


def test_counting_parameters_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    for kind, name in BLUEPRINTS:
        parameter_count(name, SlotShape(kind, 32))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_generator_state_builds_the_same_seed() -> None:
    def weights() -> list[Tensor]:
        torch.manual_seed(7)
        return [p.detach() for kind in Topology for p in grown(kind, 8).parameters()]

    assert all(map(torch.equal, weights(), weights()))


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("name", names(MAP2D))
def test_a_detached_channels_last_input_can_be_trained_on(name: str, width: int, size: int) -> None:
    """torch's own GroupNorm ends the process here; one channel and 1x1 maps are contiguous in both layouts at once."""
    torch.manual_seed(0)
    flat = torch.randn(4, size, size, width)
    x = flat.permute(0, 3, 1, 2).detach()
    seed, plain = (build(name, SlotShape(MAP2D, width)) for _ in range(2))
    plain.load_state_dict(seed.state_dict())
    target = torch.randn(x.shape)
    for module, maps in ((seed, x), (plain, x.clone(memory_format=torch.contiguous_format))):
        (module(maps) - target).square().mean().backward()
    for p, q in zip(seed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_channels_last_features_stay_channels_last() -> None:
    x = features(MAP2D, 8).contiguous(memory_format=torch.channels_last)
    kept = [build(name, SlotShape(MAP2D, 8))(x).is_contiguous(memory_format=torch.channels_last) for name in names(MAP2D)]
    assert all(kept)


@pytest.mark.parametrize(("width", "groups"), [(1, 1), (3, 1), (8, 1), (17, 1), (20, 2), (32, 4), (128, 16)])
def test_a_group_of_the_norm_has_at_least_eight_channels_where_there_are_as_many(width: int, groups: int) -> None:
    assert GroupNorm(width).norm.num_groups == groups


@pytest.mark.parametrize(("width", "heads"), [(2, 1), (16, 1), (32, 2), (48, 3), (64, 4), (96, 6), (128, 8), (384, 8), (37, 1)])
def test_a_head_has_at_least_sixteen_features(width: int, heads: int) -> None:
    assert head_count(width) == heads


def test_causal_attention_does_not_look_ahead_and_the_other_does() -> None:
    x = features(TOKENS, 32)
    later = x.clone()
    later[:, 4:] += 1.0 + torch.randn_like(later[:, 4:])
    causal, free = build("attention", SlotShape(TOKENS, 32)), build("attention", SlotShape(TOKENS, 32, causal=False))
    assert torch.equal(causal(x)[:, :4], causal(later)[:, :4])
    assert not torch.equal(causal(x)[:, 4:], causal(later)[:, 4:])
    assert not torch.equal(free(x)[:, :4], free(later)[:, :4])


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_checkpointing_changes_no_bit(kind: Topology, name: str, detached: bool) -> None:
    shape = SlotShape(kind, 16)
    plain, lean = build(name, shape), build(name, shape, checkpoint=True)
    lean.load_state_dict(plain.state_dict())
    x = features(kind, 16)
    runs = []
    for seed in (plain, lean):
        fed = x.clone().requires_grad_(not detached)
        out = seed(fed)
        out.square().sum().backward()
        runs.append([out, *([] if detached else [fed.grad]), *(p.grad for p in seed.parameters())])
    assert all(map(torch.equal, *runs))


def test_checkpointing_keeps_no_activations_of_the_branch() -> None:
    def saved(seed: Seed) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
            seed(features(TOKENS, 32))
        return sum(sizes)

    shape = SlotShape(TOKENS, 32)
    assert saved(build("mlp", shape, checkpoint=True)) < saved(build("mlp", shape)) / 2


# What a seed goes through on its way out


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_seed_can_be_traced_down_to_torch(kind: Topology, name: str) -> None:
    seed, x = build(name, SlotShape(kind, 32)), features(kind, 32)
    traced = torch.fx.symbolic_trace(seed)
    assert torch.equal(traced(x), seed(x))
    assert torch.equal(traced(x[:2]), seed(x[:2]))
    used = [type(traced.get_submodule(str(node.target))).__module__ for node in traced.graph.nodes if node.op == "call_module"]
    assert all(module.startswith("torch.nn") for module in used)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_seed_compiles_without_a_graph_break(kind: Topology, name: str) -> None:
    torch.compiler.reset()  # all seeds share one forward, and torch compiles a function eight times at most
    seed, x = build(name, SlotShape(kind, 8)), features(kind, 8)
    compiled = torch.compile(seed, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), seed(x))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_seed_can_be_exported_with_a_dynamic_batch(kind: Topology, name: str) -> None:
    seed, x = build(name, SlotShape(kind, 8)), features(kind, 8)
    exported = torch.export.export(seed, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(x), seed(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", Topology)
def test_seeds_run_under_onnx(kind: Topology, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    seeds, x = grown(kind, 32).eval(), features(kind, 32)
    file = tmp_path / "seeds.onnx"
    torch.onnx.export(seeds, (x[:2],), file, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), seeds(x).detach(), rtol=1e-4, atol=1e-5)


# The register


def test_names_come_in_the_order_of_registration() -> None:
    maps = ("norm", "attention", "depthwise", "bottleneck", "conv_small", "conv_light", "conv_heavy")
    assert names(MAP2D) == names(MAP1D) == maps
    assert names(TOKENS) == ("norm", "lora8", "lora32", "attention", "mlp_small", "mlp")
    assert names(VECTOR) == ("norm", "lora8", "lora32", "mlp_small", "mlp")


def test_an_unknown_name_gets_the_nearest_of_its_topology() -> None:
    with pytest.raises(UnknownNameError, match="unknown blueprint 'conv_lite'; did you mean 'conv_light'"):
        get(MAP2D, "conv_lite")
    with pytest.raises(UnknownNameError, match="unknown blueprint 'mpl_smal'; did you mean 'mlp_small'"):
        build("mpl_smal", SlotShape(VECTOR, 8))


def test_a_name_of_another_topology_is_said_to_be_so() -> None:
    with pytest.raises(BlueprintError, match="'conv_light' is for map2d, map1d; the slot is tokens, which has: norm, lora8"):
        get(TOKENS, "conv_light")


@pytest.mark.usefixtures("register")
def test_a_user_registers_a_blueprint_like_ours() -> None:
    @blueprint("tall_conv", [MAP2D], purpose="a column of pixels")
    def tall_conv(shape: SlotShape) -> nn.Module:
        return nn.Conv2d(shape.width, shape.width, (3, 1), padding=(1, 0))

    assert names(MAP2D)[-1] == "tall_conv"
    assert get(MAP2D, "tall_conv").purpose == "a column of pixels"
    assert parameter_count("tall_conv", SlotShape(MAP2D, 4)) == 3 * 16 + 4 + 4
    unregister("tall_conv", MAP2D)
    assert "tall_conv" not in names(MAP2D)
    with pytest.raises(UnknownNameError):
        unregister("tall_conv", MAP2D)


@pytest.mark.usefixtures("register")
def test_a_duplicate_is_refused_with_the_place_of_the_first_and_changes_nothing() -> None:
    blueprint("twice", TOKENS, purpose="the first")(lambda shape: nn.Linear(shape.width, shape.width))
    before = dict(BLUEPRINTS)
    with pytest.raises(BlueprintError, match=r"'twice' at .*: tokens has one of that name, registered at .*test_blueprints.py:\d+"):
        blueprint("twice", (VECTOR, TOKENS), purpose="the second")(lambda shape: nn.Identity())
    assert before == BLUEPRINTS


@pytest.mark.parametrize("name", ["", "Conv", "conv-light", "2conv", "conv light", "_conv", "conv_"])
def test_a_name_that_is_not_snake_case_is_refused(name: str) -> None:
    with pytest.raises(BlueprintError, match="expected snake_case"):
        blueprint(name, MAP2D, purpose="anything")


@pytest.mark.parametrize("purpose", ["", "  ", "two\nlines"])
def test_a_purpose_is_one_line(purpose: str) -> None:
    with pytest.raises(BlueprintError, match="purpose must be one line"):
        blueprint("fine", MAP2D, purpose=purpose)


def test_a_topology_must_exist() -> None:
    with pytest.raises(UnknownNameError, match="unknown topology 'map3d'; did you mean 'map"):
        blueprint("fine", "map3d", purpose="anything")  # type: ignore[arg-type]
    with pytest.raises(BlueprintError, match="at least one topology"):
        blueprint("fine", (), purpose="anything")


@pytest.mark.usefixtures("register")
def test_a_builder_must_return_a_module() -> None:
    blueprint("wrong", MAP2D, purpose="returns text")(lambda shape: "a module")  # type: ignore[arg-type,return-value]
    with pytest.raises(BlueprintError, match=r"'wrong' at .* must return an nn\.Module; found str"):
        build("wrong", SlotShape(MAP2D, 4))


@pytest.mark.parametrize(("kind", "width", "least"), [(MAP2D, 0, 1), (MAP1D, -3, 1), (TOKENS, 1, 2), (VECTOR, 1, 2)])
def test_a_slot_too_narrow_to_be_normalised_is_refused(kind: Topology, width: int, least: int) -> None:
    with pytest.raises(SlotError, match=f"{kind} features needs a width of at least {least}; found {width}"):
        SlotShape(kind, width)
