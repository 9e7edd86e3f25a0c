"""The device that hosts train on, from its name."""

from __future__ import annotations

import os
import sys

import torch

from esper.leyline.errors import DeviceError


def device_named(name: str) -> torch.device:
    """The device, or DeviceError for one that is not here, or that hosts do not train on. On a GPU torch is told to be deterministic."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"unknown device {name!r}; expected cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} of them, counted from 0" if torch.cuda.is_available() else "no GPU here; use --device cpu"
        raise DeviceError(f"device {name!r} was asked for and torch sees {seen}")
    if device.type == "cuda":
        # The same command gives the same numbers twice: fleets run on several streams, for which cuBLAS needs memory of a fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if sys.platform == "linux" and "PYTORCH_ALLOC_CONF" not in os.environ:
            # Shapes change whenever something grows: of 139 GiB eight processes of 26 CIFAR-10 hosts each left 8 without this, 54 with it.
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device
