"""torch's own transformer layers, with samples of different lengths, take the way in eval mode that they take without slots; what grows
in them sees ordinary tensors."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Growable, check_growable, find_slots
from esper.leyline.stages import Stage
from tests.kasmina.growing import OPEN, grow_one, hook_count

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

PLACES = ("encoder", "encoder.layers.0", "encoder.layers.1", "encoder.layers.0.linear1")
LAYERS = ("encoder.layers.0", "encoder.layers.1")


class Reader(nn.Module):
    """What tutorials build: words with padding behind them, an encoder, the mean of what is there, a class."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.embedding, self.encoder, self.head = nn.Embedding(30, 16, padding_idx=0), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Classes, (batch, 3)."""
        missing = words == 0
        features = self.encoder(self.embedding(words), src_key_padding_mask=missing)
        return self.head(features.masked_fill(missing[..., None], 0.0).sum(1) / (~missing).sum(1, keepdim=True))


def words() -> Tensor:
    """Four samples, two of them shorter than the others."""
    found = torch.randint(1, 30, (4, 8), generator=torch.Generator().manual_seed(0))
    found[0, 5:] = found[1, 6:] = 0
    return found


def reader() -> Reader:
    torch.manual_seed(0)
    return Reader()


def growable(*paths: str) -> Growable:
    return Growable(reader(), list(paths), words(), gates=OPEN)


@torch.no_grad()
def answer(model: nn.Module) -> Tensor:
    return model.eval()(words())


@pytest.fixture(autouse=True)
def takes_it() -> None:
    """The bare network is one that takes the fast path here, packs its samples, and gives other bits so."""
    encoder = reader().encoder
    assert encoder.use_nested_tensor
    with torch.no_grad():
        padded = encoder.eval()(torch.ones(4, 8, 16), src_key_padding_mask=words() == 0)
    assert not padded[0, 5:].any()


def test_places_are_found() -> None:
    assert [place.path for place in find_slots(reader(), words())] == list(LAYERS)
    assert check_growable(reader(), words())


@pytest.mark.parametrize("path", PLACES)
def test_a_slot_changes_no_bit_in_eval_mode_until_a_seed_is_blended_in(path: str) -> None:
    expected, model = answer(reader()), growable(path)
    assert torch.equal(answer(model), expected)
    model.germinate(path, "mlp_small")
    model.tick()
    assert model.at(Stage.TRAINING) == [path]
    assert torch.equal(answer(model), expected)
    with model.trial(path):
        assert not torch.equal(answer(model), expected)
    assert torch.equal(answer(model), expected)


def test_hooks_and_what_the_encoder_does_are_as_before_after_each_pass() -> None:
    model = growable(*LAYERS)
    layer, hooks = model.host.encoder.layers[0], hook_count(model.host)
    called: list[str] = []
    layer.register_forward_hook(lambda *_: called.append("a"))
    layer.register_forward_hook(lambda *_: called.append("b"))
    order = list(layer._forward_hooks)
    answer(model)
    assert (list(layer._forward_hooks), called) == (order, ["a", "b"])
    model.germinate(LAYERS[1], "mlp_small")
    model.tick()
    with model.trial(LAYERS[1]), pytest.raises(IndexError):
        model(torch.full((2, 3), 99))
    assert (list(layer._forward_hooks), hook_count(model.host)) == (order, hooks + 2)
    assert model.host.encoder.use_nested_tensor


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("blueprint", ["attention", "mlp_small"])
def test_what_has_grown_sees_ordinary_tensors_and_is_harvested_bit_for_bit(path: str, blueprint: str) -> None:
    model = grow_one(reader(), path, words(), blueprint)
    expected, plain = answer(model), model.harvest()
    assert torch.equal(answer(plain), expected)
    assert torch.equal(answer(pickle.loads(pickle.dumps(plain))), expected)
    assert torch.equal(answer(copy.deepcopy(model)), expected)
    torch.testing.assert_close(plain.train(False)(words()), expected)  # the way of training, in which dropout alone is off


def test_a_compiled_layer_keeps_its_hook() -> None:
    model = growable(LAYERS[0])
    layer = model.host.encoder.layers[0]
    layer._compiled_call_impl = layer._call_impl  # as layer.compile() leaves it, without the wait
    seen = []
    layer.register_forward_pre_hook(lambda module, _: seen.append(len(module._forward_hooks)))
    torch.testing.assert_close(answer(model), answer(reader()))
    assert seen == [1]
