"""Vision networks of pytorchcv, timm, torchvision and a few smaller packages, for small images."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.tour.network import Built, Network, several

Made = tuple[str, Callable[[], Built]]


def _images(size: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


def _cv(module: str, name: str, settings: dict[str, Any], size: int) -> Built:
    make = getattr(importlib.import_module(f"pytorchcv.models.{module}"), name)
    return make(**settings), _images(size)


def _of_cv(module: str, name: str, size: int = 64, **settings: Any) -> Made:
    return name, partial(_cv, module, name, settings, size)


PYTORCHCV = [
    _of_cv("resnet", "resnet10", 224, num_classes=10),
    _of_cv("resnet_cifar", "resnet20_cifar10", 32),
    _of_cv("preresnet", "preresnet10", 224, num_classes=10),
    _of_cv("preresnet_cifar", "preresnet20_cifar10", 32),
    _of_cv("shakedropresnet_cifar", "shakedropresnet20_cifar10", 32),
    _of_cv("diaresnet_cifar", "diaresnet20_cifar10", 32),
    _of_cv("nin_cifar", "nin_cifar10", 32),
    _of_cv("densenet_cifar", "densenet40_k12_cifar10", 32),
    _of_cv("mobilenet", "mobilenet_wd4", 224, num_classes=10),
    _of_cv("mobilenetv2", "mobilenetv2_wd4", 224, num_classes=10),
    _of_cv("mobilenetv3", "mobilenetv3_small_wd2", 224, num_classes=10),
    _of_cv("shufflenet", "shufflenet_g1_wd4", 224, num_classes=10),
    _of_cv("shufflenetv2", "shufflenetv2_wd2", 224, num_classes=10),
    _of_cv("ghostnet", "ghostnet", 224, num_classes=10),
    _of_cv("mnasnet", "mnasnet_small", 224, num_classes=10),
    _of_cv("efficientnet", "efficientnet_b0", 224, num_classes=10),
    _of_cv("darknet", "darknet_tiny", 224, num_classes=10),
    _of_cv("peleenet", "peleenet", 224, num_classes=10),
    _of_cv("regnet", "regnetx002", 224, num_classes=10),
    _of_cv("octresnet", "octresnet10_ad2", 224, num_classes=10),
    _of_cv("unet", "unet_cityscapes", 64, in_size=(64, 64)),
    _of_cv("erfnet", "erfnet_cityscapes", 64, in_size=(64, 64)),
    _of_cv("sinet", "sinet_cityscapes", 128, in_size=(128, 128)),
    _of_cv("fastscnn", "fastscnn_cityscapes", 128, in_size=(128, 128)),
    _of_cv("bisenet", "bisenet_resnet18_celebamaskhq", 64, in_size=(64, 64)),
]


def _timm(name: str, size: int, settings: dict[str, Any]) -> Built:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10, **settings), _images(size)


def _of_timm(name: str, size: int = 64, **settings: Any) -> Made:
    return name, partial(_timm, name, size, settings)


PATCHED: dict[str, Any] = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}
STAGED: dict[str, Any] = {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
TIMM = [
    _of_timm("vit_tiny_patch16_224", **PATCHED),
    _of_timm("deit3_small_patch16_224", **PATCHED),
    _of_timm("vit_relpos_small_patch16_224", **PATCHED),
    _of_timm("beit_base_patch16_224", **PATCHED),
    _of_timm("eva02_tiny_patch14_224", **PATCHED),
    _of_timm("cait_xxs24_224", **PATCHED),
    _of_timm("xcit_nano_12_p16_224", **{**PATCHED, "patch_size": 16}),
    _of_timm("mixer_s16_224", img_size=64),
    _of_timm("gmlp_s16_224", img_size=64),
    _of_timm("resmlp_12_224", img_size=64),
    _of_timm("swin_tiny_patch4_window7_224", window_size=4, **STAGED),
    _of_timm("swinv2_tiny_window8_256", window_size=4, **STAGED),
    _of_timm("pvt_v2_b0"),
    _of_timm("twins_svt_small", 64, img_size=64),
    _of_timm("coat_lite_tiny", 64, img_size=64),
    _of_timm("convnext_atto"),
    _of_timm("convnextv2_atto"),
    _of_timm("resnet10t"),
    _of_timm("resnet18"),
    _of_timm("resnetv2_18"),
    _of_timm("repvgg_a0"),
    _of_timm("efficientnet_b0"),
    _of_timm("tf_efficientnetv2_b0"),
    _of_timm("mobilenetv3_small_050"),
    _of_timm("mobilenetv4_conv_small"),
    _of_timm("mobileone_s0"),
    _of_timm("fastvit_t8"),
    _of_timm("efficientformer_l1", 224),
    _of_timm("edgenext_xx_small"),
    _of_timm("poolformer_s12"),
    _of_timm("caformer_s18"),
    _of_timm("maxvit_tiny_rw_224", 64, img_size=64),
    _of_timm("coatnet_nano_rw_224", 64, img_size=64),
    _of_timm("densenet121"),
    _of_timm("dla34"),
    _of_timm("vovnet39a"),
    _of_timm("cspresnet50"),
    _of_timm("regnety_002"),
    _of_timm("nfnet_l0"),
    _of_timm("hrnet_w18_small"),
    _of_timm("ghostnet_050"),
    _of_timm("levit_128s", 224),
    _of_timm("convmixer_768_32"),
    _of_timm("focalnet_tiny_srf"),
    _of_timm("hiera_tiny_224", 224),
    _of_timm("inception_next_atto", 64),
    _of_timm("tiny_vit_5m_224", 224),
    _of_timm("crossvit_tiny_240", 240),
    _of_timm("visformer_tiny", 224),
    _of_timm("tnt_s_patch16_224", 224),
    _of_timm("sequencer2d_s", 64, img_size=64),
    _of_timm("starnet_s1"),
    _of_timm("rdnet_tiny"),
    _of_timm("mambaout_femto"),
]


def _torchvision(name: str, size: int, settings: dict[str, Any]) -> Built:
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **settings), _images(size)


def _of_torchvision(name: str, size: int = 64, **settings: Any) -> Made:
    return name, partial(_torchvision, name, size, {"num_classes": 10, **settings})


def _video(name: str) -> Built:
    import torchvision

    return getattr(torchvision.models.video, name)(weights=None, num_classes=10), torch.randn(2, 3, 8, 48, 48)


def _segmentation(name: str) -> Built:
    import torchvision

    return getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=4), _images(64)


TORCHVISION = [
    _of_torchvision("resnet18"),
    _of_torchvision("resnext50_32x4d"),
    _of_torchvision("squeezenet1_1"),
    _of_torchvision("densenet121"),
    _of_torchvision("googlenet", init_weights=False),
    _of_torchvision("inception_v3", 299, init_weights=False),
    _of_torchvision("mobilenet_v2"),
    _of_torchvision("mobilenet_v3_small"),
    _of_torchvision("mnasnet0_5"),
    _of_torchvision("shufflenet_v2_x0_5"),
    _of_torchvision("efficientnet_b0"),
    _of_torchvision("regnet_y_400mf"),
    _of_torchvision("convnext_tiny"),
    _of_torchvision("swin_t"),
    _of_torchvision("swin_v2_t"),
    _of_torchvision("maxvit_t", 224),
    _of_torchvision("vit_b_32", image_size=64),
    ("r3d_18", partial(_video, "r3d_18")),
    ("mc3_18", partial(_video, "mc3_18")),
    ("lraspp_mobilenet_v3_large", partial(_segmentation, "lraspp_mobilenet_v3_large")),
    ("fcn_resnet50", partial(_segmentation, "fcn_resnet50")),
]


def _smp(name: str) -> Built:
    import segmentation_models_pytorch

    return getattr(segmentation_models_pytorch, name)("resnet18", encoder_weights=None), _images(64)


SMP = [(f"{name.lower()}-resnet18", partial(_smp, name)) for name in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3Plus", "Linknet",
    "MAnet")]


def _lucid(module: str, name: str, settings: dict[str, Any], size: int = 32) -> Built:
    return getattr(importlib.import_module(module), name)(**settings), _images(size)


def _of_vit(name: str, module: str = "vit_pytorch", size: int = 32, **settings: Any) -> Made:
    return f"{module.rpartition('.')[2]}-{name}".lower(), partial(_lucid, module, name, settings, size)


SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 3, "heads": 4, "mlp_dim": 64}
VIT_PYTORCH = [
    _of_vit("ViT", **SMALL),
    _of_vit("SimpleViT", "vit_pytorch.simple_vit", **SMALL),
    _of_vit("DeepViT", "vit_pytorch.deepvit", **SMALL),
    _of_vit("CaiT", "vit_pytorch.cait", **SMALL, cls_depth=1),
    _of_vit("PiT", "vit_pytorch.pit", **{**SMALL, "patch_size": 4, "depth": (1, 1, 1)}),
    _of_vit("CvT", "vit_pytorch.cvt", 64, num_classes=10, s1_emb_dim=16, s2_emb_dim=32, s3_emb_dim=32, s1_heads=1, s2_heads=2, s3_heads=2,
        s1_depth=1, s2_depth=1, s3_depth=2),
    _of_vit("RegionViT", "vit_pytorch.regionvit", 224, dim=(16, 16, 32, 32), depth=(1, 1, 1, 1), num_classes=10),
    _of_vit("NesT", "vit_pytorch.nest", 32, image_size=32, patch_size=4, dim=24, heads=3, num_hierarchies=3, block_repeats=(1, 1, 2),
        num_classes=10),
    _of_vit("MobileViT", "vit_pytorch.mobile_vit", 64, image_size=(64, 64), dims=[16, 20, 24], channels=[8, 8, 8, 8, 16, 16, 16, 16, 16,
        16, 32], num_classes=10),
    _of_vit("T2TViT", "vit_pytorch.t2t", 32, image_size=32, dim=32, depth=2, heads=4, mlp_dim=64, num_classes=10, t2t_layers=((3, 2), (3,
        2))),
    _of_vit("XCiT", "vit_pytorch.xcit", 32, **SMALL, cls_depth=1),
]

MLPS = [
    ("mlp-mixer", partial(_lucid, "mlp_mixer_pytorch", "MLPMixer", {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 32,
        "depth": 3, "num_classes": 10})),
]
GMLPS = [("g-mlp-vision", partial(_lucid, "g_mlp_pytorch", "gMLPVision", {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32,
    "depth": 3}))]
RESMLPS = [("res-mlp", partial(_lucid, "res_mlp_pytorch", "ResMLP", {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32,
    "depth": 3}))]


def _efficientnet() -> Built:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=10, image_size=64), _images(64)


NETWORKS: list[Network] = [
    *several("pytorchcv", "vision", PYTORCHCV),
    *several("timm", "vision", TIMM, also=("torchvision",)),
    *several("torchvision", "vision", TORCHVISION),
    *several("segmentation-models-pytorch", "segmentation", SMP, also=("timm", "torchvision")),
    *several("vit-pytorch", "vision", VIT_PYTORCH, also=("torchvision",)),
    *several("mlp-mixer-pytorch", "vision", MLPS),
    *several("g-mlp-pytorch", "vision", GMLPS),
    *several("res-mlp-pytorch", "vision", RESMLPS),
    *several("efficientnet-pytorch", "vision", [("efficientnet-b0", _efficientnet)]),
]
