"""Networks for graphs, sound, tables, games, molecules and fields, and language models of smaller packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.tour.network import Built, Network, several

Made = tuple[str, Callable[[], Built]]


def _make(module: str, name: str, settings: dict[str, Any], example: Callable[[], Any]) -> Built:
    return getattr(importlib.import_module(module), name)(**settings), example()


def _of(module: str, name: str, example: Callable[[], Any], label: str = "", **settings: Any) -> Made:
    return label or name.lower(), partial(_make, module, name, settings, example)


def _tokens(length: int = 16, most: int = 99) -> torch.Tensor:
    return torch.randint(0, most, (2, length))


def _graph(nodes: int = 12, edges: int = 30, width: int = 8) -> dict[str, Any]:
    return {"x": torch.randn(nodes, width), "edge_index": torch.randint(0, nodes, (2, edges))}


def _rows(width: int = 8) -> torch.Tensor:
    return torch.randn(8, width)


def _wave(length: int = 2000) -> torch.Tensor:
    return torch.randn(2, 1, length)


GEOMETRIC = [
    *[_of("torch_geometric.nn", name, _graph, in_channels=8, hidden_channels=16, num_layers=3, out_channels=4) for name in ("GCN", "GAT",
        "GIN", "GraphSAGE", "EdgeCNN")],
    _of("torch_geometric.nn", "PNA", _graph, in_channels=8, hidden_channels=16, num_layers=3, out_channels=4, aggregators=["mean", "max"],
        scalers=["identity"], deg=torch.ones(10, dtype=torch.long)),
    _of("torch_geometric.nn", "GraphUNet", _graph, in_channels=8, hidden_channels=16, out_channels=4, depth=2),
    _of("torch_geometric.nn", "LINKX", _graph, num_nodes=12, in_channels=8, hidden_channels=16, out_channels=4, num_layers=2),
    _of("torch_geometric.nn", "AttentiveFP", lambda: {**_graph(), "edge_attr": torch.randn(30, 3), "batch": torch.zeros(12,
        dtype=torch.long)}, in_channels=8, hidden_channels=16, out_channels=4, edge_dim=3, num_layers=2, num_timesteps=2),
]

def _x(kind: str, vision: bool = False, **settings: Any) -> Built:
    import x_transformers

    layers = getattr(x_transformers, kind)(dim=32, depth=3, heads=4, **settings)
    if vision:
        return x_transformers.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=layers), torch.randn(2, 3, 32,
            32)
    return x_transformers.TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers), _tokens()


X_TRANSFORMERS = [
    ("x-decoder", lambda: _x("Decoder")),
    ("x-encoder", lambda: _x("Encoder")),
    ("x-decoder-rotary", lambda: _x("Decoder", rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)),
    ("x-vit", lambda: _x("Encoder", vision=True)),
]

LUCIDRAINS = [
    ("performer-pytorch", _of("performer_pytorch", "PerformerLM", _tokens, num_tokens=99, max_seq_len=16, dim=32, depth=3, heads=4,
        causal=False)),
    ("reformer-pytorch", _of("reformer_pytorch", "ReformerLM", _tokens, num_tokens=99, dim=32, depth=2, max_seq_len=16, heads=4,
        bucket_size=4)),
    ("linformer", _of("linformer", "LinformerLM", _tokens, num_tokens=99, dim=32, seq_len=16, depth=3, heads=4, k=8)),
    ("linear-attention-transformer", _of("linear_attention_transformer", "LinearAttentionTransformerLM", _tokens, num_tokens=99, dim=32,
        heads=4, depth=3, max_seq_len=16)),
    ("sinkhorn-transformer", _of("sinkhorn_transformer", "SinkhornTransformerLM", _tokens, num_tokens=99, dim=32, heads=4, depth=2,
        max_seq_len=16, bucket_size=4)),
    ("routing-transformer", _of("routing_transformer", "RoutingTransformerLM", _tokens, num_tokens=99, dim=32, heads=4, depth=2,
        max_seq_len=16, window_size=8)),
    ("nystrom-attention", _of("nystrom_attention", "Nystromformer", lambda: torch.randn(2, 16, 32), dim=32, depth=2, heads=4, dim_head=8,
        num_landmarks=4)),
    ("h-transformer-1d", _of("h_transformer_1d", "HTransformer1D", _tokens, num_tokens=99, dim=32, depth=2, heads=4, max_seq_len=16,
        block_size=4, causal=True)),
    ("g-mlp-pytorch", _of("g_mlp_pytorch", "gMLP", _tokens, num_tokens=99, dim=32, depth=3, seq_len=16)),
    ("perceiver-pytorch", _of("perceiver_pytorch", "Perceiver", lambda: torch.randn(2, 16, 16, 3), num_freq_bands=2, depth=2, max_freq=4.0,
        num_latents=8, latent_dim=16, num_classes=4, latent_heads=2)),
    ("conformer", _of("conformer", "ConformerBlock", lambda: torch.randn(2, 16, 32), dim=32, dim_head=8, heads=4)),
    ("egnn-pytorch", _of("egnn_pytorch", "EGNN_Network", lambda: (torch.randint(0, 9, (2, 8)), torch.randn(2, 8, 3)), num_tokens=9, dim=16,
        depth=2)),
    ("point-transformer-pytorch", _of("point_transformer_pytorch", "PointTransformerLayer", lambda: (torch.randn(2, 8, 16), torch.randn(2,
        8, 3)), dim=16, pos_mlp_hidden_dim=16)),
    ("siren-pytorch", _of("siren_pytorch", "SirenNet", lambda: torch.randn(8, 2), dim_in=2, dim_hidden=32, dim_out=3, num_layers=3)),
    ("tab-transformer-pytorch", _of("tab_transformer_pytorch", "FTTransformer", lambda: (torch.randint(0, 4, (4, 3)), torch.randn(4, 5)),
        categories=(4, 5, 6), num_continuous=5, dim=16, dim_out=2, depth=2, heads=2)),
    ("TimeSformer-pytorch", _of("timesformer_pytorch", "TimeSformer", lambda: torch.randn(2, 4, 3, 16, 16), dim=32, image_size=16,
        patch_size=8, num_frames=4, num_classes=4, depth=2, heads=2, dim_head=8)),
    ("segformer-pytorch", _of("segformer_pytorch", "Segformer", lambda: torch.randn(2, 3, 64, 64), dims=(8, 16, 16, 32), heads=(1, 2, 2,
        4), ff_expansion=(2, 2, 2, 2), reduction_ratio=(8, 4, 2, 1), num_layers=1, decoder_dim=16, num_classes=4)),
    ("MEGABYTE-pytorch", _of("MEGABYTE_pytorch", "MEGABYTE", lambda: torch.randint(0, 99, (2, 4, 4)), num_tokens=99, dim=(32, 16),
        max_seq_len=(8, 4), depth=(2, 2), dim_head=8, heads=4)),
    ("slot-attention", _of("slot_attention", "SlotAttention", lambda: torch.randn(2, 16, 16), num_slots=3, dim=16, iters=2)),
    ("glom-pytorch", _of("glom_pytorch", "Glom", lambda: torch.randn(2, 3, 16, 16), dim=16, levels=3, image_size=16, patch_size=8)),
    ("mambapy", _of("tests.tour.networks.others", "mamba_py", lambda: torch.randn(2, 12, 32))),
    ("pytorch-tcn", _of("pytorch_tcn", "TCN", lambda: torch.randn(2, 4, 20), num_inputs=4, num_channels=[16, 16, 16])),
    ("ncps", _of("tests.tour.networks.others", "closed_form", lambda: torch.randn(2, 10, 6))),
    ("equiformer-pytorch", _of("equiformer_pytorch", "Equiformer", lambda: (torch.randint(0, 9, (2, 6)), torch.randn(2, 6, 3),
        torch.ones(2, 6).bool()), num_tokens=9, dim=(8, 4), dim_head=(4, 4), heads=(2, 2), depth=1, num_degrees=2, reduce_dim_out=True)),
]


def mamba_py() -> nn.Module:
    """A stack of pure-torch Mamba blocks."""
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=32, n_layers=3, d_state=4))


def closed_form() -> nn.Module:
    """A closed-form continuous-time recurrent network."""
    from ncps.torch import CfC

    return CfC(6, 16, proj_size=4)


def tabnet() -> nn.Module:
    """TabNet without its training loop."""
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(8)
    return TabNet(8, 3, n_d=8, n_a=8, n_steps=2, virtual_batch_size=8, group_attention_matrix=groups)


TABLES = [
    ("pytorch-tabnet", _of("tests.tour.networks.others", "tabnet", _rows)),
    ("rtdl-revisiting-models", _of("rtdl_revisiting_models", "MLP", _rows, d_in=8, d_out=2, n_blocks=3, d_block=32, dropout=0.1)),
    ("rtdl-revisiting-models", _of("rtdl_revisiting_models", "ResNet", _rows, d_in=8, d_out=2, n_blocks=3, d_block=32, d_hidden=None,
        d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0)),
    ("rtdl-revisiting-models", _of("rtdl_revisiting_models", "FTTransformer", lambda: {"x_cont": _rows(5), "x_cat": torch.randint(0, 3, (8,
        2))}, n_cont_features=5, cat_cardinalities=[3, 4], d_out=2, n_blocks=3, d_block=32, attention_n_heads=4, attention_dropout=0.1,
        ffn_d_hidden=64, ffn_d_hidden_multiplier=None, ffn_dropout=0.1, residual_dropout=0.0)),
]

SOUND = [
    ("speechbrain", _of("speechbrain.lobes.models.CRDNN", "CRDNN", lambda: torch.randn(2, 20, 16), input_shape=[2, 20, 16],
        cnn_channels=(8, 8), rnn_neurons=16, rnn_layers=1, dnn_neurons=16, dnn_blocks=1)),
    ("speechbrain", _of("speechbrain.lobes.models.ECAPA_TDNN", "ECAPA_TDNN", lambda: torch.randn(2, 20, 16), input_size=16, channels=[16,
        16, 16, 16, 32], lin_neurons=16, attention_channels=8, res2net_scale=4, se_channels=8)),
    ("speechbrain", _of("speechbrain.lobes.models.Xvector", "Xvector", lambda: torch.randn(2, 40, 16), in_channels=16, tdnn_channels=[16,
        16, 16, 16, 32], lin_neurons=16)),
    ("speechbrain", _of("tests.tour.networks.others", "conformer_encoder", lambda: torch.randn(2, 20, 32))),
    ("asteroid", _of("asteroid.models", "ConvTasNet", lambda: torch.randn(2, 1600), n_src=2, n_filters=16, kernel_size=16, n_blocks=2,
        n_repeats=2, bn_chan=16, hid_chan=16, skip_chan=16)),
    ("asteroid", _of("asteroid.models", "DPRNNTasNet", lambda: torch.randn(2, 1600), n_src=2, n_filters=16, kernel_size=16, bn_chan=16,
        hid_size=16, chunk_size=20, n_repeats=2)),
    ("asteroid", _of("asteroid.models", "DPTNet", lambda: torch.randn(2, 1600), n_src=2, n_filters=16, kernel_size=16, chunk_size=20,
        n_repeats=2, n_heads=4, ff_hid=16)),
    ("asteroid", _of("asteroid.models", "DCUNet", lambda: torch.randn(2, 8000), architecture="DCUNet-10", fix_length_mode="pad",
        stft_n_filters=256, stft_kernel_size=256, stft_stride=64)),
    ("demucs", _of("demucs.demucs", "Demucs", lambda: torch.randn(2, 2, 4096), sources=["a", "b"], channels=8, depth=3, lstm_layers=1,
        dconv_attn=9, dconv_lstm=9, resample=False)),
    ("demucs", _of("demucs.hdemucs", "HDemucs", lambda: torch.randn(2, 2, 8192), sources=["a", "b"], channels=8, depth=4, nfft=256,
        hybrid_old=False)),
    ("torchaudio", _of("torchaudio.models", "Conformer", lambda: (torch.randn(2, 20, 32), torch.tensor([20, 15])), input_dim=32,
        num_heads=4, ffn_dim=64, num_layers=2, depthwise_conv_kernel_size=7)),
    ("torchaudio", _of("torchaudio.models", "ConvTasNet", lambda: torch.randn(2, 1, 1600), num_sources=2, enc_num_feats=32,
        msk_num_feats=16, msk_num_hidden_feats=32, msk_num_layers=2, msk_num_stacks=2)),
    ("torchaudio", _of("torchaudio.models", "DeepSpeech", lambda: torch.randn(2, 1, 20, 16), n_feature=16, n_hidden=32, n_class=10)),
    ("torchaudio", _of("torchaudio.models", "Wav2Letter", lambda: torch.randn(2, 1, 4000), num_classes=10)),
    ("torchaudio", _of("torchaudio.models", "WaveRNN", lambda: (torch.randn(2, 1, (9 - 4) * 20), torch.randn(2, 1, 16, 9)),
        upsample_scales=[2, 2, 5], n_classes=8, hop_length=20, n_res_block=2, n_rnn=16, n_fc=16, n_freq=16, n_hidden=16, n_output=16)),
    ("torchaudio", _of("torchaudio.models", "Emformer", lambda: (torch.randn(2, 12, 32), torch.tensor([10, 8])), input_dim=32, num_heads=4,
        ffn_dim=64, num_layers=2, segment_length=4, right_context_length=2)),
    ("encodec", _of("encodec.modules", "SEANetEncoder", _wave, n_filters=4, dimension=16, ratios=[4, 2], lstm=1)),
]


def conformer_encoder() -> nn.Module:
    """Conformer layers with what gives them positions."""
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    class Encoder(nn.Module):
        """Positions and layers."""

        def __init__(self) -> None:
            super().__init__()
            self.positions = RelPosEncXL(32)
            self.encoder = ConformerEncoder(num_layers=2, d_model=32, d_ffn=64, nhead=4, kernel_size=7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Features of each frame."""
            return self.encoder(x, pos_embs=self.positions(x))[0]

    return Encoder()


