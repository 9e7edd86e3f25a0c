"""The kernels for many hosts at once give what torch gives, the same bits twice, and for a host whatever hosts are beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.stacking.rows import stacked
from esper.kasmina.stacking.stacked import StackedModule
from tests.kasmina.kernels import DEVICE, cuda, needs_kernels

pytestmark = needs_kernels

SHAPES = [
    # samples, hosts, channels, outputs, height, width, kernel, padding (left, right, top, bottom)
    (3, 2, 3, 8, 7, 5, 3, (1, 1, 1, 1)),
    (2, 3, 1, 17, 4, 6, 5, (2, 2, 2, 2)),
    (5, 1, 5, 70, 1, 1, 1, (0, 0, 0, 0)),
    (1, 4, 70, 2, 5, 3, 1, (0, 0, 0, 0)),
    (40, 2, 9, 3, 6, 6, 3, (0, 0, 0, 0)),
    (2, 2, 3, 4, 3, 3, 1, (2, 2, 2, 2)),
    (2, 2, 33, 33, 2, 2, 3, (1, 1, 1, 1)),
    (70, 1, 2, 40, 1, 9, 3, (1, 1, 1, 1)),
    (3, 2, 4, 4, 4, 5, 2, (0, 1, 0, 1)),
    # pixels enough that each is computed by itself
    (37, 2, 3, 8, 8, 9, 3, (1, 1, 1, 1)),
    (32, 1, 5, 20, 8, 8, 2, (0, 1, 0, 1)),
    (2, 1, 2, 1, 33, 32, 1, (2, 2, 2, 2)),
]
EXACT, BF16 = 1e-5, 3e-2
"""How far a value may be from that in double precision, as a share of the largest."""


@pytest.fixture
def exact() -> Iterator[None]:
    """Products of float32 without rounding to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same numbers each time."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.to(DEVICE, dtype).requires_grad_()


def outcome(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """What a function gives, and the gradients of a loss in which every number weighs differently."""
    out = function(*inputs)
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64, device=out.device).sin().view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, weights)]


def check_close(found: list[Tensor], expected: list[Tensor], share: float) -> None:
    for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.shape == theirs.shape
        largest = float(theirs.abs().max())
        torch.testing.assert_close(
            mine.double(), theirs.double(), rtol=0, atol=share * largest, msg=lambda text, at=at: f"number {at}: {text}"
        )


def in_double(*inputs: Tensor) -> list[Tensor]:
    return [each.detach().double().requires_grad_() for each in inputs]


def grouped(padding: tuple[int, int, int, int]) -> Callable[..., Tensor]:
    """torch's convolution of many hosts."""

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = F.conv2d(F.pad(x.flatten(1, 2), padding), weight.flatten(0, 1), bias.flatten(), groups=x.shape[1])
        return out.unflatten(1, (x.shape[1], -1))

    return convolve


