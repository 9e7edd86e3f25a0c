"""Language models of a public package, unchanged: what grows in their blocks comes out plain, and they stay what they were."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import Growable
from esper.leyline.stages import Stage
from tests.kasmina.growing import OPEN, unlike_birth

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}, "transformer.h.{}"),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        "model.layers.{}",
    ),
    # Reads attributes of its blocks.
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", {"hidden_size": 16, "num_hidden_layers": 2, "rescale_every": 0}, "rwkv.blocks.{}"),
}
TOKENS = torch.randint(2, 50, (3, 7), generator=torch.Generator().manual_seed(0))


def make(name: str) -> nn.Module:
    kind, config, sizes, _ = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**SIZES, **sizes))
    return made


def grown(name: str) -> Growable:
    """Fossils behind both blocks."""
    net = Growable(make(name), [MODELS[name][3].format(i) for i in range(2)], {"input_ids": TOKENS, "labels": TOKENS}, gates=OPEN)
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
        net.zero_grad()
        net(input_ids=TOKENS, labels=TOKENS).loss.backward()
        net.measure_gradients()
        for slot in net.slot_ids:
            if stage is Stage.GERMINATED:
                net.germinate(slot, "attention" if slot.endswith("0") else "mlp", tempo=1)
                net.advance(slot)
            elif stage is Stage.TRAINING:
                net.advance(slot)
            else:
                net.record(slot, contribution=1.0)
                net.fossilize(slot)
        net.tick()
    return unlike_birth(net)


def generated(model: Any) -> Tensor:
    found: Tensor = model.eval().generate(TOKENS[:2], attention_mask=torch.ones_like(TOKENS[:2]), max_new_tokens=6, do_sample=False)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # of the package, about itself
@pytest.mark.parametrize("name", MODELS)
def test_a_language_model_grows_and_comes_out_plain(name: str, tmp_path: Path) -> None:
    net = grown(name).train()
    plain = net.harvest()
    host = make(name)
    added = [key for key in plain.state_dict() if ".grown." in key]
    assert [key for key in plain.state_dict() if key not in added] == list(host.state_dict())
    assert type(plain) is type(host)

    tokens = generated(net.host)
    assert torch.equal(generated(plain), tokens)
    host.load_state_dict(net.host.state_dict())
    assert not torch.equal(generated(host), tokens), "the fossils should make a difference"

    with torch.no_grad():
        expected = plain(TOKENS, use_cache=False).logits
        for each in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
            assert torch.equal(each(TOKENS, use_cache=False).logits, expected)
        exported = torch.export.export(plain, (TOKENS,), {"use_cache": False}).module()
        assert torch.allclose(exported(TOKENS, use_cache=False).logits, expected, atol=1e-5)

    plain.save_pretrained(tmp_path)  # type: ignore[operator]
    back, told = type(host).from_pretrained(tmp_path, output_loading_info=True)  # type: ignore[attr-defined]
    assert not told["missing_keys"]
    assert set(told["unexpected_keys"]) == set(added)
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in back.state_dict().items())

    esper.save_grown(net, tmp_path / "grown.safetensors")
    loaded = esper.load_grown(lambda: make(name), tmp_path / "grown.safetensors")
    assert torch.equal(generated(loaded), tokens)