def sb3(kind: str, space: str) -> nn.Module:
    """A policy of Stable-Baselines3 without its training loop."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
    from stable_baselines3.dqn.policies import DQNPolicy
    from stable_baselines3.td3.policies import TD3Policy

    box = gymnasium.spaces.Box(-1.0, 1.0, (6,)) if space == "box" else gymnasium.spaces.Box(0, 255, (3, 36, 36), np.uint8)
    if kind == "dqn":
        return DQNPolicy(box, gymnasium.spaces.Discrete(3), lambda _: 1e-3).q_net
    if kind == "td3":
        return TD3Policy(box, gymnasium.spaces.Box(-1.0, 1.0, (2,)), lambda _: 1e-3).actor
    policy = ActorCriticPolicy if space == "box" else ActorCriticCnnPolicy
    return policy(box, gymnasium.spaces.Discrete(3), lambda _: 1e-3)


GAMES = [
    _of("tests.tour.networks.others", "sb3", lambda: torch.randn(4, 6), "ppo-mlp-policy", kind="ppo", space="box"),
    _of("tests.tour.networks.others", "sb3", lambda: torch.randint(0, 255, (4, 3, 36, 36)), "ppo-cnn-policy", kind="ppo", space="images"),
    _of("tests.tour.networks.others", "sb3", lambda: torch.randn(4, 6), "dqn-q-network", kind="dqn", space="box"),
    _of("tests.tour.networks.others", "sb3", lambda: torch.randn(4, 6), "td3-actor", kind="td3", space="box"),
]

FIELDS = [
    _of("neuralop.models", "FNO", lambda: torch.randn(2, 1, 16, 16), n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1,
        n_layers=3),
    _of("neuralop.models", "FNO", lambda: torch.randn(2, 1, 32), "fno-1d", n_modes=(8,), hidden_channels=8, in_channels=1, out_channels=1,
        n_layers=3),
    _of("neuralop.models", "TFNO", lambda: torch.randn(2, 1, 16, 16), n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1,
        n_layers=3),
    _of("neuralop.models", "UNO", lambda: torch.randn(2, 1, 16, 16), in_channels=1, out_channels=1, hidden_channels=8, uno_out_channels=[8,
        8, 8], uno_n_modes=[[4, 4], [4, 4], [4, 4]], uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]], n_layers=3,
        channel_mlp_skip="linear"),
]


def deepctr(kind: str) -> nn.Module:
    """A click model over two sparse and two dense features."""
    import deepctr_torch.models
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    columns = [SparseFeat("a", 5, 4), SparseFeat("b", 6, 4), DenseFeat("c", 1), DenseFeat("d", 1)]
    return getattr(deepctr_torch.models, kind)(columns, columns, dnn_hidden_units=(32, 16))


def _clicks() -> torch.Tensor:
    return torch.cat((torch.randint(0, 5, (8, 2)).float(), torch.randn(8, 2)), 1)


CLICKS = [_of("tests.tour.networks.others", "deepctr", _clicks, name.lower(), kind=name) for name in ("DeepFM", "DCN", "xDeepFM", "WDL",
    "AutoInt")]

VISUAL = [
    _of("kornia.contrib", "TinyViT", lambda: torch.randn(2, 3, 64, 64), img_size=64, embed_dims=[16, 16, 32, 32], depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 4], window_sizes=[4, 4, 4, 4], num_classes=4),
]
VISUAL = [(f"kornia-{name}", make) for name, make in VISUAL]

FLOWS = [("maf", partial(_make, "tests.tour.networks.others", "flow", {}, lambda: _rows(4)))]


def flow() -> nn.Module:
    """A masked autoregressive network of nflows."""
    from nflows.transforms.made import MADE

    return MADE(features=4, hidden_features=16, num_blocks=2)


BRAINS = [
    _of("braindecode.models", name, lambda: torch.randn(2, 8, 500), n_chans=8, n_outputs=3, n_times=500, sfreq=125)
    for name in ("EEGNet", "ShallowFBCSPNet", "Deep4Net", "EEGConformer", "ATCNet", "TIDNet", "EEGInceptionERP", "BDTCN", "USleep",
        "SPARCNet", "CTNet")
]

NETWORKS: list[Network] = [
    *several("torch_geometric", "graphs", GEOMETRIC),
    *several("x-transformers", "language", X_TRANSFORMERS),
    *[Network(name=name, package=package, kind="attention and relatives", make=make) for package, (name, make) in LUCIDRAINS],
    *[Network(name=name, package=package, kind="tables", make=make) for package, (name, make) in TABLES],
    *[Network(name=name, package=package, kind="sound", make=make) for package, (name, make) in SOUND],
    *several("stable-baselines3", "games", GAMES),
    *several("neuraloperator", "fields", FIELDS),
    *several("deepctr-torch", "tables", CLICKS),
    *several("kornia", "vision", VISUAL),
    *several("nflows", "flows", FLOWS),
    *several("braindecode", "signals", BRAINS),
]
