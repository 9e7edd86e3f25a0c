"""Looking before attaching: mistakes are found in words, nothing is left behind, and the places proposed are good ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import esper
from esper.kasmina import Growable, check_growable, find_slots
from esper.kasmina.blueprints import names
from esper.leyline.errors import EsperError, SlotError, UnknownNameError
from esper.leyline.reports import Topology
from esper.leyline.stages import Stage
from tests.kasmina.growing import OPEN, fingerprint, grow, grow_one, hook_count
from tests.kasmina.networks import Patches, ReadsWeight, TiedNet
from tests.kasmina.zoo import BY_NAME, ZOO, Specimen, run

everyone = pytest.mark.parametrize("specimen", ZOO, ids=lambda s: s.name)


class Odd(nn.Module):
    """One module for each mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 6)
        self.alias = self.second
        self.unused = nn.Linear(6, 6)
        self.twice = nn.Linear(6, 6)
        self.whole = Whole()
        self.dictionary = Dictionary()
        self.empty = Empty()
        self.pile = Pile()
        self.heap = Heap()
        self.stretched = nn.Dropout(0.1)
        self.table = Table()
        self.raw = Raw()
        self.single = nn.Linear(6, 1)
        self.recurrent = nn.GRU(6, 6)
        self.turned = Turned()
        self.last_axis = nn.Linear(6, 6)
        self.bn = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        x = self.second(self.first(x))
        x = self.drop(self.bn(self.twice(self.twice(x))))
        self.whole(x), self.dictionary(x), self.empty(x), self.pile(x), self.heap(x), self.single(x), self.table()
        self.stretched(x), self.stretched(x[:, :4])
        tokens = self.raw(x)
        self.recurrent(tokens.transpose(0, 1))
        self.turned(tokens)
        self.last_axis(x[:, None, None].expand(-1, 5, 5, -1))
        if fail:
            raise RuntimeError("the tank is empty")
        return self.head(x)


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Dictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": x}