def ours(padding: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> Callable[..., Tensor]:
    from esper.kasmina.stacking.kernels.convolution import convolved

    return lambda x, weight, bias=None: convolved(x, weight, bias, padding, dtype)


def layers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    samples, hosts, channels, outputs, height, width, kernel = shape[:7]
    inputs = drawn(samples, hosts, channels, height, width, dtype=dtype)
    return [inputs, drawn(hosts, outputs, channels, kernel, kernel, dtype=dtype), drawn(hosts, outputs, dtype=dtype)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolutions_and_their_gradients(shape: tuple[int, ...]) -> None:
    tensors, padding = layers(shape), shape[7]
    check_close(outcome(ours(padding), *tensors), outcome(grouped(padding), *in_double(*tensors)), EXACT)


@cuda  # the interpreter has no products of bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolutions_in_bfloat16_keep_the_dtypes_of_their_tensors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors, padding = layers(shape, dtype), shape[7]
    found = outcome(ours(padding, torch.bfloat16), *tensors)
    assert [each.dtype for each in found] == [torch.bfloat16, dtype, dtype, dtype]
    check_close(found, outcome(grouped(padding), *in_double(*tensors)), BF16)


def test_a_convolution_without_bias_on_an_input_that_needs_no_gradient() -> None:
    x, weight, _ = layers(SHAPES[4])
    found = outcome(lambda weight: ours(SHAPES[4][7])(x.detach(), weight), weight)
    twice = in_double(x, weight)
    expected = outcome(lambda weight: grouped(SHAPES[4][7])(twice[0].detach(), weight, weight.new_zeros(weight.shape[:2])), twice[1])
    check_close(found, expected, EXACT)


def test_a_convolution_of_some_rows_of_a_batch() -> None:
    x, weight, bias = layers((4, 5, 3, 6, 4, 6, 3))
    some = [x.transpose(3, 4)[:, 1:3].detach().requires_grad_(), weight[1:3].detach().requires_grad_(), bias[1:3].detach().requires_grad_()]
    assert not some[0].is_contiguous()
    check_close(outcome(ours((1, 1, 1, 1)), *some), outcome(grouped((1, 1, 1, 1)), *in_double(*some)), EXACT)


def norms(samples: int, hosts: int, channels: int, groups: int, *space: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from esper.kasmina.stacking.kernels.group_norm import normalised

    tensors = [drawn(samples, hosts, channels, *space), drawn(hosts, channels), drawn(hosts, channels)]
    return lambda x, weight, bias: normalised(x, groups, weight, bias, 1e-5, x.dtype), tensors


@pytest.mark.parametrize(
    "sizes",
    [(3, 2, 8, 1, 5, 3), (2, 3, 12, 2, 4), (40, 1, 1, 1, 1, 7), (1, 5, 24, 3, 1), (2, 2, 9, 1, 16, 16), (2, 1, 8, 1, 32, 32)],
    ids=str,
)
def test_group_norms_and_their_gradients(sizes: tuple[int, ...]) -> None:
    function, tensors = norms(*sizes)

    def expected(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x.flatten(1, 2), sizes[3] * sizes[1], weight.flatten(), bias.flatten(), 1e-5).view(x.shape)

    check_close(outcome(function, *tensors), outcome(expected, *in_double(*tensors)), 1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 2, 6, 10), (3, 1, 2, 2), (2, 2, 32, 32), (1, 1, 2, 70)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_max_pools_are_those_of_torch_with_equal_values_and_without_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from esper.kasmina.stacking.kernels.max_pool import halved

    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.view(-1)[:2], x.view(-1)[-1] = float("nan"), float("-inf")
    found, expected = (outcome(function, x.to(DEVICE).requires_grad_()) for function in (halved, lambda x: F.max_pool2d(x, 2)))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


WORK = {
    "few pixels": lambda: (ours((1, 1, 1, 1)), layers((40, 5, 9, 20, 6, 7, 3))),
    "many pixels": lambda: (ours((1, 1, 1, 1)), layers((70, 5, 9, 20, 6, 7, 3))),
    "bfloat16": lambda: (ours((1, 1, 1, 1), torch.bfloat16), layers((70, 5, 9, 20, 6, 7, 3))),
    "group norm": lambda: norms(70, 5, 16, 2, 6, 6),
}


@pytest.mark.parametrize("name", WORK)
def test_the_same_bits_twice(name: str) -> None:
    function, tensors = WORK[name]()
    for first, second in zip(outcome(function, *tensors), outcome(function, *tensors), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", WORK)
def test_a_host_gets_the_same_bits_whoever_is_beside_it(name: str) -> None:
    function, (x, *weights) = WORK[name]()
    out = function(x, *weights)
    gradient = drawn(*out.shape).detach().to(out.dtype)
    together = [out, *torch.autograd.grad(out, [x, *weights], gradient)]
    mine = [x[:, 2:3].detach().requires_grad_(), *(each[2:3].detach().requires_grad_() for each in weights)]
    alone = function(*mine)
    for at, (all_hosts, one) in enumerate(zip(together, [alone, *torch.autograd.grad(alone, mine, gradient[:, 2:3])], strict=True)):
        assert torch.equal(all_hosts[:, 2:3] if at < 2 else all_hosts[2:3], one)


@cuda
@pytest.mark.parametrize("autocast", [False, True])
def test_networks_of_several_hosts_use_them_and_agree_with_each_alone(autocast: bool, exact: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from esper.kasmina.stacking.kernels import convolution, group_norm, max_pool

    used: set[str] = set()
    for module, name in ((convolution, "convolved"), (group_norm, "normalised"), (max_pool, "halved")):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, plain=plain, name=name: (used.add(name), plain(*args))[1])

    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding="same"), nn.GroupNorm(2, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 4, 1))
    modules = [copy.deepcopy(network).to(DEVICE) for _ in range(3)]
    for host, module in enumerate(modules):
        for p in module.parameters():
            p.data += 0.1 * host
    together, rows = StackedModule(modules[0]), stacked([copy.deepcopy(each) for each in modules])
    values = rows.values()
    together.bind(values, 3)
    x = drawn(8, 3, 3, 8, 8)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        out = together.module(x.flatten(0, 1)).unflatten(0, (8, 3))
        alone = torch.stack([module(x[:, host]) for host, module in enumerate(modules)], 1)
    assert used == {"convolved", "normalised", "halved"}
    assert out.dtype == alone.dtype
    check_close([out.detach()], [alone.detach()], BF16 if autocast else EXACT)
    gradient = drawn(*out.shape).detach().to(out.dtype)
    found = torch.autograd.grad(out, [x, *(values[name] for name in rows.names)], gradient)
    expected = torch.autograd.grad(alone, [x, *(p for module in modules for p in module.parameters())], gradient)
    count = len(rows.names)
    by_host = [torch.stack([expected[1 + host * count + at] for host in range(3)]) for at in range(count)]
    # Where the largest of two by two pixels differ by rounding alone, as in bfloat16, a gradient may be another pixel's.
    check_close(list(found[-2:]), by_host[-2:], BF16 if autocast else 10 * EXACT)
    if not autocast:
        check_close(list(found), [expected[0], *by_host], 10 * EXACT)
