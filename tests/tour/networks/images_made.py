"""Networks that make images or volumes: diffusers, MONAI, x-unet, denoising-diffusion-pytorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.tour.network import Built, Network, several

Made = tuple[str, Callable[[], Built]]


def _diffusers(name: str, example: Callable[[], Any], settings: dict[str, Any]) -> Built:
    import diffusers

    return getattr(diffusers, name)(**settings), example()


def _of(name: str, example: Callable[[], Any], **settings: Any) -> Made:
    return name.lower(), partial(_diffusers, name, example, settings)


def _noisy(channels: int = 3, size: int = 16, **more: Any) -> dict[str, Any]:
    return {"sample": torch.randn(2, channels, size, size), "timestep": torch.tensor([3, 7]), **more}


def _latent(channels: int = 4, size: int = 8, **more: Any) -> dict[str, Any]:
    return {"hidden_states": torch.randn(2, channels, size, size), "timestep": torch.tensor([3, 7]), **more}


def _text(width: int = 16) -> torch.Tensor:
    return torch.randn(2, 5, width)


DIFFUSERS = [
    _of("UNet2DModel", _noisy, sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    _of("UNet2DConditionModel", lambda: _noisy(4, 8, encoder_hidden_states=_text()), sample_size=8, block_out_channels=(16, 32),
        layers_per_block=1, cross_attention_dim=16, norm_num_groups=8, attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D",
        "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
    _of("UNet3DConditionModel", lambda: {"sample": torch.randn(2, 4, 3, 8, 8), "timestep": torch.tensor([3, 7]),
        "encoder_hidden_states": _text()}, sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16,
        norm_num_groups=8, attention_head_dim=4, down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D",
        "CrossAttnUpBlock3D")),
    _of("AutoencoderKL", lambda: {"sample": torch.randn(2, 3, 16, 16)}, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4),
    _of("AutoencoderTiny", lambda: {"sample": torch.randn(2, 3, 16, 16)}, encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8,
        8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    _of("VQModel", lambda: {"sample": torch.randn(2, 3, 16, 16)}, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, num_vq_embeddings=16),
    _of("DiTTransformer2DModel", lambda: _latent(class_labels=torch.tensor([1, 2])), num_attention_heads=2, attention_head_dim=8,
        in_channels=4, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10),
    _of("Transformer2DModel", lambda: {"hidden_states": torch.randn(2, 8, 8, 8), "encoder_hidden_states": _text()}, num_attention_heads=2,
        attention_head_dim=8, in_channels=8, num_layers=2, cross_attention_dim=16, norm_num_groups=4),
    _of("PixArtTransformer2DModel", lambda: _latent(encoder_hidden_states=_text(), added_cond_kwargs={"resolution": None,
        "aspect_ratio": None}), num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8,
        cross_attention_dim=16, caption_channels=16),
    _of("SD3Transformer2DModel", lambda: _latent(encoder_hidden_states=_text(), pooled_projections=torch.randn(2, 32)), sample_size=8,
        patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, caption_projection_dim=16,
        joint_attention_dim=16, pooled_projection_dim=32, pos_embed_max_size=16),
    _of("FluxTransformer2DModel", lambda: {"hidden_states": torch.randn(2, 16, 4), "encoder_hidden_states": _text(),
        "pooled_projections": torch.randn(2, 16), "timestep": torch.tensor([0.3, 0.7]), "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(5, 3)}, patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
    _of("PriorTransformer", lambda: {"hidden_states": torch.randn(2, 16), "timestep": torch.tensor([3, 7]),
        "proj_embedding": torch.randn(2, 16), "encoder_hidden_states": _text()}, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        embedding_dim=16, num_embeddings=5, additional_embeddings=4),
    _of("ControlNetModel", lambda: _noisy(4, 8, encoder_hidden_states=_text(), controlnet_cond=torch.randn(2, 3, 16, 16)),
        block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16, norm_num_groups=8, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), conditioning_embedding_out_channels=(8, 16)),
    _of("UVit2DModel", lambda: {"input_ids": torch.randint(0, 16, (2, 8, 8)), "encoder_hidden_states": _text(),
        "pooled_text_emb": torch.randn(2, 16), "micro_conds": torch.randn(2, 5)}, hidden_size=32, cond_embed_dim=16,
        micro_cond_encode_dim=8, micro_cond_embed_dim=40, encoder_hidden_size=16, vocab_size=17, codebook_size=16, in_channels=32,
        block_out_channels=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, sample_size=8),
    _of("CogVideoXTransformer3DModel", lambda: {"hidden_states": torch.randn(2, 2, 4, 8, 8), "encoder_hidden_states": _text(),
        "timestep": torch.tensor([3, 7])}, num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=2, sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=5),
    _of("AutoencoderKLTemporalDecoder", lambda: {"sample": torch.randn(2, 3, 16, 16), "num_frames": 2}, block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4),
    _of("StableAudioDiTModel", lambda: {"hidden_states": torch.randn(2, 4, 12), "timestep": torch.tensor([3.0, 7.0]),
        "encoder_hidden_states": _text(), "global_hidden_states": torch.randn(2, 1, 16)}, sample_size=12, in_channels=4, num_layers=2,
        attention_head_dim=8, num_attention_heads=2, num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=16,
        time_proj_dim=16, global_states_input_dim=16, cross_attention_input_dim=16),
]


def _monai(name: str, shape: tuple[int, ...], settings: dict[str, Any]) -> Built:
    import monai

    return getattr(monai.networks.nets, name)(**settings), torch.randn(shape)


def _of_monai(name: str, shape: tuple[int, ...] = (2, 1, 32, 32, 32), label: str = "", **settings: Any) -> Made:
    return label or name.lower(), partial(_monai, name, shape, settings)


VOLUME: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
FLAT: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
MONAI = [
    _of_monai("UNet", **VOLUME, channels=(4, 8, 16), strides=(2, 2), num_res_units=1),
    _of_monai("UNet", (2, 1, 32, 32), "unet-2d", **FLAT, channels=(4, 8, 16), strides=(2, 2)),
    _of_monai("BasicUNet", **VOLUME, features=(4, 4, 8, 8, 16, 4)),
    _of_monai("AttentionUnet", **VOLUME, channels=(4, 8, 16), strides=(2, 2)),
    _of_monai("DynUNet", **VOLUME, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 16]),
    _of_monai("SegResNet", **VOLUME, init_filters=8),
    _of_monai("UNETR", **{**VOLUME, "img_size": (32, 32, 32)}, feature_size=4, hidden_size=24, mlp_dim=48, num_heads=4),
    _of_monai("SwinUNETR", (1, 1, 64, 64, 64), **VOLUME, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    _of_monai("ViT", in_channels=1, img_size=(32, 32, 32), patch_size=(8, 8, 8), hidden_size=24, mlp_dim=48, num_layers=3, num_heads=4,
        classification=True),
    _of_monai("DenseNet121", (2, 1, 64, 64), spatial_dims=2, in_channels=1, out_channels=2),
    _of_monai("resnet10", spatial_dims=3, n_input_channels=1, num_classes=2),
    _of_monai("AutoEncoder", (2, 1, 32, 32), **FLAT, channels=(4, 8), strides=(2, 2)),
    _of_monai("VarAutoEncoder", (2, 1, 32, 32), spatial_dims=2, in_shape=(1, 32, 32), out_channels=1, latent_size=4, channels=(4, 8),
        strides=(2, 2)),
    _of_monai("FlexibleUNet", (2, 3, 64, 64), in_channels=3, out_channels=2, backbone="efficientnet-b0"),
    _of_monai("MILModel", (2, 3, 3, 64, 64), num_classes=2, pretrained=False, mil_mode="att"),
    _of_monai("UNETR", (2, 1, 32, 32), "unetr-2d", **{**FLAT, "img_size": (32, 32)}, feature_size=4, hidden_size=24, mlp_dim=48,
        num_heads=4),
    _of_monai("MedNeXt", **VOLUME, init_filters=8, encoder_expansion_ratio=2, decoder_expansion_ratio=2, bottleneck_expansion_ratio=2,
        blocks_down=(1, 1), blocks_up=(1, 1), blocks_bottleneck=1),
]


def _lucid(module: str, name: str, settings: dict[str, Any], example: Callable[[], Any]) -> Built:
    return getattr(importlib.import_module(module), name)(**settings), example()


X_UNET = [("x-unet", partial(_lucid, "x_unet", "XUnet", {"dim": 16, "channels": 3, "dim_mults": (1, 2), "num_blocks_per_stage": (1, 1),
    "num_self_attn_per_stage": (0, 1), "nested_unet_depths": (1, 1)}, lambda: torch.randn(2, 3, 32, 32)))]
DDPM = [("ddpm-unet", partial(_lucid, "denoising_diffusion_pytorch", "Unet", {"dim": 16, "dim_mults": (1, 2)}, lambda: (torch.randn(2, 3,
    16, 16), torch.tensor([3, 7]))))]

NETWORKS: list[Network] = [
    *several("diffusers", "diffusion", DIFFUSERS),
    *several("monai", "medical", MONAI),
    *several("x-unet", "diffusion", X_UNET),
    *several("denoising-diffusion-pytorch", "diffusion", DDPM, also=("torchvision",)),
]
