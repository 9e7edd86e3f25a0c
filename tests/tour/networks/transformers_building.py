"""Building networks of transformers from small configurations, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.tour.network import Built

TINY = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**TINY, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 99, "pad_token_id": 0}
T5 |= {"decoder_start_token_id": 0}
WAVES = {**TINY, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 4), "num_feat_extract_layers": 3}
WAVES |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "vocab_size": 32, "mask_time_prob": 0.0, "layerdrop": 0.0}
PATCHES = {**TINY, "image_size": 32, "patch_size": 8, "num_channels": 3}
TOWER_TEXT = {**TEXT, "projection_dim": 32}
SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 2, "d_model": 16}
SERIES |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layerdrop": 0.0}
SERIES |= {"decoder_layerdrop": 0.0}


def tokens(length: int = 12) -> torch.Tensor:
    """Random tokens for two samples."""
    return torch.randint(3, 99, (2, length))


def ids() -> dict[str, Any]:
    """Two sequences."""
    return {"input_ids": tokens()}


def masked_ids() -> dict[str, Any]:
    """Two sequences, the second of them shorter."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def pair() -> dict[str, Any]:
    """What is read and what is written."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(9)}


def image(size: int = 32, channels: int = 3) -> dict[str, Any]:
    """Two images."""
    return {"pixel_values": torch.randn(2, channels, size, size)}


def wave(length: int = 2000) -> dict[str, Any]:
    """Two pieces of sound."""
    return {"input_values": torch.randn(2, length)}


def image_and_text(size: int = 32) -> dict[str, Any]:
    """Two images with texts."""
    return {**image(size), "input_ids": tokens()}


def series() -> dict[str, Any]:
    """Two time series, what was and what is to come."""
    past, future = 14, 4
    return {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, 2),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, future),
        "future_time_features": torch.randn(2, future, 2),
    }


def build(config: str, model: str, example: Callable[[], Any], settings: dict[str, Any]) -> Built:
    """A model of this class from a configuration of that."""
    import transformers

    made = getattr(transformers, config)(**{name: value() if callable(value) else value for name, value in settings.items()})
    return getattr(transformers, model)(made), example()


def one(name: str, model: str, example: Callable[[], Any], config: str | None = None, **settings: Any) -> tuple[str, Callable[[], Built]]:
    """The name of a network and what builds it."""
    stem = config or f"{name}Config"
    return model.lower(), partial(build, stem, model, example, settings)


def nested(config: str, **settings: Any) -> Callable[[], Any]:
    """A configuration inside another, made when its network is."""

    def make() -> Any:
        import transformers

        return getattr(transformers, config)(**settings)

    return make