class Empty(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return ()


class Pile(nn.Module):
    """Five dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None, None, None].expand(-1, -1, 2, 2, 2)


class Heap(nn.Module):
    """Six."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None, None, None, None].expand(-1, -1, 2, 2, 2, 2)


class Table(nn.Module):
    """Positions, which no sample changes."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 5, 6))

    def forward(self) -> Tensor:
        return self.positions


class Raw(nn.Module):
    """Three dimensions, and nothing inside tells which is which."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, None].expand(-1, 5, -1)


class Turned(nn.Module):
    """Time first, but not one of torch's recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(0, 1))


EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown path": (["secnd"], {}, r"no module 'secnd'; near it: 'second'"),
    "nothing near": (["zzz"], {}, r"no module 'zzz'; it has: 'alias'"),
    "the model itself": ([""], {}, r"not empty"),
    "never called": (["unused"], {}, r"'unused': the example forward pass never calls it"),
    "called twice": (["stretched"], {}, r"'stretched': it is called 2 times in one forward pass, for features of different widths"),
    "shared": (["alias"], {}, r"'alias': it is the same module as 'second', which may carry the slot"),
    "integers": (["whole"], {}, r"dtype torch.int64; a slot needs floating-point"),
    "dict": (["dictionary"], {}, r"output is of type dict"),
    "empty tuple": (["empty"], {}, r"output is of type tuple"),
    "five dimensions": (["pile"], {}, r"shape \(3, 6, 2, 2, 2\), is not clear; say topology=.* \"BCDHW\""),
    "six dimensions": (["heap"], {}, r"is not clear; slots take 2 to 5 dimensions"),
    "unclear layout": (["raw"], {}, r"shape \(3, 5, 6\), is not clear; say topology="),
    "single feature": (["single"], {}, r"single feature"),
    "no samples": (["table"], {}, r"shape \(1, 5, 6\), does not have the example's samples along any axis"),
    "the good before the bad": (["first", "unused"], {}, r"'unused'"),
    "a string": ("first", {}, r"slots is a list of distinct module paths"),
    "no slots": ([], {}, r"slots is a list"),
    "twice the same": (["first", "first"], {}, r"distinct"),
    "two ids, one path": ({"a": "first", "b": "first"}, {}, r"two slots have the same path"),
    "an id with a slash": ({"a/b": "first"}, {}, r"without '/', found 'a/b'"),
    "an unknown topology": (["raw"], {"topology": {"raw": "tokns"}}, r"unknown topology 'tokns'; did you mean 'tokens'"),
    "a topology that does not fit": (["raw"], {"topology": {"raw": "map2d"}}, r"BCHW features have 4 axes; its output has shape"),
    "axes that are none": (["raw"], {"topology": {"raw": "BTT"}}, r"one letter each, B for the batch and C for the features.*found 'BTT'"),
    "axes without a place": (["raw"], {"topology": {"raw": "BXC"}}, r"'BXC' have neither T"),
    "a topology for nothing": (["first"], {"topology": {"frist": "vector"}}, r"no module 'frist'; near it: 'first'"),
    "an unknown isolation": (["first"], {"isolation": "steel"}, r"unknown isolation 'steel'; did you mean 'ste'"),
}


@pytest.mark.parametrize(("slots", "settings", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_in_words_and_leaves_the_model_alone(slots: Any, settings: dict[str, Any], words: str) -> None:
    model = Odd()
    model.bn.eval()
    before = fingerprint(model)
    with pytest.raises((SlotError, UnknownNameError), match=words):
        Growable(model, slots, EXAMPLE, **settings)
    assert fingerprint(model) == before
    assert hook_count(model) == 0


@pytest.mark.parametrize("example", [(EXAMPLE, True), torch.randn(3, 5), {"y": EXAMPLE}], ids=["raises", "shape", "argument"])
def test_a_model_that_fails_on_the_example_is_left_alone(example: Any) -> None:
    model = Odd()
    before = fingerprint(model)
    with pytest.raises(SlotError, match=r"the model does not run on the example input: (RuntimeError|TypeError): .+"):
        Growable(model, ["first"], example)
    assert fingerprint(model) == before
    assert hook_count(model) == 0


def test_a_projection_that_attention_never_calls_is_refused() -> None:
    specimen = BY_NAME["encoder"]
    with pytest.raises(SlotError, match=r"'blocks\.0\.attention\.out_proj': the example forward pass never calls it as a module"):
        Growable(specimen.model(), ["blocks.0.attention.out_proj"], specimen.example())


def test_an_example_without_a_batch_is_refused() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 6)

        def forward(self, size: int) -> Tensor:
            return self.embedding(torch.arange(size)[None])

    with pytest.raises(SlotError, match="does not have the example's samples along any axis"):
        Growable(Constant(), ["embedding"], (3,))


def test_a_model_without_values_is_refused_before_and_after_it_was_wrapped() -> None:
    words = r"parameter '0\.weight' is on the meta device, where nothing can grow; give the model its weights first"
    specimen = BY_NAME["mlp"]
    for example in (specimen.example(), specimen.example().to("meta")):
        with pytest.raises(SlotError, match=words):
            Growable(specimen.model().to("meta"), specimen.slots, example)
    net = Growable(specimen.model(), specimen.slots, specimen.example())
    net.to("meta")
    with pytest.raises(SlotError, match=words):
        net.germinate("1", "norm")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without torch.distributed")
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_a_sharded_model_is_refused_before_and_after_it_was_wrapped() -> None:
    from torch.distributed.fsdp import fully_shard

    words = r"parameter '0\.weight' is sharded, and seeds are not; grow the model first and shard what is harvested"
    specimen = BY_NAME["mlp"]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(SlotError, match=words):
            Growable(fully_shard(specimen.model()), specimen.slots, specimen.example())
        net = fully_shard(Growable(specimen.model(), specimen.slots, specimen.example()))
        with pytest.raises(SlotError, match=words):
            net.germinate("1", "norm")
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_not_a_module_is_refused() -> None:
    for attempt in (lambda: Growable(len, ["first"], EXAMPLE), lambda: find_slots(len, EXAMPLE)):  # type: ignore[arg-type]
        with pytest.raises(SlotError, match=r"a model is an nn\.Module, found builtin_function_or_method"):
            attempt()


@everyone
def test_attaching_changes_nothing_but_one_hook_a_slot(specimen: Specimen) -> None:
    model = specimen.model()
    before = fingerprint(model)
    net = grow(specimen, model)
    assert fingerprint(model) == before
    assert hook_count(model) == len(specimen.slots)
    assert net.training == model.training
    assert net.release() is model
    assert fingerprint(model) == before
    assert hook_count(model) == 0


def test_a_module_carries_one_slot_and_is_free_again_after_release() -> None:
    specimen = BY_NAME["residual"]
    model = specimen.model()
    first = Growable(model, ["layer1"], specimen.example())
    before = fingerprint(model)
    with pytest.raises(SlotError, match=r"'layer1' carries a slot of another Growable already; call release\(\)"):
        Growable(model, ["stem", "layer1"], specimen.example())
    assert fingerprint(model) == before
    assert hook_count(model) == 1
    first.release()
    second = Growable(model, ["stem", "layer1"], specimen.example())
    assert second.slot_ids == ("stem", "layer1")
    assert hook_count(model) == 2


def test_slots_are_a_mapping_from_ids_to_slots_in_the_order_given() -> None:
    model = BY_NAME["encoder"].model()
    net = Growable(model, {"second": "blocks.1", "keys": "blocks.0"}, BY_NAME["encoder"].example())
    assert list(net.slots) == list(net.slot_ids) == ["second", "keys"]
    assert {id: slot.place.path for id, slot in dict(net.slots).items()} == {"second": "blocks.1", "keys": "blocks.0"}
    assert [slot.id for slot in net.slots.values()] == list(net.slots)
    assert (len(net.slots), "keys" in net.slots, "values" in net.slots) == (2, True, False)
    with pytest.raises(UnknownNameError, match="unknown slot 'secnd'; did you mean 'second'"):
        net.slots["secnd"]


def test_slots_can_have_ids_of_ones_own() -> None:
    specimen = BY_NAME["conv_host"]
    model = specimen.model()
    net = Growable(model, model.slot_paths(after_pool=True), specimen.example(), gates=OPEN)  # type: ignore[operator]
    assert net.slot_ids == ("r0c0", "r1c0", "r0c1", "r1c1")
    net.germinate("r1c1", "norm")
    assert net.report("r1c1").stage is Stage.GERMINATED


def test_a_slot_may_be_named_like_a_method_of_a_dict() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = nn.Linear(4, 6)
            self.values = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.values(self.keys(x)).sum(-1)

    net = Growable(Lookup(), ["keys", "values"], EXAMPLE, gates=OPEN)
    net.germinate("keys", "norm")
    again = Growable(Lookup(), ["keys", "values"], EXAMPLE, gates=OPEN)
    again.load_state_dict(net.state_dict())
    assert again.report("keys").stage is Stage.GERMINATED
    assert again.report("values").stage is Stage.DORMANT


@pytest.mark.parametrize(
    ("model", "path", "example", "topology", "width"),
    [
        pytest.param(Patches(3, 10), "", torch.randn(2, 3, 8, 8), Topology.TOKENS, 10, id="convolution in, tokens out"),
        pytest.param(nn.Conv1d(3, 6, 3), "", torch.randn(2, 3, 9), Topology.MAP1D, 6, id="1-d convolution"),
        pytest.param(nn.Linear(3, 6), "", torch.randn(2, 5, 3), Topology.TOKENS, 6, id="linear over tokens"),
        pytest.param(nn.Linear(3, 6), "", torch.randn(2, 3), Topology.VECTOR, 6, id="linear"),
        pytest.param(nn.GRU(3, 6, batch_first=True), "", torch.randn(2, 5, 3), Topology.TOKENS, 6, id="recurrent"),
        pytest.param(BY_NAME["squeeze"].model(), "blocks.0", BY_NAME["squeeze"].example(), Topology.MAP2D, 6, id="squeeze-excite"),
    ],
)
def test_the_layout_is_read_from_what_the_modules_tell(
    model: nn.Module, path: str, example: Tensor, topology: Topology, width: int
) -> None:
    net = Growable(model if path else nn.Sequential(model), [path or "0"], example)
    report = net.report(path or "0")
    assert (report.topology, report.width) == (topology, width)


@pytest.mark.parametrize(("stated", "width"), [("tokens", 6), ("map1d", 5), (Topology.TOKENS, 6)])
def test_an_unclear_layout_can_be_stated(stated: Topology | str, width: int) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.raw = nn.Linear(4, 6), Raw()

        def forward(self, x: Tensor) -> Tensor:
            return self.raw(self.first(x)).mean(1)

    net = Growable(Net(), ["raw"], EXAMPLE, topology={"raw": stated}, gates=OPEN)
    assert net.report("raw").topology is Topology(stated)
    assert net.report("raw").width == width
    net.germinate("raw", names(Topology(stated))[-1])
    net.advance("raw")
    net(EXAMPLE).sum().backward()
    assert all(p.grad is not None for p in next(iter(net.slots.values())).seed_parameters())


# Proposals

PROPOSED: dict[str, list[str]] = {
    "residual": ["stem", "layer1", "layer2"],
    "unet": ["down1", "down2", "middle", "fuse"],
    "tied": ["mix.2", "mix"],
    "lstm": ["lstm", "trunk"],
    "mixer": ["patches", "blocks.0", "blocks.1"],
    "mlp": ["1", "3"],
    "in_place": ["conv1", "conv2"],
    "encoder": ["blocks.0", "blocks.1"],
    "torch_encoder": ["encoder.layers.0", "encoder.layers.1", "encoder.layers.2"],
    "recommender": ["tower.1", "tower"],
    "conv_host": ["blocks.0", "blocks.1"],
    "gpt_host": ["blocks.0", "blocks.1"],
}


@pytest.mark.parametrize("name", PROPOSED)
def test_the_places_proposed_are_those_that_one_would_choose(name: str) -> None:
    specimen = BY_NAME[name]
    assert [proposal.path for proposal in find_slots(specimen.model(), specimen.example())] == PROPOSED[name]


@everyone
def test_every_proposal_can_be_used_and_is_not_the_head(specimen: Specimen) -> None:
    model = specimen.model()
    before = fingerprint(model)
    proposals = find_slots(model, specimen.example())
    assert fingerprint(model) == before
    assert hook_count(model) == 0
    assert proposals
    net = Growable(model, [proposal.path for proposal in proposals], specimen.example())
    heads = ("head", "out", "score", "4")
    for proposal in proposals:
        report = net.report(proposal.path)
        assert (proposal.topology, proposal.width) == (report.topology, report.width)
        assert "called once" in proposal.reason
        assert proposal.path in str(proposal)
        assert proposal.path not in heads
    assert [report.position for report in net.reports()] == sorted(report.position for report in net.reports())


class TwoHeads(nn.Module):
    """An actor and critic; each head is a block, and none of them may be proposed."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 6), nn.Tanh())
        self.policy = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.value = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.policy(x), self.value(x).squeeze(-1)


def test_no_head_is_proposed_where_there_are_several() -> None:
    assert [proposal.path for proposal in find_slots(TwoHeads(), EXAMPLE)] == ["trunk.2", "trunk"]


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


class Siamese(nn.Module):
    """One encoder for two images: what is called twice is taken apart as what is called once."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(block(1, 4), nn.MaxPool2d(2), block(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(6, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.head(self.encoder(a)) - self.head(self.encoder(b))).norm(dim=1)


class TwoTowers(nn.Module):
    """Both towers give the output; the layers inside them are places nonetheless."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.item = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.user(x) @ self.item(x).T


class Cells(nn.Module):
    """A cell and a head in a loop over words: the head gives the output at each of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(9, 4), nn.GRUCell(4, 6), nn.Linear(6, 9)

    def forward(self, words: Tensor) -> Tensor:
        state, outputs = torch.zeros(len(words), 6), []
        for word in words.unbind(1):
            state = self.cell(self.embedding(word), state)
            outputs.append(self.head(state))
        return torch.stack(outputs, 1)


def generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 36),
        nn.Unflatten(1, (4, 3, 3)),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, 2),
        nn.ReLU(),
        nn.Conv2d(3, 1, 1),
    )


CHOSEN: list[tuple[Callable[[], nn.Module], Any, list[str]]] = [
    (Siamese, (torch.ones(2, 1, 8, 8), torch.ones(2, 1, 8, 8)), ["encoder.0", "encoder.2"]),
    (TwoTowers, torch.ones(3, 4), ["user.1", "item.1"]),
    (Cells, torch.ones(2, 3, dtype=torch.long), ["embedding", "cell"]),
    (generator, torch.ones(2, 5), ["3", "5"]),
    (lambda: Siamese().requires_grad_(False), (torch.ones(2, 1, 8, 8), torch.ones(2, 1, 8, 8)), ["encoder.0", "encoder.2"]),
]


@pytest.mark.parametrize(("factory", "example", "expected"), CHOSEN, ids=["siamese", "towers", "cells", "generator", "frozen"])
def test_places_lie_where_one_would_put_them(factory: Callable[[], nn.Module], example: Any, expected: list[str]) -> None:
    torch.manual_seed(0)
    model = factory()
    learning = [p.requires_grad for p in model.parameters()]
    assert [proposal.path for proposal in find_slots(model, example)] == expected
    assert [p.requires_grad for p in model.parameters()] == learning


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_is_torchscript_is_passed_over() -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 6), nn.ReLU())), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    found = find_slots(model, EXAMPLE)
    assert [proposal.path for proposal in found] == ["2"]
    assert "TorchScript" in found.rejected["0"]
    with pytest.raises(SlotError, match=r"'0.1'.*TorchScript"):
        Growable(model, ["0.1"], EXAMPLE)
    plain = grow_one(model, "2", EXAMPLE).harvest()
    assert torch.equal(plain[0](EXAMPLE), model[0](EXAMPLE))


class Sparing(nn.Module):
    """Runs two blocks without gradients: for good, or until the backward pass runs them again."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.frozen = frozen
        self.early, self.middle, self.late = (nn.Sequential(nn.Linear(n, 6), nn.ReLU()) for n in (4, 6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.frozen:
            return self.head(self.late(checkpoint(self.middle, self.early(x), use_reentrant=True)))
        with torch.no_grad():
            x = self.middle(self.early(x))
        return self.head(self.late(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize(("frozen", "expected"), [(True, ["late"]), (False, ["early", "middle", "late"])])
def test_where_no_gradient_arrives_is_no_place_and_where_one_comes_later_is(frozen: bool, expected: list[str]) -> None:
    model = Sparing(frozen)
    model.early[0].weight.grad = torch.ones(6, 4)
    before = fingerprint(model)
    found = find_slots(model, EXAMPLE)
    assert [proposal.path for proposal in found] == expected
    assert fingerprint(model) == before
    assert torch.equal(model.early[0].weight.grad, torch.ones(6, 4))
    assert ("runs without gradients" in found.rejected.get("early", "")) is frozen


def test_a_lazy_layer_has_to_be_run_once_before() -> None:
    model = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(SlotError, match=r"parameter '0.weight' has no shape yet"):
        find_slots(model, EXAMPLE)
    model(EXAMPLE)
    assert [proposal.path for proposal in find_slots(model, EXAMPLE)] == ["1"]


def test_a_model_without_any_place_gets_no_proposal() -> None:
    assert find_slots(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), EXAMPLE) == []
    assert find_slots(nn.Linear(4, 2), EXAMPLE) == []


def test_a_module_that_the_host_does_more_with_than_call_is_proposed_too() -> None:
    assert [proposal.path for proposal in find_slots(ReadsWeight(), EXAMPLE)] == ["layer", "other"]


def test_proposals_can_be_taken_as_they_are() -> None:
    specimen = BY_NAME["mlp"]
    model, example = specimen.model(), specimen.example()
    found = find_slots(model, example)
    assert Growable(model, found, example).slot_ids == ("1", "3")
    assert Growable(specimen.model(), {"last": found[-1]}, example).slots["last"].place.path == "3"
    with pytest.raises(SlotError, match="no place for a slot was found among 2 modules"):
        Growable(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), find_slots(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), EXAMPLE), EXAMPLE)


def test_places_are_looked_for_in_a_model_that_is_not_wrapped_yet() -> None:
    net = grow(BY_NAME["mlp"])
    with pytest.raises(SlotError, match=r"carries slots already, at 'host\.\d'"):
        find_slots(net, BY_NAME["mlp"].example())
    assert find_slots(net.release(), BY_NAME["mlp"].example())
    with pytest.raises(SlotError, match="slots is a list of module paths, found '1'"):
        check_growable(net.host, BY_NAME["mlp"].example(), "1")  # type: ignore[arg-type]


def test_every_mistake_is_an_esper_error() -> None:
    assert issubclass(SlotError, EsperError)
    with pytest.raises(esper.EsperError):
        Growable(TiedNet(), ["nowhere"], torch.zeros(1, 2, dtype=torch.long))


def test_the_probe_leaves_a_network_that_draws_random_numbers_as_it_would_have_been() -> None:
    specimen = BY_NAME["dropout"]
    torch.manual_seed(5)
    expected = run(specimen.model(), specimen.example())
    torch.manual_seed(5)
    net = grow(specimen)
    assert torch.equal(run(net, specimen.example()), expected)


@everyone
def test_wrapping_takes_less_than_ten_forward_passes(specimen: Specimen) -> None:
    model = specimen.model()
    passes = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    proposals = find_slots(model, specimen.example())
    assert len(passes) < 10
    passes.clear()
    Growable(model, [proposal.path for proposal in proposals], specimen.example())
    assert len(passes) < 10
    handle.remove()


class Postnet(nn.Module):
    """Returns what it has used itself, and nobody uses again."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = self.first(x)
            return before, self.second(before)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, 6), self.Block(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(torch.relu(self.stem(x)))[1])


def test_what_only_its_own_module_uses_is_no_place() -> None:
    found = find_slots(Postnet(), EXAMPLE)
    assert "no gradient would arrive" in found.rejected["block"]
    assert {"block.first", "block.second"} <= {proposal.path for proposal in found}


def test_every_module_is_proposed_or_rejected_with_a_reason() -> None:
    model = BY_NAME["mixer"].model()
    found = find_slots(model, BY_NAME["mixer"].example())
    assert {proposal.path for proposal in found} | found.rejected.keys() == {path for path, _ in model.named_modules() if path}
    assert all(found.rejected.values())
    assert found.rejected["head"].startswith("it gives the model's output")
    assert find_slots(nn.Linear(4, 2), EXAMPLE).rejected == {}
    assert "no place for a slot was found among 2 modules" in str(find_slots(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), EXAMPLE))
