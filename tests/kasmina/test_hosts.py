"""The built-in hosts: their sizes, shapes and slots, and that they are plain enough for compiling, tracing and exporting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.hosts import BlockParts, ConvHost, GPTHost
from esper.leyline.errors import ConfigError

DEEP = (8, 16, 32, 64, 128)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def small_gpt(*, dropout: float = 0.0, checkpoint: bool = False) -> GPTHost:
    torch.manual_seed(0)
    return GPTHost(31, block=12, width=32, heads=4, layers=3, dropout=dropout, checkpoint=checkpoint)


def some_tokens() -> Tensor:
    return torch.randint(0, 31, (3, 12))


@pytest.mark.parametrize(
    ("host", "parameters"),
    [
        pytest.param(ConvHost(), 6_418, id="cifar10"),
        pytest.param(ConvHost(widths=(1, 2, 4), kernel=1), 77, id="impaired"),
        pytest.param(ConvHost(widths=DEEP), 99_922, id="deep"),
        pytest.param(ConvHost(1, 7, (4, 6), depth=2), 36 + 144 + 216 + 324 + 2 * (4 + 4 + 6 + 6) + 7 * 6 + 7, id="two-layers-a-block"),
    ],
)
def test_a_conv_host_has_exactly_its_parameters(host: ConvHost, parameters: int) -> None:
    assert count(host) == parameters


@pytest.mark.parametrize(
    ("host", "channels", "size"),
    [
        pytest.param(ConvHost(), 3, 32, id="cifar10"),
        pytest.param(ConvHost(1), 1, 8, id="digits"),
        pytest.param(ConvHost(1), 1, 28, id="fashion"),
        pytest.param(ConvHost(widths=DEEP), 3, 32, id="deep"),
        pytest.param(ConvHost(1, widths=DEEP, pools=(True, True, False, False, False)), 1, 8, id="deep-on-digits"),
    ],
)
def test_a_conv_host_gives_logits_for_the_images_of_its_task(host: ConvHost, channels: int, size: int) -> None:
    assert host(torch.randn(2, channels, size, size)).shape == (2, 10)


@pytest.mark.parametrize("after_pool", [False, True])
def test_slots_of_a_conv_host_lie_before_and_behind_the_pools(after_pool: bool) -> None:
    host = ConvHost(pools=(True, False, True))
    seen: dict[str, tuple[int, ...]] = {}
    for slot, path in host.slot_paths(after_pool=after_pool).items():
        host.get_submodule(path).register_forward_hook(lambda m, a, out, slot=slot: seen.update({slot: tuple(out.shape)}))
    host(torch.randn(2, 3, 32, 32))
    before = {"r0c0": (2, 8, 32, 32), "r0c1": (2, 16, 16, 16), "r0c2": (2, 32, 16, 16)}
    behind = {"r1c0": (2, 8, 16, 16), "r1c2": (2, 32, 8, 8)}
    assert seen == before | (behind if after_pool else {})
    assert list(seen) == list(host.slot_paths(after_pool=after_pool))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, "widths is empty"),
        ({"kernel": 2}, "kernel is 2; expected an odd size"),
        ({"pools": (True,)}, "pools has 1 entries; expected one for each of the 3 widths"),
    ],
)
def test_a_conv_host_that_cannot_be_built_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConvHost(**options)  # type: ignore[arg-type]


def test_a_gpt_host_counts_its_tied_weights_once() -> None:
    host = GPTHost(1000)
    width, layers = 384, 6
    assert count(host) == 1000 * width + 256 * width + layers * (12 * width**2 + 13 * width) + 2 * width
    matrices = [key for key, tensor in host.state_dict().items() if tensor.shape[0] == 1000]
    assert matrices == ["embedding.weight"]


def test_the_tied_weights_learn_as_embedding_and_as_head() -> None:
    host, tokens = small_gpt(), torch.zeros(1, 4, dtype=torch.long)
    host(tokens).logsumexp(-1).sum().backward()
    grad = host.embedding.weight.grad
    assert grad is not None
    assert (grad[1:].norm(dim=-1) > 0).all()  # tokens that were never fed have a gradient through the head alone
    assert grad[0].norm() > grad[1:].norm(dim=-1).max()


def test_a_gpt_host_gives_logits_for_sequences_up_to_its_block() -> None:
    host = small_gpt()
    assert host(some_tokens()).shape == (3, 12, 31)
    assert host(some_tokens()[:, :5]).shape == (3, 5, 31)
    with pytest.raises(AssertionError, match="longer than the host's block of 12 tokens"):
        host(torch.zeros(1, 13, dtype=torch.long))


def test_a_gpt_host_does_not_look_ahead() -> None:
    host, tokens = small_gpt(), some_tokens()
    later = tokens.clone()
    later[:, 6:] = (later[:, 6:] + 1) % 31
    assert torch.equal(host(tokens)[:, :6], host(later)[:, :6])
    assert not torch.equal(host(tokens)[:, 6:], host(later)[:, 6:])


def test_a_newborn_gpt_host_is_close_to_the_uniform_prediction() -> None:
    loss = nn.functional.cross_entropy(small_gpt()(some_tokens()).flatten(0, 1), some_tokens().flatten())
    assert abs(loss.item() - torch.tensor(31.0).log().item()) < 0.1


def test_slots_of_a_gpt_host_lie_behind_its_blocks() -> None:
    host = small_gpt()
    assert host.slot_paths() == {"r0c0": "blocks.0", "r0c1": "blocks.1", "r0c2": "blocks.2"}
    assert all(host.get_submodule(path) is host.blocks[i] for i, path in enumerate(host.slot_paths().values()))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="width 32 cannot be divided into 5 heads"):
        GPTHost(31, width=32, heads=5)


def test_blocks_without_attention_see_one_token_at_a_time() -> None:
    host, tokens = GPTHost(31, block=12, width=32, heads=4, layers=2, parts=("mlp", "mlp")), some_tokens()
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 31
    changed = (host(tokens) != host(other)).any(-1).any(0)
    assert changed.nonzero().flatten().tolist() == [4]
    host = GPTHost(31, block=12, width=32, heads=4, layers=2, parts=("mlp", "attention"))
    assert (host(tokens) != host(other)).any(-1).any(0).nonzero().flatten().tolist() == list(range(4, 12))


def test_blocks_have_the_parameters_of_their_parts() -> None:
    def blocks(*parts: BlockParts) -> int:
        return count(GPTHost(31, block=12, width=32, heads=4, layers=len(parts), parts=parts).blocks)

    assert blocks("attention") == 4 * 32**2 + 6 * 32
    assert blocks("mlp") == 8 * 32**2 + 7 * 32
    assert blocks("both", "mlp", "attention") == 2 * blocks("both") == 2 * (blocks("mlp") + blocks("attention"))
    with pytest.raises(ConfigError, match="parts has 1 entries; expected one for each of the 2 layers"):
        GPTHost(31, width=32, heads=4, layers=2, parts=("mlp",))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_a_gpt_host_changes_no_bit(dropout: float) -> None:
    tokens, runs = some_tokens(), []
    for checkpoint in (False, True):
        host = small_gpt(dropout=dropout, checkpoint=checkpoint)
        torch.manual_seed(1)
        out = host(tokens)
        torch.rand(3)  # whatever is drawn between forward and backward must not matter
        out.square().sum().backward()
        runs.append([out, *(p.grad for p in host.parameters())])
    assert all(map(torch.equal, *runs))


def test_a_hook_on_a_checkpointed_block_runs_once_a_step() -> None:
    host, calls = small_gpt(checkpoint=True), []
    host.blocks[1].register_forward_hook(lambda m, a, out: calls.append(out))
    host(some_tokens()).sum().backward()
    assert len(calls) == 1


EXAMPLES: list[Any] = [
    pytest.param(ConvHost, lambda: torch.randn(2, 3, 32, 32), id="conv"),
    pytest.param(lambda: ConvHost(widths=DEEP), lambda: torch.randn(2, 3, 32, 32), id="deep"),
    pytest.param(small_gpt, some_tokens, id="gpt"),
]


@pytest.mark.parametrize(("make", "example"), EXAMPLES)
def test_a_host_compiles_without_a_graph_break(make: Callable[[], nn.Module], example: Callable[[], Tensor]) -> None:
    torch.compiler.reset()
    host, x = make().eval(), example()
    compiled = torch.compile(host, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), host(x))


def test_a_checkpointed_host_compiles_without_a_graph_break() -> None:
    torch.compiler.reset()
    host, x = small_gpt(checkpoint=True), some_tokens()
    compiled = torch.compile(host, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), host(x))


@pytest.mark.parametrize(("make", "example"), EXAMPLES)
def test_a_host_can_be_traced_down_to_torch(make: Callable[[], nn.Module], example: Callable[[], Tensor]) -> None:
    host, x = make(), example()
    traced = torch.fx.symbolic_trace(host).eval()
    host.eval()
    assert torch.equal(traced(x), host(x))
    assert torch.equal(traced(x[:1]), host(x[:1]))


@pytest.mark.parametrize(("make", "example"), EXAMPLES)
def test_a_host_can_be_exported_with_a_dynamic_batch(make: Callable[[], nn.Module], example: Callable[[], Tensor]) -> None:
    host, x = make().eval(), example()
    exported = torch.export.export(host, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.cat([x, x, x])
    torch.testing.assert_close(exported.module()(more), host(more))


def test_a_traced_host_drops_out_in_training_alone() -> None:
    x = some_tokens()
    traced = torch.fx.symbolic_trace(small_gpt(dropout=0.5))
    assert not torch.equal(traced(x), traced(x))
    traced.eval()
    assert torch.equal(traced(x), traced(x))
